"""The cost of a new scoring process for each prompt, as a ratio to one process for all prompts.

    python graders/bench/verifier_isolation.py [--repeats 5]

The process pool scores groups of Reasoning Gym answers one after another, for several group sizes. Both ways take turns
in one run. CPU seconds are those of the fork server and its children.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from brorl_graders.base.payload import Deadlines
from brorl_graders.processes.child_process import Isolation, ScoringTask
from brorl_graders.processes.process_pool import ProcessPool

from graders.tests.support.gym_questions import gym_payloads

TASKS = ("chain_sum", "countdown", "word_ladder", "mini_sudoku", "propositional_logic")
NUM_GROUPS = 40


def ended_children_cpu_s() -> float:
    """Return the CPU seconds of all children of this process that have exited."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def own_cpu_s(process: int) -> float:
    """Return the CPU seconds of another process, without those of its children."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def score_groups(payloads: Sequence[dict[str, Any]], size: int, is_shared: bool) -> tuple[float, float]:
    """Score groups of answers with one process for all prompts (`is_shared`) or a new process for each prompt.

    Returns (seconds, CPU seconds). Loading the reasoning_gym tasks counts in the CPU seconds alone.
    """
    isolation = ScoringTask.isolation
    if is_shared:
        ScoringTask.isolation = Isolation()  # type: ignore[assignment]
    cpu_before = ended_children_cpu_s()
    pool = ProcessPool(Deadlines(60.0))
    try:
        for payload in payloads[: len(TASKS) * 4]:  # loads the tasks
            pool.score("reasoning_gym", payload, ["<answer>0</answer>"])
        start = time.perf_counter()
        for payload in payloads:
            texts = [f"<answer>{payload['answer']}{number}</answer>" for number in range(size)]
            pool.score("reasoning_gym", payload, texts)
        seconds = time.perf_counter() - start
        unfinished_cpu_s = sum(map(own_cpu_s, pool.child_pids()))  # children that exit with the fork server
    finally:
        pool.close()
        ScoringTask.isolation = isolation  # type: ignore[method-assign]
    return seconds, ended_children_cpu_s() - cpu_before + unfinished_cpu_s


def measure(repeats: int, sizes: Sequence[int]) -> dict[str, Any]:
    """Return what a new scoring process for each prompt costs, as a ratio to one process for all prompts.

    The figures are medians by group size: ratios of time and of CPU time, and milliseconds a group.
    """
    by_task = [gym_payloads(name, NUM_GROUPS // len(TASKS), seed=1) for name in TASKS]
    payloads = list(chain.from_iterable(zip(*by_task, strict=True)))
    result: dict[str, Any] = {}
    for size in sizes:
        shared, isolated = [], []
        for _ in range(repeats):
            shared.append(score_groups(payloads, size, is_shared=True))
            isolated.append(score_groups(payloads, size, is_shared=False))
        shared_s, shared_cpu = (statistics.median(column) for column in zip(*shared, strict=True))
        isolated_s, isolated_cpu = (statistics.median(column) for column in zip(*isolated, strict=True))
        result[f"groups of {size}"] = {
            "ratio": isolated_s / shared_s,
            "extra_ms_a_group": 1000 * (isolated_s - shared_s) / NUM_GROUPS,
            "ms_a_group": 1000 * isolated_s / NUM_GROUPS,
            "cpu_ratio": isolated_cpu / shared_cpu,
            "extra_cpu_ms_a_group": 1000 * (isolated_cpu - shared_cpu) / NUM_GROUPS,
        }
    return result


def main() -> None:
    """Measure what a new scoring process for each prompt costs, by group size, and print the costs as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="*", default=[16, 64, 512])
    options = parser.parse_args()
    print(json.dumps(measure(options.repeats, options.sizes), indent=1))


if __name__ == "__main__":
    main()
