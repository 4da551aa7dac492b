"""The driver plans and decides; it does not pay for torch or megatron."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from nemo_brorl.policy import group, rank, rank_report
heavy = {"torch", "megatron", "transformers"} & set(sys.modules)
assert not heavy, heavy
"""


def test_the_driver_side_of_the_policy_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
