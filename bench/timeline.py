"""What the timeline costs the driver: CPU seconds to note and write the spans of a step.

    python bench/timeline.py [--rollouts 8192] [--chunk 64] [--times 20] [--step-s 7.2]

Everything that `timeline.enabled` adds is done by the driver: engines, verifiers and ranks send their times in either
case. So its CPU time over that of a step bounds what it costs a run, much closer than two noisy runs side by side.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from nemo_brorl.config.records import TimelineConfig
from nemo_brorl.core.console import format_table
from nemo_brorl.core.timeline import Exchange, Timeline, Work, chunk_key
from nemo_brorl.training.step_timeline import Timelines

NUM_ENGINES = 8
NUM_RANKS = 8
NUM_MINI_BATCHES = 4
STAGES = ("collect", "fetch", "log_prob", "update", "sync")


def main() -> None:
    """Print the costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=8192, help="of a step")
    parser.add_argument("--chunk", type=int, default=64, help="rollouts of a chunk")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--step-s", type=float, help="seconds of a step, to say the share of it")
    options = parser.parse_args()
    num_chunks = options.rollouts // options.chunk
    costs: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        timeline = Timeline()
        files = Timelines(timeline, Path(folder), TimelineConfig())
        for step in range(options.times):
            began_at = time.process_time()
            files.step_begins(step)
            note_step(timeline, num_chunks)
            files.interval_ended()
            costs.append(time.process_time() - began_at)
        newest = max(Path(folder).rglob("*.gz"))
        size = newest.stat().st_size
    cost = statistics.median(costs)
    row = [f"{options.rollouts:,}", f"{num_chunks:,}", f"{1000 * cost:.1f}", f"{size / 1024:.0f}"]
    print("\n".join(format_table(["rollouts", "chunks", "CPU ms a step", "KiB a step"], [row])))
    if options.step_s is not None:
        print(f"\n{cost / options.step_s:.2%} of a step of {options.step_s:g} s")


def note_step(timeline: Timeline, num_chunks: int) -> None:
    """Record the spans that a real step records."""
    for name in STAGES:
        with timeline.stage(name):
            pass
    for number in range(num_chunks):
        keys = (chunk_key("train/1", number),)
        details = {"num_rollouts": 64, "tokens": 4096, "version": 1, "task": "sums"}
        for process, name in ((f"engine {number % NUM_ENGINES}", "sample"), ("verifier 0", "score")):
            now = time.time()
            work = Work(name, now, now, "chunks", keys, details)
            timeline.record_work(process, [work], Exchange(now, now, now, now))
    for rank in range(NUM_RANKS):
        now = time.time()
        pieces = []
        for number in range(NUM_MINI_BATCHES):
            details = {"mini_batch": number, "data_rank": rank}
            pieces.append(Work(f"mini-batch {number + 1}", now, now, details=details))
        timeline.record_work(f"policy rank {rank}", pieces, Exchange(now, now, now, now))


if __name__ == "__main__":
    main()
