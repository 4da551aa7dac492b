"""Rollouts as requests to vLLM's LLMEngine: the one place that knows its request objects and reaches for unfinished ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nemo_brorl.generation.chunk_work import Continuation, RolloutTask
from nemo_brorl.types import Sampling


class VllmRequests:
    """Every rollout is a request of its own: vLLM keeps what the n of one request have sampled to itself until the last has ended,
    and its scheduler makes n requests of it anyway. A rollout has our name, and the id that vLLM makes of it."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine  # vllm.LLMEngine
        self.vocab_size: int = engine.model_config.get_vocab_size()

    def add(self, name: str, task: RolloutTask, sampling: Sampling) -> str:
        """Queue a rollout; returns its id."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            seed=task.seed,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=task.max_tokens,
            logprobs=0,  # of the sampled token only
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        identity: str = self._engine.add_request(name, {"prompt_token_ids": task.token_ids}, params)
        return identity

    def step(self) -> list[tuple[str, Continuation]]:
        """One step of the batch; (name, what it came to) of the rollouts that ended in it."""
        return [(output.request_id, _continuation_of(output.outputs[0])) for output in self._engine.step() if output.finished]

    def num_tokens(self, identity: str) -> int | None:
        """Tokens sampled for a rollout; None when it has ended."""
        state = self._engine.output_processor.request_states.get(identity)
        return None if state is None else int(state.detokenizer.num_output_tokens())

    def so_far(self, identity: str) -> Continuation:
        """What an unfinished rollout has come to: the output that vLLM makes of an aborted request and shows to nobody."""
        from vllm.v1.engine import FinishReason

        state = self._engine.output_processor.request_states[identity]
        return _continuation_of(state.make_request_output([], None, FinishReason.ABORT, None).outputs[0])

    def abort(self, identities: Sequence[str]) -> None:
        """Take these out of the batch; those that have ended are passed over."""
        self._engine.abort_request(list(identities), internal=True)

    def set_version(self, version: int) -> None:
        """Label the tokens that are sampled from now on."""
        self._engine.engine_core.set_weight_version(str(version))


def _continuation_of(completion: Any) -> Continuation:
    """From vLLM's CompletionOutput; "abort" is what one that was cut off says."""
    assert completion.finish_reason in ("stop", "length", "abort"), f"vLLM ended a rollout with {completion.finish_reason!r}"
    return Continuation(
        token_ids=completion.token_ids,
        log_probs=completion.logprobs.logprobs,
        versions=[int(span.version) for span in completion.weight_versions or ()],
        has_ended=completion.finish_reason != "abort",
        is_stopped=completion.finish_reason == "stop",
    )
