"""Commands of the product, run as a user runs them; no measurement of its own."""

from __future__ import annotations

import subprocess
import sys
import time


def run(command: str, *arguments: str) -> float:
    """Run `brorl COMMAND` to its end. Returns its seconds. Raises CalledProcessError."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-m", "nemo_brorl", command, *arguments], check=True)
    return time.monotonic() - start
