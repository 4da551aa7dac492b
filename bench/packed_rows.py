"""Host time that a policy rank takes to build the packed rows of an update, in µs a response.

    python bench/packed_rows.py [--prompts 8] [--responses 512] [--length 40] [--budget 8192] [--turns 1]
        [--min-shared-tokens 0] [--attention sdpa] [--repeats 7]

Responses have half to one and a half times `--length` tokens. With `--turns` above 1 the last eight tokens of every
turn are observed. Times are CPU time of the thread, medians over the repeats: a busy machine counts less.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from nemo_brorl.algorithm.packing import Packer, Sharing
from nemo_brorl.policy.rows.packed_rows import GroupArrays, RowSettings, build_packed_groups
from nemo_brorl.policy.rows.row_builder import build_row
from nemo_brorl.types import ChunkArrays, PlannedGroup, UpdatePlan

NUM_OBSERVED = 8
PROMPT_TOKENS = 70


def draw_chunk(random: np.random.Generator, arguments: argparse.Namespace) -> ChunkArrays:
    """Return the chunk of a group: responses of random tokens."""
    lengths = random.integers(arguments.length // 2, arguments.length * 3 // 2, (arguments.responses, arguments.turns))
    offsets = np.concatenate([[0], lengths.sum(1).cumsum()])
    num_tokens = int(offsets[-1])
    token_ids = random.integers(3, 300, num_tokens).astype(np.int32)
    is_sampled = None
    if arguments.turns > 1:
        is_sampled = np.ones(num_tokens, bool)
        for end in lengths.ravel().cumsum():
            is_sampled[end - NUM_OBSERVED : end] = False
    return ChunkArrays(token_ids, -random.random(num_tokens, np.float32), offsets, is_sampled)


def draw_plan(arguments: argparse.Namespace) -> tuple[UpdatePlan, dict[int, GroupArrays]]:
    """Return the plan of one mini-batch for one rank, and the arrays of its groups."""
    random = np.random.default_rng(0)
    groups = []
    for _ in range(arguments.prompts):
        chunk = draw_chunk(random, arguments)
        prompt_ids = random.integers(3, 300, PROMPT_TOKENS).astype(np.int32)
        advantages = random.normal(size=arguments.responses).astype(np.float32)
        groups.append(PlannedGroup(prompt_ids, (chunk,), advantages, staleness=0))
    lengths = [np.diff(group.chunks[0].offsets) for group in groups]
    packer = Packer([PROMPT_TOKENS] * len(groups), lengths, arguments.budget, Sharing())
    items = [(group, rollout) for group in range(len(groups)) for rollout in range(arguments.responses)]
    plan = UpdatePlan(1, "ppo_clip", 0.0, tuple(groups), (tuple(packer.pack(items, 1)),))
    return plan, {index: GroupArrays(group.chunks) for index, group in enumerate(groups)}


def median_time(work: Callable[[], object], repeats: int) -> float:
    """Return the median CPU seconds of this thread for `work`, after one run to warm up."""
    work()
    seconds = []
    for _ in range(repeats):
        start = time.thread_time()
        work()
        seconds.append(time.thread_time() - start)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--responses", type=int, default=512, help="responses a prompt")
    parser.add_argument("--length", type=int, default=40, help="mean tokens of a turn")
    parser.add_argument("--budget", type=int, default=8192, help="tokens of a micro-batch")
    parser.add_argument("--turns", type=int, default=1, help="turns of a response")
    parser.add_argument("--min-shared-tokens", type=int, default=0)
    parser.add_argument("--attention", default="sdpa")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    plan, groups = draw_plan(arguments)
    micro_batches = plan.mini_batches[0][0]
    min_shared = arguments.min_shared_tokens
    settings = RowSettings(torch.device("cpu"), attention=arguments.attention, min_shared_tokens=min_shared)
    num = arguments.prompts * arguments.responses
    # Every repeat builds new responses, because a response keeps what was derived from it.
    pack = partial(build_packed_groups, plan, groups=groups)
    groups_s = median_time(lambda: [pack(micro) for micro in micro_batches], arguments.repeats)
    both_s = median_time(lambda: [build_row(pack(micro), 1.0, settings) for micro in micro_batches], arguments.repeats)
    print(
        f"{num} responses, {len(micro_batches)} rows: build_packed_groups {groups_s / num * 1e6:.1f} µs, "
        f"build_row {(both_s - groups_s) / num * 1e6:.1f} µs a response, together {both_s * 1000:.0f} ms"
    )


if __name__ == "__main__":
    main()
