"""One update on one rank: score the plan's tokens, then one optimizer step per mini-batch."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from nemo_brorl.losses import LOSSES, SUPERVISED, TokenBatch
from nemo_brorl.policy.optimizer import guarded_step
from nemo_brorl.policy.packed_rows import Row, fetch_groups, segments_of
from nemo_brorl.policy.schedule import score_rows, train_rows
from nemo_brorl.types import UpdatePlan

if TYPE_CHECKING:
    from nemo_brorl.policy.learner import Learner


@dataclass(frozen=True)
class RankReport:
    """What one rank did in an update; metrics are empty except on the last pipeline stage."""

    metrics: dict[str, float]
    seconds: dict[str, float]
    num_updates: int
    num_skipped: int


@dataclass
class _Sums:
    """Sums over tokens; divided by their number at the end."""

    tokens: int = 0
    values: dict[str, float] = field(default_factory=dict)
    largest_mismatch: float = 0.0

    def add(self, values: dict[str, Any], tokens: int) -> None:
        self.tokens += tokens
        for name, value in values.items():
            self.values[name] = self.values.get(name, 0.0) + float(value)

    def over_data_ranks(self) -> _Sums:
        """Summed in the order of the data-parallel ranks, so that repeats are bit-identical."""
        group = parallel_state.get_data_parallel_group()
        every: list[_Sums] = [_Sums() for _ in range(group.size())]
        dist.all_gather_object(every, self, group=group)
        merged = _Sums(largest_mismatch=max(sums.largest_mismatch for sums in every))
        for sums in every:
            merged.add(sums.values, sums.tokens)
        return merged

    def means(self) -> dict[str, float]:
        return {name: value / self.tokens for name, value in self.values.items()} if self.tokens else {}


class Update:
    """Runs one UpdatePlan on one rank; made for one use."""

    def __init__(self, learner: Learner, plan: UpdatePlan) -> None:
        self.learner, self.plan = learner, plan
        self.is_supervised = plan.objective in SUPERVISED
        self.temperature = 1.0 if self.is_supervised else learner.config.rollouts.temperature
        self.seconds = {"fetch": 0.0, "log_prob": 0.0, "update": 0.0}

    def run(self) -> RankReport:
        """Fetch, score, learn. All ranks call it together."""
        with self._timed("fetch"):
            mini_batches = self._rows()
        with self._timed("log_prob"):
            old, reference, scores = self._score(mini_batches)
        with self._timed("update"):
            losses, norms, num_skipped = self._learn(mini_batches, old, reference)
        metrics = losses.over_data_ranks().means()
        if norms:
            metrics["policy/grad_norm"] = sum(norms) / len(norms)
        if not self.is_supervised:
            scores = scores.over_data_ranks()
            metrics |= scores.means() | {"policy/log_prob_mismatch_max": scores.largest_mismatch}
        is_last = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
        return RankReport(metrics if is_last else {}, self.seconds, len(norms), num_skipped)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start

    def _rows(self) -> list[list[Row]]:
        rank = parallel_state.get_data_parallel_rank()
        mine = [mini_batch[rank] for mini_batch in self.plan.mini_batches]
        groups = fetch_groups(self.plan, [micro for mini_batch in mine for micro in mini_batch])
        return [
            [self.learner.row(segments_of(self.plan, micro, groups), self.temperature) for micro in mini_batch]
            for mini_batch in mine
        ]

    def _score(self, mini_batches: list[list[Row]]) -> tuple[list[list[Tensor]], list[list[Tensor | None]], _Sums]:
        """Old and reference log-probs [n] per row, before any step."""
        scores = _Sums()
        if self.is_supervised:
            return mini_batches_of(None, mini_batches), mini_batches_of(None, mini_batches), scores
        rows = [row for mini_batch in mini_batches for row in mini_batch]
        old = score_rows(self.learner.chunks, rows)
        reference = self.learner.reference
        with reference.swapped_in() if reference else nullcontext():
            reference_scores = score_rows(self.learner.chunks, rows) if reference else None
        for row, log_probs in zip(rows, old, strict=False):  # `old` is empty except on the last stage
            mismatch = (log_probs - row.sampled_log_probs).abs()
            scores.add(
                {"policy/log_prob_mismatch": mismatch.double().sum(), "policy/entropy_estimate": -log_probs.double().sum()},
                row.num_loss_tokens,
            )
            scores.largest_mismatch = max(scores.largest_mismatch, float(mismatch.max()) if len(mismatch) else 0.0)
        return mini_batches_of(old, mini_batches), mini_batches_of(reference_scores, mini_batches), scores

    def _learn(
        self, mini_batches: list[list[Row]], old: list[list[Tensor]], reference: list[list[Tensor | None]]
    ) -> tuple[_Sums, list[float], int]:
        """One guarded optimizer step per mini-batch: sums of the losses, gradient norms, mini-batches skipped."""
        sums, norms, num_skipped = _Sums(), [], 0
        for index, rows in enumerate(mini_batches):
            report = self._learn_mini_batch(rows, old[index], reference[index])
            if report is None:
                num_skipped += 1
                continue
            values, norm = report
            norms.append(norm)
            for row, row_values in zip(rows, values, strict=False):  # empty except on the last stage
                sums.add(row_values, row.num_loss_tokens)
        return sums, norms, num_skipped

    def _learn_mini_batch(
        self, rows: list[Row], old: Sequence[Tensor | None], reference: Sequence[Tensor | None]
    ) -> tuple[list[dict[str, Tensor]], float] | None:
        learner = self.learner
        loss_of = LOSSES[self.plan.objective]

        def loss(index: int, row: Row, log_probs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            old_log_probs = old[index] if old[index] is not None else log_probs.detach()
            batch = TokenBatch(log_probs, old_log_probs, row.sampled_log_probs, reference[index], row.advantages)
            result = loss_of(batch, learner.config.algorithm)
            return result.loss, {"policy/loss": result.loss.detach(), **result.metrics}

        values = train_rows(learner.chunks, rows, loss)
        is_finite = all(math.isfinite(float(row_values["policy/loss"])) for row_values in values)
        norm = guarded_step(
            learner.optimizer, self.plan.learning_rate, learner.config.policy.optim, is_finite, learner.device
        )
        return None if norm is None else (values, norm)


def mini_batches_of(scores: list[Tensor] | None, mini_batches: Sequence[Sequence[Row]]) -> list[list[Any]]:
    """Cut a flat list of scores like the mini-batches; None for every row where there are no scores."""
    if not scores:
        return [[None] * len(rows) for rows in mini_batches]
    remaining = iter(scores)
    return [[next(remaining) for _ in rows] for rows in mini_batches]
