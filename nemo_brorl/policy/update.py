"""One update on one rank: score the plan's tokens, then one optimizer step per mini-batch."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from nemo_brorl.algorithm.losses import LOSSES, SUPERVISED, MiniBatchSize
from nemo_brorl.policy.measured_gain import MeasuredGain
from nemo_brorl.policy.model.log_probs import TokenScores
from nemo_brorl.policy.numerics.fp8_check import Fp8Check
from nemo_brorl.policy.pipeline import score_rows, train_rows
from nemo_brorl.policy.rank_report import RankReport
from nemo_brorl.policy.rows.packed_rows import Row, fetch_groups, segments_of
from nemo_brorl.policy.rows.token_batch import token_batch
from nemo_brorl.policy.state.optimizer import guarded_step
from nemo_brorl.policy.state.rank_state import RankState
from nemo_brorl.policy.whereabouts import TRACK
from nemo_brorl.types import UpdatePlan

Counted = TypeVar("Counted")


@dataclass
class _Sums:
    """Sums over tokens; divided by their number at the end."""

    tokens: int = 0
    values: dict[str, float] = field(default_factory=dict)
    largest: float = 0.0

    def add(self, values: dict[str, Any], tokens: int) -> None:
        self.tokens += tokens
        for name, value in values.items():
            self.values[name] = self.values.get(name, 0.0) + float(value)

    def over_data_ranks(self) -> _Sums:
        """Summed in the order of the data-parallel ranks, so that repeats are bit-identical."""
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        every = _of_all_ranks(self, group)
        merged = _Sums(largest=max(sums.largest for sums in every))
        for sums in every:
            merged.add(sums.values, sums.tokens)
        return merged

    def means(self) -> dict[str, float]:
        return {name: value / self.tokens for name, value in self.values.items()} if self.tokens else {}


class Update:
    """Runs one UpdatePlan on one rank; made for one use.

    Old log-probs are those of the weights before the first step. So the first mini-batch needs no pass to score it: its
    own log-probs, without gradient, are the old ones.
    """

    def __init__(self, state: RankState, fp8_check: Fp8Check, plan: UpdatePlan) -> None:
        self.state, self.fp8_check, self.plan = state, fp8_check, plan
        self.is_supervised = plan.objective in SUPERVISED
        self.temperature = 1.0 if self.is_supervised else state.config.rollouts.temperature
        self.seconds = {"fetch": 0.0, "log_prob": 0.0, "update": 0.0}
        self.losses, self.scores, self.mismatch, self.drift = _Sums(), _Sums(), _Sums(), _Sums()
        self.fp8_mismatch: dict[str, float] = {}
        self.gain = MeasuredGain()

    def run(self) -> RankReport:
        """Fetch, score, learn. All ranks call it together."""
        with self._timed("fetch"):
            mini_batches = self._rows()
        with self._timed("log_prob"):
            self.fp8_mismatch = self.fp8_check.mismatch(mini_batches[0][0])  # first, see there
            old = self._old_log_probs(mini_batches)
            reference = self._reference_log_probs(mini_batches)
        with self._timed("update"):
            norms = [
                self._learn(index, *parts) for index, parts in enumerate(zip(mini_batches, old, reference, strict=True))
            ]
        is_last = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
        num_updates = sum(norm is not None for norm in norms)
        return RankReport(self._metrics(norms) if is_last else {}, self.seconds, num_updates, len(norms) - num_updates)

    def _metrics(self, norms: Sequence[float | None]) -> dict[str, float]:
        """Token means over the data-parallel ranks; loss and norm of the mini-batches that were not skipped, or NaN."""
        taken = [norm for norm in norms if norm is not None]
        metrics = {"policy/loss": math.nan} | self.losses.over_data_ranks().means()
        metrics["policy/grad_norm"] = sum(taken) / len(taken) if taken else math.nan
        if not self.is_supervised:
            mismatch = self.mismatch.over_data_ranks()
            metrics |= (
                {"policy/log_prob_mismatch": math.nan}
                | mismatch.means()
                | {"policy/log_prob_mismatch_max": mismatch.largest}
            )
            metrics |= self.scores.over_data_ranks().means() | self.drift.over_data_ranks().means()
            metrics |= self._gain_over_data_ranks().metrics()
        return metrics | self.fp8_mismatch

    def _gain_over_data_ranks(self) -> MeasuredGain:
        """Context-parallel ranks have all counted the same responses, so one of them speaks for all."""
        merged = MeasuredGain()
        for gain in _of_all_ranks(self.gain, parallel_state.get_data_parallel_group()):
            merged.merge(gain)
        return merged

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        TRACK.part(name)
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start

    def _rows(self) -> list[list[Row]]:
        rank = parallel_state.get_data_parallel_rank()
        mine = [mini_batch[rank] for mini_batch in self.plan.mini_batches]
        groups = fetch_groups(self.plan, [micro for mini_batch in mine for micro in mini_batch])

        segments = [segments_of(self.plan, micro, groups) for mini_batch in mine for micro in mini_batch]
        rows = iter(self.state.rows(segments, self.temperature))
        return [[next(rows) for _ in mini_batch] for mini_batch in mine]

    def _old_log_probs(self, mini_batches: Sequence[Sequence[Row]]) -> list[list[Tensor | None]]:
        """Under the current weights, [n] per row; None where they come with the training pass, and off the last
        stage."""
        later = [] if self.is_supervised else mini_batches[1:]
        scores = self._score(later)
        for row, row_scores in zip(
            (row for rows in later for row in rows), scores, strict=False
        ):  # none except on the last stage
            self._record(row, row_scores)
        unscored = mini_batches[: len(mini_batches) - len(later)]
        return _cut_like(unscored, []) + _cut_like(later, [row_scores.log_probs for row_scores in scores])

    def _reference_log_probs(self, mini_batches: Sequence[Sequence[Row]]) -> list[list[Tensor | None]]:
        """Under the reference weights, [n] per row; None without a KL term, and off the last stage."""
        if self.is_supervised or self.state.reference is None:
            return _cut_like(mini_batches, [])
        with self.state.reference.swapped_in():
            return _cut_like(mini_batches, [scores.log_probs for scores in self._score(mini_batches)])

    def _score(self, mini_batches: Sequence[Sequence[Row]]) -> list[TokenScores]:
        rows = [row for mini_batch in mini_batches for row in mini_batch]
        return score_rows(self.state.chunks, rows) if rows else []

    def _record(self, row: Row, old: TokenScores) -> None:
        """Count how far sampler and trainer disagree on a row, and how undecided the policy is. Of one set of weights
        the disagreement is the mismatch of two implementations; carried rollouts come from older weights, so theirs is
        apart, as drift."""
        difference = (old.log_probs - row.sampled_log_probs).abs()
        undecided = {
            "policy/entropy": old.entropies.double().sum(),
            "policy/collision_probability": old.collisions.double().sum(),
        }
        self.scores.add(undecided, row.num_loss_tokens)
        mismatch, drift = difference[row.is_fresh], difference[~row.is_fresh]
        self.mismatch.add({"policy/log_prob_mismatch": mismatch.double().sum()}, len(mismatch))
        self.mismatch.largest = max(self.mismatch.largest, float(mismatch.max()) if len(mismatch) else 0.0)
        self.drift.add({"policy/log_prob_drift_of_carried": drift.double().sum()}, len(drift))

    def _learn(
        self, mini_batch: int, rows: list[Row], old: Sequence[Tensor | None], reference: Sequence[Tensor | None]
    ) -> float | None:
        """One optimizer step on a mini-batch; its gradient norm, or None when all ranks skipped it."""
        state, algorithm = self.state, self.state.config.algorithm
        loss_of = LOSSES[self.plan.objective]
        is_last = 0 < mini_batch == len(self.plan.mini_batches) - 1
        max_tokens = state.config.rollouts.max_response_tokens
        size = MiniBatchSize(self.plan.num_loss_tokens(mini_batch), self.plan.num_responses(mini_batch), max_tokens)

        def loss(index: int, row: Row, scores: TokenScores) -> tuple[Tensor, dict[str, Tensor]]:
            old_log_probs = old[index]
            if old_log_probs is None:
                current = TokenScores(*(score.detach() for score in scores))
                old_log_probs = current.log_probs
                self._record(row, current)
            batch = token_batch(row, scores, old_log_probs, reference[index], size, algorithm.aggregation)
            if is_last and not self.is_supervised:
                self.gain.add(batch)
            result = loss_of(batch, algorithm)
            return result.loss, {"policy/loss": result.loss.detach(), **result.metrics}

        TRACK.part(f"mini-batch {mini_batch + 1} of {len(self.plan.mini_batches)}")
        values = train_rows(state.chunks, rows, loss)
        TRACK.step("optimizer")
        is_finite = all(math.isfinite(float(row_values["policy/loss"])) for row_values in values)
        norm = guarded_step(
            state.optimizer, self.plan.learning_rate, state.config.policy.optim, is_finite, state.device
        )
        if norm is not None:
            for row, row_values in zip(rows, values, strict=False):  # no values except on the last stage
                self.losses.add(row_values, row.num_loss_tokens)
        return norm


def _of_all_ranks(mine: Counted, group: dist.ProcessGroup) -> list[Counted]:
    """What every rank of a group has counted, in their order. Collective."""
    every = [mine] * group.size()
    dist.all_gather_object(every, mine, group=group)
    return every


def _cut_like(mini_batches: Sequence[Sequence[Row]], scores: Sequence[Tensor]) -> list[list[Tensor | None]]:
    """A flat list of scores cut like the mini-batches; None for every row where there are no scores."""
    remaining = iter(scores)
    return [[next(remaining, None) for _ in rows] for rows in mini_batches]
