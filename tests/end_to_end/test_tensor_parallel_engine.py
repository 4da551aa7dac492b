"""An engine over two tensor-parallel processes, on CPU. A run of ours has such engines on GPUs only."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.source_tree import ROOT

# Both engines and their workers are forked from a process that has imported vLLM once. vLLM would start six.
PROGRAM = """
import multiprocessing, os, sys
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
from nemo_brorl.generation import device
device.prepare_process(on_cpu=True)
from vllm import LLM
from vllm.v1.executor import multiproc_executor
from vllm.v1.worker import cpu_worker
from bench.engine_host_time import read_options, run_side
multiproc_executor.get_mp_context = lambda: multiprocessing.get_context("fork")
for side in ("own", "lean"):
    child = os.fork()
    if child == 0:
        run_side(read_options([*sys.argv[1:], "--side", side]))
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
"""


def test_two_ranks_sample_the_same_with_the_lean_scheduler_as_with_vllms() -> None:
    options = "--tensor-parallel 2 --sequences 16 --tokens 40 --repeats 1"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *options.split()],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    own, lean = (json.loads(line) for line in done.stdout.splitlines() if line.startswith('[{"num"'))
    assert [row["digest"] for row in own] == [row["digest"] for row in lean]
