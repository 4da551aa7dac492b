"""Schedule decoding sequences by arrays, so that a step costs what changes and not how many sequences there are.

vLLM's scheduler and output processor spend about 30 µs of Python on every sequence of every step. Hundreds of rollouts
of one prompt need none of it: only a sequence that arrives, ends or fills a block of the KV cache changes anything.
`LeanScheduler` and `LeanAsyncScheduler` keep the tokens and counters of such *lean* requests in arrays. vLLM's own code
still admits requests, computes prompts, preempts, resumes, aborts and resets. Whenever it has to decide about a lean
request, that request first becomes an ordinary one again, with all its tokens. Tokens and log-probs are bit for bit
those of vLLM's scheduler, and so is every step.

An engine gets it by vLLM's argument `scheduler_cls` (`device.py`). Written against vLLM 0.32.0, whose private names it
uses. `tests/unit/generation/test_lean_scheduler.py` compares whole runs with vLLM's scheduler.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.sched.utils import check_stop
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.outputs import LogprobsLists
from vllm.v1.request import RequestStatus

from nemo_brorl.generation.lean_requests import LeanRequests, Sampled
from nemo_brorl.generation.lean_support import only_decodes, stop_tokens_of, why_unsupported
from nemo_brorl.types import Int64

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

logger = logging.getLogger(__name__)


def make_scheduler(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, **arguments: Any) -> Scheduler:
    """Return the lean scheduler, which keeps decoding requests in arrays, or vLLM's own if the settings need it.

    A log line says why vLLM's own scheduler is kept. vLLM calls this function as the constructor of its
    `scheduler_cls`.
    """
    is_async = vllm_config.scheduler_config.async_scheduling
    reason = why_unsupported(vllm_config, kv_cache_config)
    if reason:
        logger.warning("this engine keeps vLLM's own scheduler, because of %s", reason)
        own: type[Scheduler] = AsyncScheduler if is_async else Scheduler
        return own(vllm_config=vllm_config, kv_cache_config=kv_cache_config, **arguments)
    lean: type[LeanScheduler | LeanAsyncScheduler] = LeanAsyncScheduler if is_async else LeanScheduler
    return lean(vllm_config=vllm_config, kv_cache_config=kv_cache_config, **arguments)


class LeanMixin(Scheduler):
    """The lean half of a scheduler, over `Scheduler` or `AsyncScheduler`."""

    is_async = False
    running: list[Request]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Whether blocks of generated tokens enter the prefix cache as they fill. Without it they do so only when a
        # request is cut off or preempted, which is enough where nothing resumes a finished response.
        self.caches_generated = True
        self.num_lean_tokens = 0  # scheduled here
        self._lean = LeanRequests(self.max_num_running_reqs)
        self._owed: dict[str, EngineCoreOutput] = {}  # tokens of requests that became ordinary

    # ---- what vLLM calls ----

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Return what the next step of vLLM computes.

        It has the next token of every lean request, which only decodes and is kept in arrays outside vLLM's scheduler,
        and what vLLM's scheduler adds.
        """
        lean = self._lean
        if lean.ids and (throttle_prefills or not self._can_decode_all()):
            self._make_ordinary(lean.ids)
        if not lean.ids:
            return super().schedule(throttle_prefills)
        slots = self._slots_to_decode()
        new_blocks = self._allocate(slots)
        with self._hidden(len(slots)):
            output = super().schedule(throttle_prefills)
        if len(slots):
            self._add_lean(output, slots, new_blocks)
        return output

    def update_from_output(
        self,
        scheduler_output: SchedulerOutput,
        model_runner_output: ModelRunnerOutput,
    ) -> dict[int, EngineCoreOutputs]:
        """Store the tokens sampled in one step of vLLM, and return the outputs of requests."""
        lean_slots = self._lean.slots
        scheduled = scheduler_output.num_scheduled_tokens
        ended: list[EngineCoreOutput] = []
        ordinary = scheduled
        if lean_slots:
            # A request may have changed sides since the step was scheduled: its side now decides.
            lean_ids = [name for name in scheduled if name in lean_slots]
            if lean_ids:
                ordinary = {name: count for name, count in scheduled.items() if name not in lean_slots}
                # Requests that end here leave `lean_slots`.
                ended = self._take(lean_ids, model_runner_output)
        rest = copy.copy(scheduler_output)
        rest.num_scheduled_tokens = ordinary
        outputs = super().update_from_output(rest, model_runner_output)
        self._make_lean(ordinary)
        if ended or self._owed:
            core = outputs.setdefault(0, EngineCoreOutputs(outputs=[]))
            core.outputs = [*self._owed.values(), *core.outputs, *ended]
            self._owed = {}
        return outputs

    def finish_requests(
        self,
        request_ids: str | Iterable[str] | None,
        finished_status: RequestStatus,
    ) -> list[Request]:
        """Abort requests in vLLM, and drop their sampled tokens that were not returned yet."""
        names = [request_ids] if isinstance(request_ids, str) else request_ids
        names = list(self.requests if names is None else names)
        self._make_ordinary(names)
        for name in names:
            self._owed.pop(name, None)
        return super().finish_requests(names, finished_status)

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Empty the engine's prefix cache, as vLLM's scheduler does."""
        self._make_ordinary(self._lean.ids)
        return super().reset_prefix_cache(reset_running_requests, reset_connector)

    # ---- what this package calls ----

    def unreported(self, request_id: str) -> Sampled | None:
        """Return the sampled tokens of an unfinished request that the engine has not returned yet.

        Returns None if there are no such tokens.
        """
        slot = self._lean.slots.get(request_id)
        if slot is not None:
            return self._lean.sampled(slot)
        owed = self._owed.get(request_id)
        if owed is None:
            return None
        log_probs = owed.new_logprobs.logprobs[:, 0] if owed.new_logprobs is not None else np.zeros(0, np.float32)
        return Sampled(np.array(owed.new_token_ids, np.int32), log_probs)

    def num_unreported(self, request_id: str) -> int:
        """Return the number of sampled tokens of an unfinished request that the engine has not returned yet."""
        slot = self._lean.slots.get(request_id)
        if slot is not None:
            return self._lean.num_sampled(slot)
        owed = self._owed.get(request_id)
        return len(owed.new_token_ids) if owed is not None else 0

    # ---- one step ----

    def _can_decode_all(self) -> bool:
        """Return whether every request that only decodes can get its next token without vLLM's scheduler."""
        num_computed = self._lean.num_computed[self._lean.order]
        num_blocks = np.count_nonzero(num_computed % self.block_size == 0)
        has_room = num_blocks <= self.kv_cache_manager.block_pool.get_num_free_blocks()
        return has_room and self._pause_state == PauseState.UNPAUSED and not self._has_connector()

    def _has_connector(self) -> bool:
        """Return whether a vLLM connector, such as a KV transfer, must see every step of a request.

        A connector can be set after the scheduler was made.
        """
        return self.connector is not None or self.aux_output_connector is not None

    def _slots_to_decode(self) -> Int64:
        """Return the array slots of the requests that get another token, except those whose last token is in flight."""
        lean, order = self._lean, self._lean.order
        if not self.is_async:
            return order
        num_computed, num_in_flight = lean.num_computed[order], lean.num_in_flight[order]
        is_over = (num_in_flight > 0) & (num_computed + 2 - num_in_flight >= lean.max_tokens[order])
        is_over |= num_computed >= self.max_model_len - 1
        return order[~is_over]

    def _allocate(self, slots: Int64) -> list[tuple[int, tuple[list[int]]]]:
        """Allocate a new KV cache block for each request whose next token begins a block.

        Returns pairs of (index in `slots`, block ids).
        """
        lean = self._lean
        indices = np.flatnonzero(lean.num_computed[slots] % self.block_size == 0)
        if not len(indices):
            return []
        (manager,) = self.kv_cache_manager.coordinator.single_type_managers
        blocks = self.kv_cache_manager.block_pool.get_new_blocks(len(indices))
        for slot, block in zip(slots[indices].tolist(), blocks, strict=True):
            request = lean.requests[slot]
            manager.req_to_blocks[request.request_id].append(block)
            if self.caches_generated:
                lean.update_request(slot)
                self.kv_cache_manager.cache_blocks(request, request.num_tokens)
        if manager.records_new_block_ids:
            manager.new_block_ids.extend(block.block_id for block in blocks)
        return [(index, ([block.block_id],)) for index, block in zip(indices.tolist(), blocks, strict=True)]

    @contextmanager
    def _hidden(self, num_tokens: int) -> Iterator[None]:
        """Hide the requests that only decode from vLLM's scheduler inside this context.

        The scheduler sees only ordinary requests, and its limits of requests and tokens are lowered by what the hidden
        requests use.
        """
        lean = self._lean
        num_lean = len(lean.ids)
        lean_running = [lean.requests[slot] for slot in lean.order.tolist()]
        is_mixed = len(self.running) > num_lean
        self.running = [request for request in self.running if request.request_id not in lean.slots] if is_mixed else []
        self.max_num_running_reqs -= num_lean
        self.max_num_active_reqs -= num_lean
        self.max_num_scheduled_tokens -= num_tokens
        self.scheduler_config.max_num_batched_tokens -= num_tokens
        try:
            yield
        finally:
            self.running = lean_running + self.running
            self.max_num_running_reqs += num_lean
            self.max_num_active_reqs += num_lean
            self.max_num_scheduled_tokens += num_tokens
            self.scheduler_config.max_num_batched_tokens += num_tokens

    def _add_lean(
        self,
        output: SchedulerOutput,
        slots: Int64,
        new_blocks: list[tuple[int, tuple[list[int]]]],
    ) -> None:
        """Add one token of each request in `slots` to a step of vLLM, before the tokens that its scheduler chose."""
        lean = self._lean
        num_computed = lean.num_computed[slots]
        num_output = lean.num_tokens[slots] - lean.num_prompt[slots] + lean.num_in_flight[slots]
        ids = lean.ids
        if len(slots) < len(ids):
            ids = [lean.requests[slot].request_id for slot in slots.tolist()]
        blocks: list[tuple[list[int], ...] | None] = [None] * len(ids)
        for index, block_ids in new_blocks:
            blocks[index] = block_ids
        cached = output.scheduled_cached_reqs
        cached.req_ids = ids + cached.req_ids
        cached.new_block_ids = blocks + cached.new_block_ids
        cached.num_computed_tokens = num_computed.tolist() + cached.num_computed_tokens
        cached.num_output_tokens = num_output.tolist() + cached.num_output_tokens
        output.num_scheduled_tokens = dict.fromkeys(ids, 1) | output.num_scheduled_tokens
        output.total_num_scheduled_tokens += len(ids)
        if not self.use_v2_model_runner:
            self.prev_step_scheduled_req_ids.update(ids)
        lean.num_computed[slots] += 1
        lean.num_in_flight[slots] += 1
        self.num_lean_tokens += len(ids)

    def _take(self, ids: list[str], result: ModelRunnerOutput) -> list[EngineCoreOutput]:
        """Append one sampled token to each of these requests, and return the outputs of requests that end with it."""
        lean = self._lean
        slots = np.array([lean.slots[name] for name in ids], np.int64)
        rows = [result.req_id_to_index[name] for name in ids]
        token_ids = np.array([result.sampled_token_ids[row][0] for row in rows], np.int64)
        log_probs = None
        if result.logprobs is not None:
            first_rows = result.logprobs.cu_num_generated_tokens
            log_probs = result.logprobs.logprobs[rows if first_rows is None else [first_rows[row] for row in rows], 0]
        lean.append(slots, token_ids, log_probs)
        is_over = (lean.stop_tokens[slots] == token_ids[:, None]).any(1)
        is_over |= lean.num_tokens[slots] >= np.minimum(lean.max_tokens[slots], self.max_model_len)
        ended = [self._end(slot) for slot in slots[is_over].tolist()]
        if ended:
            self.running = [request for request in self.running if not request.is_finished()]
            lean.sort()
        return ended

    def _end(self, slot: int) -> EngineCoreOutput:
        """Free the KV cache blocks of a request that has sampled its last token, as vLLM does."""
        request = self._lean.update_request(slot, hashes_blocks=self.caches_generated)
        if self.caches_generated:
            self.kv_cache_manager.cache_blocks(request, request.num_tokens - 1)
        has_ended = check_stop(request, self.max_model_len)
        assert has_ended, f"{request.request_id} has its last token, and vLLM does not stop it"
        sampled = self._lean.sampled(slot)
        self._lean.remove(request.request_id)
        self._free_request(request)
        return _output(request, sampled, request.get_finished_reason())

    # ---- between lean and ordinary ----

    def _make_lean(self, names: Iterable[str]) -> None:
        """Take requests that only decode out of vLLM's scheduler, and keep their tokens in arrays.

        Requests that do more than decode from now on, or need vLLM's own code in every step, stay in vLLM's scheduler.
        """
        if self._has_connector():
            return
        num_before = len(self._lean.slots)
        for name in names:
            request = self.requests.get(name)
            if request is not None and only_decodes(request):
                stop_tokens = stop_tokens_of(request)
                if stop_tokens is not None:
                    self._lean.add(request, stop_tokens)
        if len(self._lean.slots) > num_before:
            self._lean.sort()

    def _make_ordinary(self, names: Iterable[str]) -> None:
        """Hand requests that only decode and bypass vLLM's scheduler back to it.

        The tokens that they have sampled so far are returned with the next step.
        """
        lean = self._lean
        for name in names:
            slot = lean.slots.get(name)
            if slot is None:
                continue
            request = lean.update_request(slot)
            # vLLM caches a block as soon as it is full.
            self.kv_cache_manager.cache_blocks(request, request.num_tokens - 1)
            request.num_in_flight_tokens = int(lean.num_in_flight[slot])
            request.num_output_placeholders = request.num_in_flight_tokens if self.is_async else 0
            if lean.num_sampled(slot):
                self._owed[name] = _output(request, lean.sampled(slot), None)
            lean.remove(name)
        lean.sort()


def _output(request: Request, sampled: Sampled, reason: FinishReason | None) -> EngineCoreOutput:
    """Return a request's sampled tokens as the output that vLLM's engine core sends to its client.

    The ranks of sampled tokens are 0, because requests that bypass vLLM's scheduler do not store them.
    """
    log_probs = None
    if request.sampling_params.num_logprobs is not None:
        ranks = np.zeros(len(sampled.token_ids), np.int64)
        log_probs = LogprobsLists(sampled.token_ids[:, None], sampled.log_probs[:, None], ranks)
    return EngineCoreOutput(
        request_id=request.request_id,
        new_token_ids=sampled.token_ids.tolist(),
        new_logprobs=log_probs,
        finish_reason=reason,
        stop_reason=request.stop_reason,
    )


class LeanScheduler(LeanMixin, Scheduler):
    """vLLM's scheduler with lean requests, for synchronous scheduling."""


class LeanAsyncScheduler(LeanMixin, AsyncScheduler):
    """vLLM's scheduler with lean requests, for asynchronous scheduling."""

    is_async = True
