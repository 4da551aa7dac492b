"""Engine actors that answer when a test says so, behind a transport with a clock that is set by hand; Ray is not up."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from ray.exceptions import GetTimeoutError, RayActorError

from nemo_brorl.config.generation import GenerationConfig
from nemo_brorl.generation.chunk_messages import ChunkMeta, ReturnedChunk
from nemo_brorl.generation.engine_handle import EngineHandle, EngineReady, check_weights
from nemo_brorl.generation.placement.placement import ChunkPlacement
from nemo_brorl.generation.session import VllmSession
from nemo_brorl.types import PartialRollouts, Prompt, RolloutChunk, RolloutRequest, Sampling
from nemo_brorl.weights.incoming import LoadReport

PROMPT = Prompt("a", "task", "verifier", (1, 2), {})


@dataclass(eq=False)
class Reference:
    """What a call returns: a result to be."""

    is_resolved: bool = False
    result: Any = None

    def resolve(self, result: Any) -> None:
        self.is_resolved = True
        self.result = result


class FakeTransport:
    """The ActorTransport of fake actors. Whoever waits in vain moves the clock."""

    def __init__(self) -> None:
        self.time_s = 100.0

    def now(self) -> float:
        return self.time_s

    def wait(self, references: Sequence[Reference], timeout_s: float = 0.0) -> list[Reference]:
        resolved = [reference for reference in references if reference.is_resolved]
        if not resolved:
            self.time_s += timeout_s
        return resolved

    def results(self, references: Sequence[Reference], timeout_s: float) -> list[Any]:
        if not all(reference.is_resolved for reference in references):
            self.time_s += timeout_s
        return [
            reference.result if reference.is_resolved else GetTimeoutError(f"no answer within {timeout_s:g} s")
            for reference in references
        ]

    def put(self, value: Any) -> Reference:
        return Reference(True, value)

    def kill(self, actor: FakeActor) -> None:
        actor.die()


@dataclass
class Call:
    """One call of an actor's method."""

    method: str
    args: tuple[Any, ...]
    reference: Reference = field(default_factory=Reference)


@dataclass
class RemoteMethod:
    """What `actor.method` is: `remote` makes the call."""

    remote: Callable[..., Any]


class FakeActor:
    """Keeps calls that sample open, until a test answers them; all others are answered at once. `dies_at`: the method
    that it does not survive."""

    def __init__(self, index: int, dies_at: str = "") -> None:
        self.index = index
        self.dies_at = dies_at
        self.version = 0
        self.is_dead = False
        self.is_stuck = False  # answers nothing any more
        self.checksum = 7  # of the weights it received
        self.answers: dict[str, Any] = {}  # of methods that are to answer something else
        self.calls: list[Call] = []

    def __getattr__(self, method: str) -> RemoteMethod:
        return RemoteMethod(partial(self.call, method))

    def call(self, method: str, *args: Any) -> Any:
        call = Call(method, args)
        self.calls.append(call)
        if method == self.dies_at:
            self.die()
        if self.is_dead:
            call.reference.resolve(RayActorError())
        elif not self.is_stuck and method not in ("generate", "progress", "withdraw", "cut"):
            call.reference.resolve(self.answer_at_once(method, args))
        return (call.reference, "data", "partial") if method == "generate" else call.reference

    def answer_at_once(self, method: str, args: tuple[Any, ...]) -> Any:
        if method in self.answers:
            return self.answers[method]
        if method == "restore":
            self.version = args[1]
        if method == "abort":
            self.answer("generate", ReturnedChunk())
        if method == "finish_weights":
            return LoadReport(args[0], 1, 4, self.checksum)
        return EngineReady(self.index, 0, 0.0, 0.0) if method in ("ready", "restore") else None

    def die(self) -> None:
        """Everything that is open, and everything that comes later, fails."""
        self.is_dead = True
        for call in self.calls:
            if not call.reference.is_resolved:
                call.reference.resolve(RayActorError())

    def waiting(self, method: str) -> list[Call]:
        """Calls of a method that were not answered, in order."""
        return [call for call in self.calls if call.method == method and not call.reference.is_resolved]

    def answer(self, method: str, result: Any) -> None:
        """Answer all open calls of a method."""
        for call in self.waiting(method):
            call.reference.resolve(result)

    def finish_chunks(self, num: int | None = None) -> None:
        """Answer the first `num` open chunks, or all, with one token for each rollout."""
        for call in self.waiting("generate")[:num]:
            call.reference.resolve(whole_meta(*call.args[:2], version=self.version))

    def cut_chunks(self) -> None:
        """Do what the calls of `cut` asked for: nothing was sampled."""
        for cut in self.waiting("cut"):
            cut.reference.resolve(None)
            for call in self.waiting("generate"):
                if call.args[0] in cut.args[0]:
                    call.reference.resolve(cut_meta(*call.args[:2], version=self.version))


def whole_meta(call_id: int, request: RolloutRequest, version: int = 0) -> ChunkMeta:
    """The answer to a request whose rollouts have ended."""
    num = request.num_rollouts
    lengths = np.ones(num, np.int32)
    return ChunkMeta(call_id, request.prompt.uid, request.indices, lengths, np.ones(num, bool), version, version)


def cut_meta(call_id: int, request: RolloutRequest, version: int = 0) -> ChunkMeta:
    """The answer to a request that was cut before its first token."""
    nothing = np.zeros(0, np.int32)
    unsampled = PartialRollouts(request.indices, np.zeros(request.num_rollouts, np.int32), version, data=None)
    uid = request.prompt.uid
    return ChunkMeta(call_id, uid, nothing, nothing, np.zeros(0, bool), version, version, partial=unsampled)


class FakeEngines:
    """Handles on fake actors; `actors[i]` are those that were started for handle i, the last one is there now.
    `dies_at` are the methods that the first actors do not survive."""

    def __init__(
        self, num: int = 1, max_restarts: int = 2, timeout_s: float = 30.0, dies_at: Sequence[str] = ()
    ) -> None:
        self.transport = FakeTransport()
        self.num_signs = 0  # signs of life of all engines
        self.actors: list[list[FakeActor]] = [[] for _ in range(num)]
        self.handles: list[EngineHandle] = []
        self.cache_bytes: list[int] = []  # that every actor was started with
        self._dies_at = dies_at
        for index in range(num):
            start = partial(self._start, index)
            self.handles.append(EngineHandle(index, start, max_restarts, timeout_s, self.transport, self._count_sign))

    def actor(self, index: int = 0) -> FakeActor:
        """The actor that is there now."""
        return self.actors[index][-1]

    def _count_sign(self) -> None:
        self.num_signs += 1

    def _start(self, index: int, cache_bytes: int) -> FakeActor:
        is_first = not self.actors[index]
        dies_at = self._dies_at[index] if is_first and self._dies_at else ""
        self.actors[index].append(FakeActor(index, dies_at))
        self.cache_bytes.append(cache_bytes)
        return self.actors[index][-1]


def requests_of(num_chunks: int) -> list[RolloutRequest]:
    """Chunks of four rollouts each."""
    return [RolloutRequest(PROMPT, 4 * i, 4, 7, Sampling(1.0, 1.0, 8)) for i in range(num_chunks)]


def session_of(
    engines: FakeEngines,
    max_losses: int = 2,
    max_num_seqs: int = 8,
    restore_weights: Callable[[], None] | None = None,
) -> VllmSession:
    """A session whose engines are ready and have batches of `max_num_seqs`, that is two chunks and one to follow."""
    config = GenerationConfig(timeout_s=30.0, max_restarts=max_losses, max_num_seqs=max_num_seqs)
    placement = ChunkPlacement([], max_rollouts=max_num_seqs)
    session = VllmSession(
        engines.handles,
        placement,
        config,
        itertools.count(),
        known_versions={0, 3},
        transport=engines.transport,
        restore_weights=restore_weights or partial(check_weights, engines.handles),
    )
    session.poll()
    return session


def finish(engines: FakeEngines, session: VllmSession) -> list[RolloutChunk]:
    """What comes while every engine answers all that it is given."""
    chunks: list[RolloutChunk] = []
    for _ in range(10):
        chunks += session.poll()
        for index in range(len(engines.handles)):
            engines.actor(index).finish_chunks()
    return chunks


def places(chunks: Sequence[RolloutChunk]) -> list[int]:
    """The first place of each chunk in its group."""
    return sorted(chunk.request.first_index for chunk in chunks)
