"""Implement the Policy port on Megatron: all policy ranks as one object on the driver.

The driver imports this module, so it imports neither torch nor megatron.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from nemo_brorl.cluster.process_placement import Places
from nemo_brorl.cluster.ray_adapter import end_in_order
from nemo_brorl.config.model_rules import check_policy_fits
from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import BroRLError, RankLostError
from nemo_brorl.core.stall_watch import Heartbeat
from nemo_brorl.policy.driver.stalled_ranks import ProgressPoll, values_of
from nemo_brorl.policy.process.rank_process import rank_process
from nemo_brorl.policy.process.rank_progress import POLL_GROUP
from nemo_brorl.policy.rank.worker import LearnerMethod, PolicyWorker
from nemo_brorl.types import (
    Float32,
    RankRehearsal,
    StreamedBucket,
    TensorInfo,
    UpdatePlan,
    UpdateReport,
    WeightLink,
)
from nemo_brorl.weights.source import SLICE_S, Calls, WeightSource

_CPUS_PER_RANK = 0.1  # small, because ranks and engines compute in turn and must fit on one node together
_CLOSE_TIMEOUT_S = 30.0
_DEATH_TIMEOUT_S = 5.0  # seconds to find out which rank has died, once a call has failed
_log = get_logger(__name__)

TokenLists = Sequence[Sequence[int]]


class _Call(NamedTuple):
    """A method call to several ranks that has not ended."""

    method: str
    references: Calls
    asked_at: float  # time of the call on the timeline's clock, or an earlier one


class MegatronPolicy:
    """The trained model on all its ranks.

    The constructor starts the ranks and returns at once. `wait_ready` waits until they have loaded the model. After
    that call any method, one at a time, and `close` at the end.

    If engines share the policy's GPUs (`loads_last`), the model is loaded in `wait_ready`. Call it once the engines are
    ready. vLLM counts GPU memory that is allocated while it starts as its own, and needs its whole share to be free.
    """

    def __init__(
        self,
        settings: RankSettings,
        model_folder: Path,
        heartbeat: Heartbeat | None = None,
        places: Places | None = None,
    ) -> None:
        """Start the policy's ranks as Ray actors.

        `heartbeat` records the ranks' progress. `places`, which places the ranks on GPUs, is needed on machines with
        GPUs. Raises ConfigError or ModelError if the model folder alone shows that the settings do not fit.
        """
        self.layout = settings.layout
        check_policy_fits(settings.policy, model_folder, self.layout.on_gpu)
        self.heartbeat = heartbeat or Heartbeat()
        self.model_folder = model_folder
        self.ranks = self._start_ranks(settings, places or Places(None))
        self.weights = WeightSource(self.ranks, settings.generation, settings.sizes.weight_transport, self._wait)
        self.poll = ProgressPoll({})  # progress of the current call
        self._updating: _Call | None = None
        self._asked_at = 0.0  # time of the last call to all ranks
        # Meeting point of the ranks. None: they have been asked to load the model.
        self._address: Any = self.ranks[0].open_store.remote()
        self._starting: Calls = []
        for number, rank in enumerate(self.ranks):
            self._starting.append((number, rank.prepare.remote()))
        self.loads_last = settings.sizes.shares_gpus
        if not self.loads_last:
            self._begin_loading()

    def _start_ranks(self, settings: RankSettings, places: Places) -> list[Any]:
        """Start one Ray actor per policy rank, and return the actors in rank order."""
        # `progress` must answer while another method computes or hangs.
        actor: Any = ray.remote(
            num_cpus=_CPUS_PER_RANK,
            concurrency_groups={POLL_GROUP: 1},
        )(PolicyWorker)
        ranks = []
        for number in range(self.layout.world_size):
            process = rank_process(settings, self.model_folder, number)
            placed = actor.options(runtime_env=process, **places.policy_options(number))
            ranks.append(placed.remote(settings, self.model_folder, number))
        return ranks

    def wait_ready(self) -> None:
        """Wait until every policy rank has loaded the model.

        Raises the first error of a rank: ModelError, ConfigError, ResourceError, or TrainingError for a rank that was
        lost.
        """
        self._begin_loading()
        self._wait(self._starting, "start")

    def _begin_loading(self) -> None:
        if self._address is None:
            return
        for number, rank in enumerate(self.ranks):
            started = rank.start.remote(self._address)
            self._starting.append((number, started))
        self._address = None

    @property
    def data_parallel_size(self) -> int:
        return self.layout.data

    @property
    def weight_transport(self) -> str:
        return self.weights.transport

    def update(self, plan: UpdatePlan) -> UpdateReport:
        self.begin_update(plan)
        with self.heartbeat.stage("policy update", self.stalled):
            report = self.finish_update()
        assert report is not None, "a wait without a timeout ended without a report"
        return report

    def begin_update(self, plan: UpdatePlan) -> None:
        calls = self._call_all("update", ray.put(plan))
        self._updating = self._begin(calls, "update")

    def finish_update(self, timeout_s: float | None = None) -> UpdateReport | None:
        """Wait for the policy's update and return its report, or None if it takes longer than `timeout_s` seconds.

        The heartbeat, which records the run's current stage and its progress, counts this wait as no stage, so that a
        caller can do other work meanwhile. Call `stalled` to learn which policy ranks make no progress.
        """
        assert self._updating is not None, "no update was begun"
        reports: list[UpdateReport] | None = self._results(self._updating, timeout_s)
        if reports is None:
            return None
        self._updating = None
        chosen = reports[self.layout.report_rank]
        seconds = {}
        for part in chosen.seconds:
            # The step waits for the slowest rank.
            seconds[part] = max(report.seconds[part] for report in reports)
        return replace(chosen, seconds=seconds)

    def stalled(self, seconds: float) -> list[str]:
        """Describe the policy ranks that have made no progress for more than `seconds` in the method that they run.

        Any thread may call this function.
        """
        return self.poll.stalled(seconds)

    def rehearse(self, num_tokens: int) -> list[RankRehearsal]:
        return self._on_all("rehearse", num_tokens)

    def log_probs(
        self,
        prompt_ids: TokenLists,
        response_ids: TokenLists,
        with_fp8: bool = True,
    ) -> list[Float32]:
        """Return the policy's log-probs [T] of every response at the rollouts' temperature, comparable with vLLM's."""
        return self._on_all("log_probs", prompt_ids, response_ids, with_fp8)[self.layout.report_rank]

    def hf_log_probs(self, prompt_ids: TokenLists, response_ids: TokenLists) -> list[Float32]:
        """Return the log-probs [T] of every response at the rollouts' temperature, computed by transformers.

        The weights are those of the model folder, not the trained ones.
        """
        # One rank is enough, because it reads the folder and not the model that the ranks share.
        reference = self.ranks[0].hf_log_probs.remote(prompt_ids, response_ids)
        return self._wait([(0, reference)], "hf_log_probs")[0]

    def weight_manifest(self) -> list[TensorInfo]:
        return self.weights.manifest()

    def open_weight_link(self, receivers: tuple[str, ...]) -> WeightLink | None:
        return self.weights.open_link(receivers)

    def weight_stream(self) -> Iterator[StreamedBucket]:
        self.poll = ProgressPoll(dict(enumerate(self.ranks)))
        with self.heartbeat.stage("policy weight_stream", self.stalled):
            for bucket in self.weights.stream(self._ask):
                self.heartbeat.beat()
                yield bucket

    def begin_save(self, folder: Path) -> None:
        self._on_all("begin_save", folder.absolute())

    def finish_save(self, wait: bool) -> float | None:
        if not wait and not all(self._on_all("is_save_written")):
            return None
        return max(self._on_all("finish_save"))

    def load(self, folder: Path) -> None:
        self._on_all("load", folder.absolute())

    def export(self, folder: Path) -> None:
        self._on_all("export", folder.absolute())

    def reset_reference(self, clear_optimizer: bool) -> None:
        self._on_all("reset_reference", clear_optimizer)

    def release(self) -> None:
        self._on_all("release")

    def offload(self) -> None:
        self._on_all("offload")

    def onload(self) -> None:
        self._on_all("onload")

    def close(self) -> None:
        """Let the policy's ranks end their processes, and kill a rank that does not answer.

        Calling it again does nothing.
        """
        closing = [rank.close.remote() for rank in self.ranks]
        ended = [end_in_order(rank) for rank in self.ranks]
        calls = [*closing, *ended]
        if calls:
            _, pending = ray.wait(calls, num_returns=len(calls), timeout=_CLOSE_TIMEOUT_S)
            if pending:
                _log.warning("a policy rank did not end within %.0f s and is killed", _CLOSE_TIMEOUT_S)
        for rank in self.ranks:
            ray.kill(rank)
        self.ranks = []

    def _call_all(self, method: LearnerMethod, *arguments: Any) -> Calls:
        """Call a method of every policy rank's `Learner` without waiting for the results.

        Returns pairs of a rank and the Ray reference to its result.
        """
        self._asked_at = self.heartbeat.timeline.now()
        calls = []
        for number, rank in enumerate(self.ranks):
            calls.append((number, rank.call.remote(method, *arguments)))
        return calls

    def _on_all(self, method: LearnerMethod, *arguments: Any) -> list[Any]:
        """Call a method of every policy rank's `Learner`, and return the results in rank order."""
        return self._wait(self._call_all(method, *arguments), method)

    def _wait(self, calls: Calls, method: str) -> list[Any]:
        """Return the results of calls to policy ranks, given as pairs of a rank and a Ray reference.

        Raises StallError when the run is given up as stalled during the wait.
        """
        # A call may happen inside a weight stream, whose poll continues afterwards.
        poll_before = self.poll
        call = self._begin(calls, method)
        with self.heartbeat.stage(f"policy {method}", self.stalled):
            results = self._results(call, timeout_s=None)
        self.poll = poll_before
        assert results is not None, "a wait without a timeout ended without results"
        return results

    def _begin(self, calls: Calls, method: str) -> _Call:
        called = {number: self.ranks[number] for number, _ in calls}
        self.poll = ProgressPoll(called)
        return _Call(method, calls, self._asked_at)

    def _results(self, call: _Call, timeout_s: float | None) -> list[Any] | None:
        """Return the results of a call to policy ranks, or None if some have not arrived within `timeout_s` seconds."""
        references = [reference for _, reference in call.references]
        ends_at = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            slice_s = min(SLICE_S, max(ends_at - time.monotonic(), 0.0))
            try:
                answers = ray.get(references, timeout=slice_s)
                return values_of(call.references, answers, call.asked_at, self.heartbeat.timeline)
            except GetTimeoutError:
                # Waiting in slices lets a stop or a stall end the wait.
                self._ask()
            except RayError as error:
                raise self._explain(call, error) from error
            if time.monotonic() >= ends_at:
                return None

    def _ask(self) -> None:
        """Ask the policy ranks for their progress, unless that was just done.

        Raises an error if the run was given up, for instance as stalled.
        """
        self.heartbeat.check()
        if self.poll.ask():
            self.heartbeat.beat(self.poll.furthest_behind())

    def _explain(self, call: _Call, error: RayError) -> Exception:
        """Return the error to raise for a failed call: a rank's own error, or one that names the rank that has died.

        When a rank dies, its peers fail with lost connections.
        """
        if isinstance(error, RayTaskError) and isinstance(error.cause, BroRLError):
            return error.cause
        lost = _lost_rank(call.references)
        if lost is None:
            return error
        number, death = lost
        rank = f"policy rank {number} of {len(self.ranks)}"
        return RankLostError(f"{rank} is gone, lost during {call.method}: {death}")


def _lost_rank(calls: Calls) -> tuple[int, RayActorError] | None:
    """Return the first rank whose process has died and the error of its call, or None if none dies in a few seconds.

    The peers of a dead rank may hang in a collective, so all calls are waited for together.
    """
    ends_at = time.monotonic() + _DEATH_TIMEOUT_S
    number_of = {reference: number for number, reference in calls}
    pending = list(number_of)
    while pending and (left := ends_at - time.monotonic()) > 0:
        ended, pending = ray.wait(pending, timeout=left)
        for reference in ended:
            try:
                ray.get(reference)
            except RayActorError as death:
                return number_of[reference], death
            except RayTaskError:
                continue
    return None
