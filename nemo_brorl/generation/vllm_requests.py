"""Rollouts as requests to vLLM's LLMEngine, and counters of one engine.

This module imports torch and vllm only once an engine exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nemo_brorl.generation import vllm_adapter
from nemo_brorl.generation.chunk_task import Continuation, RolloutTask
from nemo_brorl.generation.routes import as_routes
from nemo_brorl.types import Routes, Sampling

if TYPE_CHECKING:
    from vllm import CompletionOutput, LLMEngine, RequestOutput


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

    def __init__(self, engine: LLMEngine) -> None:
        # Imported here and not in `add`, which is called for every rollout.
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        self._new_params = SamplingParams
        self._output_kind = RequestOutputKind.FINAL_ONLY
        self._engine = engine
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
                sampled = self._forget(self._ids[name])
                continuation = self._continuation_of(sampled, output)
                ended.append((name, continuation))
        return ended

    def num_tokens(self, identity: str) -> int | None:
        """Return the number of tokens sampled for a rollout, or None when it has ended."""
        return vllm_adapter.num_sampled(self._engine, identity)

    def so_far(self, identity: str) -> Continuation:
        """Return the tokens of an unfinished rollout, as if it were cut off now."""
        output = vllm_adapter.output_so_far(self._engine, identity)
        return self._continuation_of(self._sampled[identity], output)

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

    def _continuation_of(self, sampled: _Sampled, output: RequestOutput) -> Continuation:
        """Convert vLLM's RequestOutput to a Continuation. A finish reason of "abort" means that it was cut off."""
        completion = output.outputs[0]
        assert completion.finish_reason in ("stop", "length", "abort"), (
            f"vLLM ended a rollout with {completion.finish_reason!r}"
        )
        self._count(sampled, len(completion.token_ids))
        return Continuation(
            token_ids=completion.token_ids,
            log_probs=completion.logprobs.logprobs,
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
