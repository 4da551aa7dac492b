"""Rollouts as requests to vLLM's engine, and counters of one engine.

This module imports torch and vllm only once an engine exists.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from nemo_brorl.core.template_files import DECODES
from nemo_brorl.core.tokenizer import ChatTokenizer, load_tokenizer
from nemo_brorl.generation import vllm_adapter
from nemo_brorl.generation.chunk_task import Continuation, RolloutTask
from nemo_brorl.generation.routes import as_routes
from nemo_brorl.types import Routes, Sampling

if TYPE_CHECKING:
    from vllm import LLMEngine

    from nemo_brorl.generation.lean_scheduler import LeanMixin


@dataclass
class _Rollout:
    """Everything that vLLM has sent for one unfinished rollout."""

    name: str
    stop_strings: tuple[str, ...] = ()
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    routes: list[Routes] = field(default_factory=list)
    num_cached: int = 0  # tokens of the prompt that were in the prefix cache
    versions: list[int] = field(default_factory=list)  # policy versions that sampled its tokens, oldest first
    num_counted: int = 0  # tokens whose version is in the list

    def add(self, output: vllm_adapter.StepOutput) -> None:
        """Append the tokens and log-probs that a rollout sampled in one or more steps of vLLM."""
        self.token_ids += output.token_ids
        self.log_probs += output.log_probs
        if output.num_cached is not None:
            self.num_cached = output.num_cached
        if output.routes is not None:
            self.routes.append(output.routes)

    def count(self, num_tokens: int, version: int) -> None:
        """Record that the tokens sampled since the last call were sampled by this policy version."""
        if num_tokens > self.num_counted:
            self.num_counted = num_tokens
            if self.versions[-1:] != [version]:
                self.versions.append(version)


class VllmRequests:
    """The rollouts of one engine, each a vLLM request of its own.

    vLLM would return the n responses of one request only after the last has ended, and its scheduler makes n requests
    of them anyway. A rollout has our name, and an id that no other request of the engine has.

    The versions that sampled each rollout are counted here, because vLLM 0.32 reports them and 0.26 does not.
    """

    def __init__(self, engine: LLMEngine, lean: LeanMixin | None = None) -> None:
        """Prepare to send rollouts as requests to a vLLM engine.

        `lean` is the engine's scheduler if it is LeanScheduler, which keeps the tokens of unfinished requests.
        """
        # Imported here and not in `add`, which is called for every chunk.
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        self._new_params = SamplingParams
        self._output_kind = RequestOutputKind
        self._engine = engine
        self._lean = lean
        if lean is not None:
            lean.caches_generated = False
        self.vocab_size: int = engine.model_config.get_vocab_size()
        self._version = 0
        self._rollouts: dict[str, _Rollout] = {}  # unfinished, by vLLM's id
        self._next_id = itertools.count()

    def add(
        self,
        names: Sequence[str],
        tasks: Sequence[RolloutTask],
        sampling: Sampling,
    ) -> list[str]:
        """Queue rollouts in vLLM's batch, and return the ids of their requests."""
        identities = [f"{name}-{next(self._next_id)}" for name in names]
        for identity, name in zip(identities, names, strict=True):
            self._rollouts[identity] = _Rollout(name, sampling.stop_strings)
        stop_ids = sorted(self._text.with_stops(sampling.stop_tokens)) if sampling.stop_tokens else []
        # Once is enough: an engine that has had turns has more of them.
        if self._lean is not None and any(task.has_next_turn for task in tasks):
            self._lean.caches_generated = True
        rows = list(zip(identities, tasks, strict=True))
        # Rollouts that begin with the prompt are neighbours and have one list of tokens.
        for (_, max_tokens), alike in itertools.groupby(rows, lambda row: (id(row[1].token_ids), row[1].max_tokens)):
            siblings = list(alike)
            params = self._new_params(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=max_tokens,
                logprobs=0,  # log-prob of the sampled token only
                flat_logprobs=True,
                detokenize=False,
                stop_token_ids=list(stop_ids),
                # The lean scheduler keeps the tokens of a rollout until it ends, and a stop string is looked for in
                # each step.
                output_kind=self._output_kind.DELTA if sampling.stop_strings else self._output_kind.FINAL_ONLY,
                # No other code shares it, and vLLM's deep copy costs more than all the rest of adding.
                skip_clone=True,
            )
            token_ids = siblings[0][1].token_ids
            ids, seeds = [row[0] for row in siblings], [row[1].seed for row in siblings]
            vllm_adapter.add_siblings(self._engine, ids, token_ids, params, seeds)
        return identities

    def step(self) -> list[tuple[str, Continuation]]:
        """Run one step of the vLLM engine.

        Returns pairs of (name, continuation) of the rollouts that ended in this step.
        """
        ended = []
        for output in vllm_adapter.step(self._engine):
            rollout = self._rollouts.get(output.identity)
            # None: it was aborted while this step was under way.
            if rollout is None:
                continue
            rollout.add(output)
            if output.finish_reason != "stop" and self._holds_stop(rollout, len(output.token_ids)):
                if output.finish_reason is None:
                    vllm_adapter.abort(self._engine, [output.identity])
                output = output._replace(finish_reason="stop")
            if output.finish_reason is not None:
                del self._rollouts[output.identity]
                ended.append((rollout.name, self._continuation(rollout, output.finish_reason)))
        return ended

    @cached_property
    def _text(self) -> ChatTokenizer:
        return load_tokenizer(self._engine.model_config.tokenizer, is_tried=True, template=DECODES)

    def _holds_stop(self, rollout: _Rollout, num_new: int) -> bool:
        """Return whether a stop string ends in the newest tokens of a rollout, and drop the tokens behind it."""
        if not rollout.stop_strings or not num_new:
            return False
        # A character has up to four bytes, and each may be a token.
        before = 4 * max(map(len, rollout.stop_strings))
        for end in range(len(rollout.token_ids) - num_new + 1, len(rollout.token_ids) + 1):
            text = self._text.backend.decode(rollout.token_ids[max(0, end - before) : end], skip_special_tokens=False)
            if any(stop in text for stop in rollout.stop_strings):
                del rollout.token_ids[end:], rollout.log_probs[end:]
                return True
        return False

    def num_tokens(self, identity: str) -> int | None:
        """Return the number of tokens sampled for a rollout, or None when the rollout has ended."""
        rollout = self._rollouts.get(identity)
        if rollout is None:
            return None
        num_kept = self._lean.num_unreported(identity) if self._lean is not None else 0
        return len(rollout.token_ids) + num_kept

    def so_far(self, identity: str) -> Continuation:
        """Return the tokens of an unfinished rollout, as if it were cut off now.

        The caller must call `abort` for the rollout next.
        """
        rollout = self._rollouts[identity]
        kept = self._lean.unreported(identity) if self._lean is not None else None
        if kept is not None:
            rollout.token_ids += kept.token_ids.tolist()
            rollout.log_probs += kept.log_probs.tolist()
        return self._continuation(rollout, None)

    def abort(self, identities: Sequence[str]) -> None:
        """Remove rollouts from the vLLM engine's batch.

        Ids of rollouts that have ended are ignored.
        """
        vllm_adapter.abort(self._engine, [identity for identity in identities if identity in self._rollouts])
        for identity in identities:
            self._rollouts.pop(identity, None)

    def set_version(self, version: int) -> None:
        """Record all tokens that are sampled from now on as sampled by this policy version."""
        for identity, rollout in self._rollouts.items():
            rollout.count(self.num_tokens(identity) or 0, self._version)
        self._version = version

    def _continuation(self, rollout: _Rollout, finish_reason: str | None) -> Continuation:
        """Return the tokens that this engine sampled for a rollout.

        `finish_reason` is None for a rollout that was cut off.
        """
        assert finish_reason in ("stop", "length", None), f"vLLM ended a rollout with {finish_reason!r}"
        rollout.count(len(rollout.token_ids), self._version)
        routes = None
        if rollout.routes:
            routes = as_routes(np.concatenate(rollout.routes), self._engine.model_config.get_num_experts())
        return Continuation(
            token_ids=rollout.token_ids,
            log_probs=rollout.log_probs,
            versions=rollout.versions,
            has_ended=finish_reason is not None,
            is_stopped=finish_reason == "stop",
            num_cached=rollout.num_cached,
            routes=routes,
        )


class EngineCounters:
    """Counters of one engine: prefix-cache queries and hits in tokens, and preemptions."""

    def __init__(self, engine: LLMEngine) -> None:
        """Start to count a vLLM engine's prefix-cache hits and preemptions.

        `engine` must run vLLM's engine core in this process, with vLLM's log stats off.
        """
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
