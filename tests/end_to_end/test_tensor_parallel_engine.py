"""An engine over two tensor-parallel processes, on CPU. A run of ours has such engines on GPUs only."""

from __future__ import annotations

import subprocess
import sys

from tests.support.source_tree import ROOT


def test_two_ranks_sample_the_same_with_the_lean_scheduler_as_with_vllms() -> None:
    command = "-m bench.engine_host_time --sides own lean --tensor-parallel 2 --sequences 16 --tokens 40 --repeats 1"
    done = subprocess.run(
        [sys.executable, *command.split()],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.rstrip().endswith("same tokens")
