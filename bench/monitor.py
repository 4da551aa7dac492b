"""Measure what the mass-balance monitor costs.

The figure is the CPU seconds of everything that it computes for a step, over the seconds of the steps of a run.

    python bench/monitor.py RUN_FOLDER [--prompts 16] [--rollouts 512] [--tokens 4] [--repeats 9]

A step's worth of synthetic rollouts goes through the monitor's parts: keys and log-probs of whole responses (in the
verifier workers), the sampled mass of groups and the terms of Theorem 1 (in the driver), the measured gain of the last
of four mini-batches (in the policy's ranks). They are added up though they run in different processes. The run gives
the median step: collect, log-probs, update, sync.
"""

from __future__ import annotations

import argparse
import statistics
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from nemo_brorl.algorithm.token_batch import ResponseIndex, TokenBatch
from nemo_brorl.policy.rank.measured_gain import MeasuredGain
from nemo_brorl.rollouts.ledger import sampled_mass
from nemo_brorl.rollouts.metrics import mass_balance_metrics
from nemo_brorl.scoring.response_arrays import response_keys
from nemo_brorl.training.records import read_metrics
from nemo_brorl.types import ChunkArrays, Prompt, RolloutChunk, RolloutGroup, RolloutRequest, Sampling, ScoredGroup

STAGES = ("collect", "log_prob", "update", "sync")


def make_chunks(num_prompts: int, num_rollouts: int, num_tokens: int) -> list[RolloutChunk]:
    """Random responses, many of them equal."""
    random = np.random.default_rng(0)
    chunks = []
    for index in range(num_prompts):
        lengths = np.full(num_rollouts, num_tokens, np.int32)
        data = ChunkArrays(
            random.integers(0, 5, num_rollouts * num_tokens).astype(np.int32),
            np.full(num_rollouts * num_tokens, -1.0, np.float32),
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        )
        request = RolloutRequest(
            Prompt(f"train/{index}", "toy", "toy", (1, 2), {}), 0, num_rollouts, 0, Sampling(1.0, 1.0, num_tokens)
        )
        chunks.append(RolloutChunk(request, request.indices, lengths, np.ones(num_rollouts, bool), 0, 0, 0, data))
    return chunks


def monitor(chunks: list[RolloutChunk], batch: TokenBatch) -> None:
    """All that the monitor does in a step."""
    groups = []
    for chunk in chunks:
        keys = response_keys(chunk.data)
        log_probs = np.array(
            [chunk.data.log_probs[start:end].sum() for start, end in pairwise(chunk.data.offsets.tolist())], np.float32
        )
        rewards = (keys % 2).astype(np.float32)
        mass = sampled_mass(keys, log_probs, rewards)
        group = RolloutGroup(chunk.request.prompt, (chunk,))
        groups.append(ScoredGroup(group, rewards, 0, np.zeros(len(rewards), np.float32), mass))
    mass_balance_metrics(groups)
    gain = MeasuredGain()
    gain.add(batch, [True] * len(batch.sequences.lengths))
    gain.metrics()


def make_batch(num_responses: int, num_tokens: int) -> TokenBatch:
    """Build random token values as they are in the last mini-batch of a step."""
    total = num_responses * num_tokens
    values = torch.randn(total)
    sequences = ResponseIndex(
        torch.arange(num_responses).repeat_interleave(num_tokens), torch.full((num_responses,), float(num_tokens))
    )
    return TokenBatch(values, values, values, values, None, values, torch.ones(total), sequences)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--rollouts", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    rows = [row for row in read_metrics(options.run / "metrics.jsonl") if "time/update_s" in row]
    step_s = statistics.median(sum(row[f"time/{stage}_s"] for stage in STAGES) for row in rows)
    chunks = make_chunks(options.prompts, options.rollouts, options.tokens)
    batch = make_batch(options.prompts * options.rollouts // 4, options.tokens)
    seconds = []
    for _ in range(options.repeats):
        start = time.process_time()
        monitor(chunks, batch)
        seconds.append(time.process_time() - start)
    cost = statistics.median(seconds)
    print(
        f"monitor {cost:.3f} CPU s, step {step_s:.1f} s: {cost / step_s:.2%} (median of {options.repeats}; the run's "
        f"of {len(rows)} steps)"
    )


if __name__ == "__main__":
    main()
