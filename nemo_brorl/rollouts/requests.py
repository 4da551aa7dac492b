"""Requests for a group's rollouts: N are cut into chunks, each with the group's seed and its place in the group."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace

from nemo_brorl.rollouts.ledger import OpenGroup
from nemo_brorl.types import PartialRollouts, Prompt, RolloutRequest, Sampling

MIN_CHUNK = 8  # rollouts
NO_ENGINE = -1

SEED_BITS = 48  # leaves room to add N and stay a positive signed 64-bit number


def group_seed(run_seed: int, prompt_uid: str) -> int:
    """The seed of a prompt's group: a pure function of the run's seed and the prompt, so a restart draws the same
    rollouts."""
    digest = hashlib.blake2b(f"{run_seed}/{prompt_uid}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - SEED_BITS)


def requests_for(
    prompts: Sequence[Prompt],
    num_per_prompt: int,
    chunk_size: int,
    sampling: Sampling,
    run_seed: int,
    start: int = 0,
    deadline_s: float | None = None,
) -> list[RolloutRequest]:
    """Requests for `num_per_prompt` further rollouts of each prompt, which has `start` already; in order, the last
    chunk of a group possibly smaller."""
    requests: list[RolloutRequest] = []
    end = start + num_per_prompt
    for prompt in prompts:
        seed = group_seed(run_seed, prompt.uid)
        for first in range(start, end, chunk_size):
            num_rollouts = min(chunk_size, end - first)
            request = RolloutRequest(prompt, first, num_rollouts, seed, sampling, deadline_s=deadline_s)
            requests.append(request)
    return requests


def requests_to_resume(group: OpenGroup, run_seed: int) -> list[RolloutRequest]:
    """Requests that go on with a group's partial rollouts, one for each block of them. Engines have forgotten their
    tokens by now."""
    requests: list[RolloutRequest] = []
    for block in group.partial:
        elsewhere = replace(block, engine=NO_ENGINE)
        requests.append(request_to_go_on(group, elsewhere, run_seed))
    return requests


def request_to_go_on(group: OpenGroup, block: PartialRollouts, run_seed: int) -> RolloutRequest:
    """The request that goes on with one block of a group's partial rollouts."""
    return RolloutRequest(
        group.prompt,
        int(block.indices[0]),
        len(block.indices),
        group_seed(run_seed, group.uid),
        group.sampling,
        partial=block,
        deadline_s=group.deadline_s,
    )


def fitting_chunk_size(
    num_rollouts: int,
    num_engines: int,
    chunk_size: int,
    chunks_per_engine: int = 16,
) -> int:
    """`chunk_size`, or less where rollouts are so few that engines would get fewer than `chunks_per_engine` chunks
    each: what an engine has begun cannot be moved, so balance needs many prompts on each. Never below `MIN_CHUNK`:
    every chunk costs its calls."""
    smallest = min(chunk_size, MIN_CHUNK)
    balanced = math.ceil(num_rollouts / (num_engines * chunks_per_engine))
    return max(smallest, min(chunk_size, balanced))
