"""One update on one rank: score the plan's tokens, then one optimizer step per mini-batch.

Sums over tokens stay on the device until they are read. Tokens that Clip-Cov and KL-Cov hold are chosen over all
data-parallel ranks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from nemo_brorl.algorithm.covariance import choose_held
from nemo_brorl.algorithm.losses import SUPERVISED, find_loss
from nemo_brorl.algorithm.token_batch import MiniBatchSize, Sequences, TokenBatch, TokenLengths, token_weights
from nemo_brorl.config.algorithm import CovarianceConfig
from nemo_brorl.policy.model.log_probs import TokenScores
from nemo_brorl.policy.model.moe import RouterReplay, take_replay_metrics
from nemo_brorl.policy.process.rank_progress import PROGRESS
from nemo_brorl.policy.rank.fp8_check import Fp8Check
from nemo_brorl.policy.rank.pipeline import RowLoss, score_rows, train_rows
from nemo_brorl.policy.rows.packed_rows import Row, fetch_groups, segments_of
from nemo_brorl.policy.state.optimizer import gather_weights, guarded_step
from nemo_brorl.policy.state.rank_state import RankState
from nemo_brorl.types import MicroBatch, UpdatePlan, UpdateReport

MiniBatches = Sequence[Sequence[Row]]
RowLogProbs = list[Tensor | None]  # [n] per row of a mini-batch
RowTokens = list[Tensor | None]  # [n] bool per row of a mini-batch; None: no token of it
Counted = TypeVar("Counted")
Metrics = dict[str, float]

_MAX_LOG = 20.0  # keeps the ratio of a response finite


class Update:
    """One UpdatePlan on one rank; made for one use.

    Old log-probs are those of the weights before the first step. So the first mini-batch needs no pass to score it: its
    own log-probs, without gradient, are the old ones.
    """

    def __init__(self, state: RankState, fp8_check: Fp8Check, plan: UpdatePlan) -> None:
        self.state = state
        self.fp8_check = fp8_check
        self.plan = plan
        self.is_supervised = plan.objective in SUPERVISED
        self.seconds = {"fetch": 0.0, "log_prob": 0.0, "update": 0.0}
        self.losses = TokenSums()
        self.scores = TokenSums()
        self.mismatch = TokenSums()
        self.drift = TokenSums()
        self.fp8_mismatch: Metrics = {}
        self.gain = MeasuredGain()

    def run(self) -> UpdateReport:
        """Fetch, score, learn. Collective. The report is this rank's; metrics are empty but on the last pipeline
        stage."""
        with self._timed("fetch"):
            mini_batches = self._mini_batches()
        with self._timed("log_prob"):
            self.fp8_mismatch = self.fp8_check.mismatch(mini_batches[0][0])  # first, see there
            old = self._old_log_probs(mini_batches)
            reference = self._reference_log_probs(mini_batches)
        norms: list[float] = []
        with self._timed("update"):
            for index, rows in enumerate(mini_batches):
                norm = self._learn(index, rows, old[index], reference[index])
                if norm is not None:
                    norms.append(norm)
            gather_weights(self.state.chunks)
        routed = self._routed()
        metrics: Metrics = {}
        if parallel_state.is_pipeline_last_stage(ignore_virtual=True):
            metrics = self._metrics(norms) | routed
        return UpdateReport(self.plan.version, metrics, self.seconds, len(norms), len(mini_batches) - len(norms))

    def _metrics(self, norms: Sequence[float]) -> Metrics:
        """Token means over the data-parallel ranks, a collective; loss and norm of mini-batches not skipped, or NaN."""
        metrics = {"policy/loss": math.nan}
        metrics |= self.losses.over_data_ranks().means()
        metrics["policy/grad_norm"] = sum(norms) / len(norms) if norms else math.nan
        if not self.is_supervised:
            mismatch = self.mismatch.over_data_ranks()
            metrics["policy/log_prob_mismatch"] = math.nan
            metrics |= mismatch.means()
            metrics["policy/log_prob_mismatch_max"] = mismatch.largest
            metrics |= self.scores.over_data_ranks().means()
            metrics |= self.drift.over_data_ranks().means()
            metrics |= self._gain_over_data_ranks().metrics()
        return metrics | self.fp8_mismatch

    def _routed(self) -> Metrics:
        """What became of the engine's routes. Collective, over the stages of a pipeline too."""
        if not self.state.config.policy.moe.router_replay or self.is_supervised:
            return {}
        replays: list[RouterReplay] = []
        for model in self.state.models:
            replays += model.router_replays
        return take_replay_metrics(replays, self.state.device.torch_device)

    def _gain_over_data_ranks(self) -> MeasuredGain:
        """Context-parallel ranks have all counted the same responses, so one of them speaks for all."""
        merged = MeasuredGain()
        for gain in of_all_ranks(self.gain, parallel_state.get_data_parallel_group()):
            merged.merge(gain)
        return merged

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        PROGRESS.part(part)
        start = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - start

    def _mini_batches(self) -> list[list[Row]]:
        """This data-parallel rank's rows, by mini-batch."""
        rank = parallel_state.get_data_parallel_rank()
        mine = [mini_batch[rank] for mini_batch in self.plan.mini_batches]
        micro_batches: list[MicroBatch] = []
        for mini_batch in mine:
            micro_batches += mini_batch
        groups = fetch_groups(self.plan, micro_batches)
        segments = [segments_of(self.plan, micro_batch, groups) for micro_batch in micro_batches]
        temperature = 1.0 if self.is_supervised else self.state.config.rollouts.temperature
        rows = self.state.rows(segments, temperature)
        cut = []
        for mini_batch in mine:
            size = len(mini_batch)
            cut.append(rows[:size])
            rows = rows[size:]
        return cut

    def _old_log_probs(self, mini_batches: MiniBatches) -> list[RowLogProbs]:
        """Under the current weights; None where they come with the training pass, and off the last stage."""
        old = _no_log_probs(mini_batches)
        if self.is_supervised:
            return old
        later = mini_batches[1:]
        for index, scores in enumerate(self._score(later), start=1):
            for number, row_scores in enumerate(scores):
                self._record(mini_batches[index][number], row_scores)
                old[index][number] = row_scores.log_probs
        return old

    def _reference_log_probs(self, mini_batches: MiniBatches) -> list[RowLogProbs]:
        """Under the reference weights; None without a KL term, and off the last stage."""
        reference = _no_log_probs(mini_batches)
        if self.is_supervised or self.state.reference is None:
            return reference
        with self.state.reference.swapped_in():
            for index, scores in enumerate(self._score(mini_batches)):
                for number, row_scores in enumerate(scores):
                    reference[index][number] = row_scores.log_probs
        return reference

    def _score(self, mini_batches: MiniBatches) -> list[list[TokenScores]]:
        """Scores of every row, by mini-batch; of no row except on the last stage."""
        rows: list[Row] = []
        for mini_batch in mini_batches:
            rows += mini_batch
        if not rows:
            return []
        scores = score_rows(self.state.chunks, rows)
        cut = []
        for mini_batch in mini_batches:
            size = len(mini_batch)
            cut.append(scores[:size])
            scores = scores[size:]
        return cut

    def _record(self, row: Row, old: TokenScores) -> None:
        """Count how far sampler and trainer disagree on a row, and how undecided the policy is. Of one set of weights
        the disagreement is the mismatch of two implementations; carried rollouts come from older weights, so theirs is
        apart, as drift."""
        undecided = {
            "policy/entropy": old.entropies.double().sum(),
            "policy/collision_probability": old.collisions.double().sum(),
        }
        self.scores.add(undecided, row.num_loss_tokens)
        if row.num_loss_tokens == 0:
            return
        difference = (old.log_probs - row.sampled_log_probs).abs()
        mismatch = torch.where(row.is_fresh, difference, 0.0)
        drift = torch.where(row.is_fresh, 0.0, difference)
        total_mismatch = mismatch.double().sum()
        self.mismatch.add({"policy/log_prob_mismatch": total_mismatch}, row.num_fresh_tokens)
        self.mismatch.largest = torch.maximum(mismatch.max(), torch.as_tensor(self.mismatch.largest))
        total_drift = drift.double().sum()
        num_carried = row.num_loss_tokens - row.num_fresh_tokens
        self.drift.add({"policy/log_prob_drift_of_carried": total_drift}, num_carried)

    def _learn(
        self,
        index: int,
        rows: list[Row],
        old: RowLogProbs,
        reference: RowLogProbs,
    ) -> float | None:
        """One optimizer step on mini-batch `index`; its gradient norm, or None when all ranks skipped it."""
        state = self.state
        PROGRESS.part(
            f"mini-batch {index + 1} of {len(self.plan.mini_batches)}",
            mini_batch=index,
            data_rank=parallel_state.get_data_parallel_rank(),
        )
        covariance = state.config.algorithm.covariance
        held: RowTokens = [None] * len(rows)
        if covariance.kind != "none" and not self.is_supervised:
            held = held_tokens(rows, covariance, self.plan.version, state.row_settings.device)
        loss = self._loss(index, old, reference, held)
        values = train_rows(state.chunks, rows, loss)
        PROGRESS.step("optimizer")
        losses = [row_values["policy/loss"] for row_values in values]
        is_finite = not losses or math.isfinite(torch.stack(losses).sum())
        optim = state.config.policy.optim
        norm = guarded_step(state.optimizer, self.plan.learning_rate, optim, is_finite, state.device)
        if norm is not None:
            for row, row_values in zip(rows, values, strict=False):  # no values except on the last stage
                self.losses.add(row_values, row.num_loss_tokens)
        return norm

    def _loss(
        self,
        index: int,
        old: RowLogProbs,
        reference: RowLogProbs,
        held: RowTokens,
    ) -> RowLoss:
        """The loss sum and metric sums of a row of mini-batch `index`."""
        algorithm = self.state.config.algorithm
        loss_of = find_loss(self.plan.objective, algorithm)
        size = MiniBatchSize(
            self.plan.num_loss_tokens(index),
            self.plan.num_responses(index),
            self.plan.num_turns(index),
            self.state.config.rollouts.max_response_tokens,
        )
        is_last = 0 < index == len(self.plan.mini_batches) - 1
        measures_gain = is_last and not self.is_supervised

        def loss(
            number: int,
            row: Row,
            scores: TokenScores,
        ) -> tuple[Tensor, dict[str, Tensor]]:
            old_log_probs = old[number]
            if old_log_probs is None:
                current = TokenScores(*(score.detach() for score in scores))
                old_log_probs = current.log_probs
                self._record(row, current)
            batch = _token_batch(row, scores, old_log_probs, reference[number], size, algorithm.aggregation)
            batch = replace(batch, is_held=held[number])
            if measures_gain:
                self.gain.add(batch, row.is_measured)
            result = loss_of(batch, algorithm)
            metrics = {"policy/loss": result.loss.detach(), **result.metrics}
            return self.plan.loss_scale * result.loss, metrics

        return loss


def _token_batch(
    row: Row,
    scores: TokenScores,
    old: Tensor,
    reference: Tensor | None,
    size: MiniBatchSize,
    aggregation: str,
) -> TokenBatch:
    """The tokens of a row on this rank as a loss reads them; `old` and `reference` are log-probs [n]."""
    device = row.advantages.device
    index = torch.from_numpy(row.response_index).to(device)
    num_sampled = [response.num_sampled for response in row.responses]
    lengths = torch.tensor(num_sampled, dtype=torch.float32, device=device)
    turns = [len(response.turn_lengths) for response in row.responses]
    num_turns = torch.tensor(turns, dtype=torch.float32, device=device)
    token_lengths = TokenLengths(lengths[index], row.turn_lengths, num_turns[index])
    group = None  # of the ranks that share the tokens of a response
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
        sequences=Sequences(index, lengths, group),
    )


def _no_log_probs(mini_batches: MiniBatches) -> list[RowLogProbs]:
    """None for every row."""
    return [[None] * len(rows) for rows in mini_batches]


@dataclass
class TokenSums:
    """Sums over tokens; divided by their number at the end. Until then they stay on the device: reading one waits for
    all that the GPU was told to do before."""

    num_tokens: int = 0
    values: dict[str, Any] = field(default_factory=dict)
    largest: Any = 0.0

    def add(self, values: Mapping[str, Any], num_tokens: int) -> None:
        self.num_tokens += num_tokens
        for name, value in values.items():
            if isinstance(value, Tensor):
                value = value.detach().double()
            self.values[name] = self.values.get(name, 0.0) + value

    def on_host(self) -> TokenSums:
        """The same as numbers."""
        values = {name: float(value) for name, value in self.values.items()}
        return TokenSums(self.num_tokens, values, float(self.largest))

    def over_data_ranks(self) -> TokenSums:
        """Summed in the order of the data-parallel ranks, so that repeats are bit-identical. Collective."""
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        merged = TokenSums()
        for sums in of_all_ranks(self.on_host(), group):
            merged.add(sums.values, sums.num_tokens)
            merged.largest = max(merged.largest, sums.largest)
        return merged

    def means(self) -> Metrics:
        """Means over tokens; empty without tokens."""
        if self.num_tokens == 0:
            return {}
        return {name: value / self.num_tokens for name, value in self.values.items()}


def of_all_ranks(mine: Counted, group: dist.ProcessGroup) -> list[Counted]:
    """What every rank of a group has counted, in their order. Collective."""
    gathered = [mine] * group.size()
    dist.all_gather_object(gathered, mine, group=group)
    return gathered


def held_tokens(
    rows: Sequence[Row],
    settings: CovarianceConfig,
    seed: int,
    device: torch.device,
) -> RowTokens:
    """Tokens of this rank's rows of a mini-batch that Clip-Cov and KL-Cov hold. Collective over the data-parallel and
    context-parallel ranks."""
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)

    def gather(own: Any) -> list[Any]:
        return of_all_ranks(own, group)

    log_probs = [torch.empty(0, device=device)]
    advantages = [torch.empty(0, device=device)]
    draws = [torch.empty(0, device=device)]
    for row in rows:
        log_probs.append(row.sampled_log_probs)
        advantages.append(row.advantages)
        if settings.kind == "clip_cov":
            drawn = torch.from_numpy(row.draws(seed))
            draws.append(drawn.to(device))
    is_held = choose_held(
        torch.cat(log_probs),
        torch.cat(advantages),
        torch.cat(draws),
        settings,
        gather,
    )
    sizes = [row.num_loss_tokens for row in rows]
    return list(is_held.split(sizes))


class MeasuredGain:
    """Sums over responses, of the measured gain of an update; one for an update on a rank.

    The gain is what an update did to the chance of good responses, measured and not predicted. Every mini-batch holds
    an equal, seeded share of every group, drawn from the policy the update starts from. No step has trained on the last
    one when its turn comes. Its log-probs then and before the first step are both there already, and mean A (π_now /
    π_old − 1) over its responses estimates how much the steps so far have raised the expected advantage. With
    REINFORCE++-baseline an advantage is in standard deviations of the batch's rewards.

    The last mini-batch is a fresh sample only of groups that its own rollouts did not bring into the batch. Dynamic
    sampling keeps a group because it disagrees: of a prompt with success rate p the rollouts of kept groups succeed
    with p / (1 − (1 − p)^N), 3.6 p for p = 0.02 and N = 16. So only groups count whose other rollouts disagree by
    themselves (`algorithm/packing.py`, `fresh_in_the_last`); given these, the last ones are drawn from the policy and
    the estimate is unbiased for these groups. None count with `train_rollouts`, whose rollouts are chosen by
    reward. What remains: an advantage is taken against a mean that the rollout itself is part of, a factor 1 − 1/N;
    under waves the rollouts of a group also decided on its size; rollouts of older weights count as if they were of
    those that the update starts from.
    """

    def __init__(self) -> None:
        self.num = 0
        self.total = 0.0
        self.squares = 0.0

    def add(self, batch: TokenBatch, is_measured: Sequence[bool]) -> None:
        """Count those responses [R] of a row of the last mini-batch that are measured. Collective over the ranks that
        share its responses' tokens."""
        sequences = batch.sequences
        lengths = sequences.lengths.clamp(min=1)  # one without tokens has gained nothing
        advantages = (sequences.sums(batch.advantages) / lengths).double()
        log_ratios = sequences.sums(batch.log_probs - batch.old_log_probs).double()
        ratios = log_ratios.clamp(-_MAX_LOG, _MAX_LOG).exp()
        is_counted = torch.tensor(is_measured, dtype=torch.bool, device=ratios.device)
        gains = (advantages * (ratios - 1))[is_counted]
        self.num += len(gains)
        self.total += float(gains.sum())
        self.squares += float(gains.square().sum())

    def merge(self, other: MeasuredGain) -> None:
        """Add another rank's responses."""
        self.num += other.num
        self.total += other.total
        self.squares += other.squares

    def metrics(self) -> dict[str, float]:
        """The gain, its standard error over responses, and one over the other; nothing for less than two responses."""
        if self.num < 2:
            return {}
        mean = self.total / self.num
        variance = max(self.squares / self.num - mean**2, 0.0)
        error = math.sqrt(variance / (self.num - 1))
        ratio = mean / error if error > 0 else 0.0
        return {
            "mass_balance/measured_gain": mean,
            "mass_balance/measured_gain_error": error,
            "mass_balance/signal_to_noise": ratio,
        }
