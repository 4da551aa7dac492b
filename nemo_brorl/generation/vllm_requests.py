"""Rollouts as requests to vLLM's LLMEngine, and counters of one engine.

This module imports torch and vllm only once an engine exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from nemo_brorl.generation import vllm_adapter
from nemo_brorl.generation.chunk_task import Continuation, RolloutTask
from nemo_brorl.generation.lean_requests import Sampled
from nemo_brorl.generation.routes import as_routes
from nemo_brorl.types import Routes, Sampling

if TYPE_CHECKING:
    from vllm import CompletionOutput, LLMEngine, RequestOutput

    from nemo_brorl.generation.lean_scheduler import LeanMixin

NO_TOKENS = np.zeros(0, np.int32)


@dataclass
class _Sampled:
    """Policy versions that sampled an unfinished rollout, up to the last change of weights."""

    name: str
    versions: list[int] = field(default_factory=list)  # oldest first
    num_tokens: int = 0


class VllmRequests:
    """The rollouts of one engine, each a vLLM request of its own.

    vLLM would return the n responses of one request only after the last has ended, and its scheduler makes n requests
    of them anyway. A rollout has our name, and the id that vLLM derives from it.

    The versions that sampled each rollout are counted here, because vLLM 0.32 reports them and 0.26 does not.
    """

    def __init__(self, engine: LLMEngine, lean: LeanMixin | None = None) -> None:
        """Use an engine's batch.

        `lean`: the engine's scheduler if that is the lean one, which keeps log-probs for this object.
        """
        # Imported here and not in `add`, which is called for every rollout.
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        self._new_params = SamplingParams
        self._output_kind = RequestOutputKind.FINAL_ONLY
        self._engine = engine
        self._lean = lean
        if lean is not None:
            lean.keeps_log_probs = True
        self.vocab_size: int = engine.model_config.get_vocab_size()
        self._version = 0
        self._sampled: dict[str, _Sampled] = {}  # unfinished rollouts; key: vLLM's id
        self._ids: dict[str, str] = {}  # name → vLLM's id

    def add(
        self,
        name: str,
        task: RolloutTask,
        sampling: Sampling,
    ) -> str:
        """Queue a rollout. Return the id that vLLM gives it."""
        params = self._new_params(
            seed=task.seed,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=task.max_tokens,
            logprobs=0,  # log-prob of the sampled token only
            flat_logprobs=True,
            detokenize=False,
            output_kind=self._output_kind,
            # No other code shares these parameters, and vLLM's deep copy costs more than all the rest of `add`.
            skip_clone=True,
        )
        # With its type the prompt bypasses vLLM's renderer.
        prompt = {"type": "token", "prompt_token_ids": task.token_ids}
        identity: str = self._engine.add_request(name, prompt, params)
        self._sampled[identity] = _Sampled(name)
        self._ids[name] = identity
        return identity

    def step(self) -> list[tuple[str, Continuation]]:
        """Run one step of vLLM's batch. Return (name, tokens) of the rollouts that ended in it."""
        ended = []
        for output in self._engine.step():
            if output.finished:
                name = output.request_id
                identity = self._ids[name]
                sampled = self._forget(identity)
                continuation = self._continuation_of(sampled, output, self._finished(identity))
                ended.append((name, continuation))
        return ended

    def num_tokens(self, identity: str) -> int | None:
        """Return the number of tokens sampled for a rollout, or None when it has ended."""
        num_reported = vllm_adapter.num_sampled(self._engine, identity)
        if num_reported is None or self._lean is None:
            return num_reported
        return num_reported + self._lean.num_unreported(identity)

    def so_far(self, identity: str) -> Continuation:
        """Return the tokens of an unfinished rollout, as if it were cut off now."""
        output = vllm_adapter.output_so_far(self._engine, identity)
        unreported = self._lean.unreported(identity) if self._lean is not None else None
        return self._continuation_of(self._sampled[identity], output, unreported)

    def abort(self, identities: Sequence[str]) -> None:
        """Remove rollouts from vLLM's batch. Ended rollouts are ignored."""
        self._engine.abort_request(list(identities), internal=True)
        for identity in identities:
            if identity in self._sampled:
                self._forget(identity)

    def set_version(self, version: int) -> None:
        """Set the policy version of all tokens that are sampled from now on."""
        for identity, sampled in self._sampled.items():
            self._count(sampled, self.num_tokens(identity) or 0)
        self._version = version

    def _forget(self, identity: str) -> _Sampled:
        sampled = self._sampled.pop(identity)
        del self._ids[sampled.name]
        return sampled

    def _finished(self, identity: str) -> Sampled | None:
        """Return the log-probs of a finished rollout that did not pass vLLM's output processor."""
        if self._lean is None or identity not in self._lean.finished_log_probs:
            return None
        return Sampled(NO_TOKENS, self._lean.finished_log_probs.pop(identity))

    def _continuation_of(
        self,
        sampled: _Sampled,
        output: RequestOutput,
        unreported: Sampled | None,
    ) -> Continuation:
        """Convert vLLM's RequestOutput, and what the lean scheduler has kept from it, to a Continuation.

        A rollout that was cut off has the finish reason "abort".
        """
        completion = output.outputs[0]
        assert completion.finish_reason in ("stop", "length", "abort"), (
            f"vLLM ended a rollout with {completion.finish_reason!r}"
        )
        token_ids, log_probs = completion.token_ids, completion.logprobs.logprobs
        if unreported is not None:
            token_ids = [*token_ids, *unreported.token_ids.tolist()]
            log_probs = np.concatenate([np.array(log_probs, np.float32), unreported.log_probs])
        self._count(sampled, len(token_ids))
        return Continuation(
            token_ids=token_ids,
            log_probs=log_probs,
            versions=sampled.versions,
            has_ended=completion.finish_reason != "abort",
            is_stopped=completion.finish_reason == "stop",
            num_cached=output.num_cached_tokens or 0,
            routes=self._routes_of(completion),
        )

    def _routes_of(self, completion: CompletionOutput) -> Routes | None:
        routed_experts = completion.routed_experts
        if routed_experts is None:
            return None
        num_experts = self._engine.model_config.get_num_experts()
        return as_routes(routed_experts, num_experts)

    def _count(self, sampled: _Sampled, num_tokens: int) -> None:
        """Assign the tokens sampled since the last call to the current policy version."""
        if num_tokens > sampled.num_tokens:
            sampled.num_tokens = num_tokens
            if sampled.versions[-1:] != [self._version]:
                sampled.versions.append(self._version)


class EngineCounters:
    """Counters of one engine: prefix-cache queries and hits in tokens, and preemptions."""

    def __init__(self, engine: LLMEngine) -> None:
        """Start counting. `engine` must run its core in this process, with vLLM's log stats off."""
        self.num_preemptions = 0
        self._prefix_cache = vllm_adapter.count_prefix_cache(engine)
        vllm_adapter.on_preemption(engine, self._count_preemption)

    @property
    def prefix_cache_queries(self) -> int:
        return int(self._prefix_cache.queries)

    @property
    def prefix_cache_hits(self) -> int:
        return int(self._prefix_cache.hits)

    def _count_preemption(self) -> None:
        self.num_preemptions += 1
