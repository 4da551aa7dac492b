"""Examples for supervised fine-tuning, as groups of one rollout with advantage 1.

So the policy's update for rollouts trains on them, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nemo_brorl.algorithm.packing import Sharing, plan_update
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.sft import SftConfig
from nemo_brorl.types import (
    Bool,
    ChunkArrays,
    Int32,
    Prompt,
    RolloutChunk,
    RolloutGroup,
    RolloutRequest,
    SampledMass,
    Sampling,
    ScoredGroup,
    TrainBatch,
    UpdatePlan,
)

NO_SAMPLING = Sampling(temperature=1.0, top_p=1.0, max_tokens=1)
NO_MASS = SampledMass(0, 0, 0.0, 0.0, 0.0, 0.0)  # mass of a group without sampled responses


@dataclass(frozen=True)
class Example:
    """The tokens of one conversation. The loss counts the assistant's tokens, stop tokens included."""

    task: str
    prompt_ids: Int32  # [P] tokens before the first trained turn, at least one
    response_ids: Int32  # [T] tokens from the first trained turn on
    has_loss: Bool | None = None  # [T] mask of the assistant's tokens; None: all

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)

    @property
    def num_trained_tokens(self) -> int:
        """Number of tokens of a training example that the loss counts."""
        if self.has_loss is None:
            return len(self.response_ids)
        return int(self.has_loss.sum())


def supervised_batch(examples: Sequence[Example]) -> TrainBatch:
    """Build a training batch from supervised examples, as groups of one rollout with advantage 1."""
    groups = tuple(_group(index, example) for index, example in enumerate(examples))
    advantages = tuple(np.ones(1, np.float32) for _ in groups)
    rollouts = tuple(np.zeros(1, np.int64) for _ in groups)
    return TrainBatch(groups, advantages, rollouts)


def _group(index: int, example: Example) -> ScoredGroup:
    length = len(example.response_ids)
    prompt_ids = tuple(example.prompt_ids.tolist())
    prompt = Prompt(f"sft/{index}", example.task, "none", prompt_ids, {})
    request = RolloutRequest(prompt, 0, 1, 0, NO_SAMPLING)
    arrays = ChunkArrays(
        token_ids=example.response_ids,
        log_probs=np.zeros(length, np.float32),
        offsets=np.array([0, length], np.int64),
        is_sampled=example.has_loss,
    )
    chunk = RolloutChunk(
        request,
        request.indices,
        lengths=np.array([length], np.int32),
        is_stopped=np.array([True]),
        version=0,
        newest_version=0,
        engine=-1,
        data=arrays,
        num_sampled=np.array([example.num_trained_tokens], np.int32),
    )
    group = RolloutGroup(prompt, (chunk,))
    return ScoredGroup(group, np.ones(1, np.float32), 0, np.zeros(1, np.float32), NO_MASS)


def supervised_plan(
    examples: Sequence[Example],
    sft: SftConfig,
    sizes: RunSizes,
    *,
    seed: int,
    step: int,
    num_mini_batches: int,
    num_steps: int,
    version: int,
) -> UpdatePlan:
    """Return the plan of an update on supervised examples: micro-batches that they are packed into, and learning rate.

    The update makes `num_mini_batches` optimizer steps, after the first `step` ones of `num_steps`.
    """
    return plan_update(
        supervised_batch(examples),
        num_mini_batches=num_mini_batches,
        data_parallel_size=sizes.data_parallel,
        token_budget=sizes.row_tokens,
        sharing=Sharing(),
        version=version,
        learning_rate=learning_rate(sft, step, num_steps),
        objective="cross_entropy",
        # The seed depends on the step, so that a resumed run packs like one that never stopped.
        seed=seed + step,
    )


def learning_rate(sft: SftConfig, step: int, num_steps: int) -> float:
    """Return the learning rate of the optimizer step after the first `step` ones.

    It rises linearly during warm-up, and then falls by the schedule to `sft.last_lr_fraction`.
    """
    num_rising = min(sft.warmup_steps, num_steps)
    if step < num_rising:
        return sft.lr * (step + 1) / num_rising
    progress = (step - num_rising) / max(1, num_steps - num_rising)
    if sft.lr_schedule == "constant":
        return sft.lr
    left = 1 - progress
    if sft.lr_schedule == "cosine":
        left = (1 + math.cos(math.pi * progress)) / 2
    last = sft.last_lr_fraction
    return sft.lr * (last + (1 - last) * left)
