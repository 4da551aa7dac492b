"""`brorl watch` ends by Ctrl-C, however it was started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.run_folders import put_run

pytestmark = pytest.mark.slow


def test_it_ends_by_ctrl_c_also_as_a_background_job_that_inherits_it_ignored(tmp_path: Path) -> None:
    run = put_run(tmp_path / "run", num_steps=2, prompts=2, size=4)
    command = ["sh", "-c", f"trap '' INT; exec '{sys.executable}' -m nemo_brorl watch '{run}'"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ}) as process:
        assert process.stdout is not None
        try:
            assert "http://127.0.0.1" in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()
