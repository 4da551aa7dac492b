"""Run one update on one rank: score the plan's tokens, then take one optimizer step per mini-batch.

Old log-probs, reference log-probs and losses are computed on rows (`rows.packed_rows`). Measurements go into
`TokenSums`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

import torch
from megatron.core import parallel_state
from torch import Tensor

from nemo_brorl.algorithm.losses import SUPERVISED, find_loss
from nemo_brorl.algorithm.token_batch import MiniBatchSize, ResponseIndex, TokenBatch, TokenLengths, token_weights
from nemo_brorl.policy.model.log_probs import TokenScores
from nemo_brorl.policy.model.router_replay import RouterReplay, take_replay_metrics
from nemo_brorl.policy.process.rank_progress import PROGRESS
from nemo_brorl.policy.rank.covariance_masks import compute_covariance_masks
from nemo_brorl.policy.rank.fp8_check import Fp8Check
from nemo_brorl.policy.rank.measured_gain import MeasuredGain
from nemo_brorl.policy.rank.pipeline import RowLoss, score_rows, train_rows
from nemo_brorl.policy.rank.score_sums import ScoreSums
from nemo_brorl.policy.rank.teachers import Teachers, over_own_tokens
from nemo_brorl.policy.rank.token_sums import TokenSums, of_all_ranks
from nemo_brorl.policy.rows.packed_rows import Row, build_packed_groups, fetch_groups
from nemo_brorl.policy.state.optimizer import gather_weights, guarded_step
from nemo_brorl.policy.state.rank_state import RankState
from nemo_brorl.types import MicroBatch, UpdatePlan, UpdateReport

MiniBatches = Sequence[Sequence[Row]]
RowLogProbs = list[Tensor | None]  # log-probs [n] of each row of a mini-batch
RowTokens = list[Tensor | None]  # mask [n] of each row of a mini-batch; None: no token is selected
Metrics = dict[str, float]
Item = TypeVar("Item")


class Update:
    """One UpdatePlan on one rank, for a single use.

    Old log-probs are those of the weights before the first step. So the first mini-batch needs no pass to score it: its
    training log-probs, without gradient, are the old ones. With `policy.old_log_probs=sampler` they are those of the
    sampler, and only the first mini-batch is compared with it.
    """

    def __init__(self, state: RankState, fp8_check: Fp8Check, plan: UpdatePlan) -> None:
        self.state = state
        self.fp8_check = fp8_check
        self.plan = plan
        self.is_supervised = plan.objective in SUPERVISED
        self.takes_sampled = state.settings.policy.old_log_probs == "sampler" and not self.is_supervised
        self.seconds = {"fetch": 0.0, "log_prob": 0.0, "update": 0.0}
        self.losses = TokenSums()
        self.scores = ScoreSums()
        self.gain = MeasuredGain()
        self.teachers = Teachers(state.settings, plan)

    def run(self) -> UpdateReport:
        """Fetch rollouts, compute their log-probs, train on them, and return this policy rank's report.

        Collective over all policy ranks. Metrics are empty except on the last pipeline stage.
        """
        with self._timed("fetch"):
            mini_batches = self._mini_batches()
        with self._timed("log_prob"):
            # This comes first, because the delayed recipe has no scales until a row has gone through the model.
            fp8_mismatch = self.fp8_check.mismatch(mini_batches[0][0])
            old = self._old_log_probs(mini_batches)
            reference = self._reference_log_probs(mini_batches)
        norms: list[float] = []
        with self._timed("update"):
            for index, rows in enumerate(mini_batches):
                norm = self._learn(index, rows, old[index], reference[index])
                if norm is not None:
                    norms.append(norm)
            # Weight gathers that overlap with a forward pass need this after the last step: no forward pass follows.
            gather_weights(self.state.chunks)
        # All stages take part in this collective. Only the last stage computes the metrics below.
        routed = self._routed()
        metrics: Metrics = {}
        if parallel_state.is_pipeline_last_stage(ignore_virtual=True):
            metrics = {**self._metrics(norms), **fp8_mismatch, **routed}
        return UpdateReport(self.plan.version, metrics, self.seconds, len(norms), len(mini_batches) - len(norms))

    def _metrics(self, norms: Sequence[float]) -> Metrics:
        """Return the update's metrics, as means over the tokens of the data-parallel ranks.

        Collective. Loss and gradient norm are over the mini-batches that were not skipped, or NaN without one.
        """
        metrics = {
            "policy/loss": math.nan,
            **over_own_tokens(self.losses.over_data_ranks().means()),
            "policy/grad_norm": sum(norms) / len(norms) if norms else math.nan,
        }
        if not self.is_supervised:
            metrics.update(self.scores.metrics())
            metrics.update(self._gain_over_data_ranks().metrics())
        return metrics

    def _routed(self) -> Metrics:
        """Return the metrics of MoE router replay in this update.

        Collective over all ranks, pipeline stages included.
        """
        if not self.state.settings.policy.moe.router_replay or self.is_supervised:
            return {}
        replays: list[RouterReplay] = []
        for model in self.state.models:
            replays += model.router_replays
        return take_replay_metrics(replays, self.state.device.torch_device)

    def _gain_over_data_ranks(self) -> MeasuredGain:
        """Return the update's measured gain in expected advantage, merged over the data-parallel ranks.

        Collective. Context-parallel ranks have counted the same responses, so only one of them is merged.
        """
        merged = MeasuredGain()
        for gain in of_all_ranks(self.gain.on_host(), parallel_state.get_data_parallel_group()):
            merged.merge(gain)
        return merged

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        PROGRESS.mark_part(part)
        start = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - start

    def _mini_batches(self) -> list[list[Row]]:
        """Return the rows of tokens of each mini-batch that this data-parallel rank trains on."""
        rank = parallel_state.get_data_parallel_rank()
        own_mini_batches = [mini_batch[rank] for mini_batch in self.plan.mini_batches]
        micro_batches: list[MicroBatch] = []
        for mini_batch in own_mini_batches:
            micro_batches += mini_batch
        groups = fetch_groups(self.plan, micro_batches)
        packed_groups = [build_packed_groups(self.plan, micro_batch, groups) for micro_batch in micro_batches]
        temperature = 1.0 if self.is_supervised else self.state.settings.rollouts.temperature
        # Rows are made for all mini-batches at once: with virtual stages, rows that run together need one length.
        rows = self.state.rows(packed_groups, temperature)
        return _like(own_mini_batches, rows)

    def _old_log_probs(self, mini_batches: MiniBatches) -> list[RowLogProbs]:
        """Return each packed row's log-probs under the weights before the update, by mini-batch.

        They are None in the first mini-batch, whose training pass computes them, and except on the last pipeline stage.
        The sampler's are known on all stages, without a pass.
        """
        old = _no_log_probs(mini_batches)
        if self.is_supervised:
            return old
        if self.takes_sampled:
            for rows, log_probs in zip(mini_batches, old, strict=True):
                log_probs[:] = (row.sampled_log_probs for row in rows)
            return old
        # No step has changed the weights when the first mini-batch is trained on, so its training pass gives the old
        # log-probs.
        later = mini_batches[1:]
        for index, scores in enumerate(self._score(later), start=1):
            for number, row_scores in enumerate(scores):
                self.scores.add(mini_batches[index][number], row_scores)
                old[index][number] = row_scores.log_probs
        return old

    def _reference_log_probs(self, mini_batches: MiniBatches) -> list[RowLogProbs]:
        """Return each packed row's log-probs under the weights of the KL term's references, by mini-batch.

        Tokens have those of the reference that their prompt's task has; a task without one has any. They are None
        without a KL term, and except on the last pipeline stage.
        """
        reference = _no_log_probs(mini_batches)
        for number, weights in enumerate(() if self.is_supervised else self.state.references):
            asked: dict[tuple[int, int], Row] = {}
            for index, rows in enumerate(mini_batches):
                asked |= {(index, place): row for place, row in enumerate(rows) if self.teachers.scores(number, row)}
            with weights.swapped_in():
                scores = score_rows(self.state.chunks, [*asked.values()]) if asked else []
            # Only the last pipeline stage has scores.
            for ((index, place), row), (log_probs, *_) in zip(asked.items(), scores, strict=False):
                if (others := reference[index][place]) is not None:
                    log_probs = torch.where(self.teachers.tokens(row, number), log_probs, others)
                reference[index][place] = log_probs
        return reference

    def _score(self, mini_batches: MiniBatches) -> list[list[TokenScores]]:
        """Return log-probs and entropies of the tokens in every packed row under the current weights, by mini-batch.

        The result is empty except on the last pipeline stage.
        """
        rows: list[Row] = []
        for mini_batch in mini_batches:
            rows += mini_batch
        if not rows:
            return []
        scores = score_rows(self.state.chunks, rows)
        return _like(mini_batches, scores)

    def _learn(
        self,
        index: int,
        rows: list[Row],
        old: RowLogProbs,
        reference: RowLogProbs,
    ) -> float | None:
        """Take one optimizer step on mini-batch `index`, and return the gradient norm, or None if the step was skipped.

        All ranks skip a mini-batch together.
        """
        state = self.state
        PROGRESS.mark_part(
            f"mini-batch {index + 1} of {len(self.plan.mini_batches)}",
            mini_batch=index,
            data_rank=parallel_state.get_data_parallel_rank(),
        )
        covariance = state.settings.algorithm.covariance
        covariance_masks: RowTokens = [None] * len(rows)
        if covariance.kind != "none" and not self.is_supervised:
            covariance_masks = compute_covariance_masks(rows, covariance, self.plan.version, state.row_settings.device)
        loss = self._loss(index, old, reference, covariance_masks)
        values = train_rows(state.chunks, rows, loss)
        PROGRESS.mark_step("optimizer")
        losses = [row_values["policy/loss"] for row_values in values]
        loss_sum = torch.stack(losses).sum() if losses else None
        optim = state.settings.policy.optim
        norm = guarded_step(state.optimizer, self.plan.learning_rate, optim, loss_sum, state.device)
        if norm is not None:
            # Only the last pipeline stage has values.
            for row, row_values in zip(rows, values, strict=False):
                self.losses.add(row_values, row.num_loss_tokens)
        return norm

    def _loss(
        self,
        index: int,
        old: RowLogProbs,
        reference: RowLogProbs,
        covariance_masks: RowTokens,
    ) -> RowLoss:
        """Return a function that computes the loss sum and the metric sums of one packed row in mini-batch `index`."""
        algorithm = self.state.settings.algorithm
        loss_of = find_loss(self.plan.objective, algorithm)
        size = MiniBatchSize(
            self.plan.num_loss_tokens(index),
            self.plan.num_responses(index),
            self.plan.num_turns(index),
            self.state.settings.rollouts.max_response_tokens,
        )
        # With a single mini-batch no step precedes it, so there is no gain to measure.
        is_last = 0 < index == len(self.plan.mini_batches) - 1
        measures_gain = is_last and not self.is_supervised

        def loss(
            number: int,
            row: Row,
            scores: TokenScores,
        ) -> tuple[Tensor, dict[str, Tensor]]:
            old_log_probs = old[number]
            if old_log_probs is None or (index == 0 and self.takes_sampled):
                # No step has changed the weights yet.
                current = TokenScores(*(score.detach() for score in scores))
                old_log_probs = current.log_probs if old_log_probs is None else old_log_probs
                self.scores.add(row, current)
            batch = _token_batch(
                row, scores, old_log_probs, reference[number], covariance_masks[number], size, algorithm.aggregation
            )
            if algorithm.kl.teachers:
                batch = replace(batch, has_reference=~self.teachers.tokens(row, None))
            if measures_gain:
                self.gain.add(batch, row.measured)
            result = loss_of(batch, algorithm)
            # The loss comes last: it decides whether the step is skipped, whatever a user's own loss reports.
            metrics = {**result.metrics, **self.teachers.sums(row, batch), "policy/loss": result.loss.detach()}
            return self.plan.loss_scale * result.loss, metrics

        return loss


def _token_batch(
    row: Row,
    scores: TokenScores,
    old: Tensor,
    reference: Tensor | None,
    covariance_mask: Tensor | None,
    size: MiniBatchSize,
    aggregation: str,
) -> TokenBatch:
    """Return a packed row's tokens on this policy rank as the `TokenBatch` that loss functions read.

    `old` are the tokens' log-probs [n] before the update, `reference` those of the KL term's reference policy.
    """
    lengths, index = row.response_lengths, row.response_of
    token_lengths = TokenLengths(lengths[index], row.turn_lengths, row.num_turns[index])
    group = None  # ranks that share the tokens of a response
    if parallel_state.get_context_parallel_world_size() > 1:
        group = parallel_state.get_context_parallel_group()
    return TokenBatch(
        log_probs=scores.log_probs,
        entropies=scores.entropies,
        old_log_probs=old,
        sampled_log_probs=row.sampled_log_probs,
        reference_log_probs=reference,
        advantages=row.advantages,
        weights=token_weights(aggregation, token_lengths, size),
        sequences=ResponseIndex(index, lengths, group),
        covariance_mask=covariance_mask,
    )


def _like(mini_batches: Sequence[Sequence[Any]], of_rows: Sequence[Item]) -> list[list[Item]]:
    """Return a list of values, one per row of tokens, split into one list per mini-batch.

    An empty list gives empty parts.
    """
    left = iter(of_rows)
    return [list(islice(left, len(mini_batch))) for mini_batch in mini_batches]


def _no_log_probs(mini_batches: MiniBatches) -> list[RowLogProbs]:
    return [[None] * len(rows) for rows in mini_batches]
