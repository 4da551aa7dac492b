"""A card as its memory goes: one number of bytes, a caching allocator for each process on it, a policy and an engine
that charge it with the planner's terms. The DeviceHandover that drives them is the real one.

What this cannot show: terms that the planner does not know or has wrong, fragmentation beyond its five percent, blocks
that a cache keeps in sizes that do not fit, what CUDA takes when a library is first used, two engines' GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from brorl_launcher.planner.plan import Plan

from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.types import StreamedBucket, TensorInfo
from tests.support.fakes import FakeGenerator, FakePolicy

STATE = ("weights", "gradients", "master weights, Adam")  # what the policy holds between updates
OFFLOADED = {"none": (), "optimizer": STATE[1:], "all": STATE}


class OutOfMemoryOnCardError(Exception):
    """A process asked for more than is free."""


class Card:
    """Memory of one GPU, in GiB, by process."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.taken: dict[str, float] = {}
        self.peak = 0.0

    @property
    def used(self) -> float:
        return sum(self.taken.values())

    @property
    def free(self) -> float:
        return self.capacity - self.used

    def change(self, process: str, size: float) -> None:
        """Map (or, below 0, unmap) memory for a process."""
        if size > self.free:
            raise OutOfMemoryOnCardError(
                f"{process} asks for {size:.1f} GiB, {self.free:.1f} are free beside {self.taken}"
            )
        self.taken[process] = self.taken.get(process, 0.0) + size
        self.peak = max(self.peak, self.used)


class CachingAllocator:
    """What torch is to a process: freed memory stays the process's until `release`."""

    def __init__(self, card: Card, process: str) -> None:
        self.card = card
        self.process = process
        self.sizes: dict[str, float] = {}  # of what is allocated, by name
        self.reserved = 0.0

    @property
    def allocated(self) -> float:
        return sum(self.sizes.values())

    def allocate(self, name: str, size: float) -> None:
        self.sizes[name] = size
        missing = self.allocated - self.reserved
        if missing > 0:
            self.card.change(self.process, missing)
            self.reserved += missing

    def drop(self, *names: str) -> None:
        for name in names:
            self.sizes.pop(name, None)

    def release(self) -> None:
        self.card.change(self.process, self.allocated - self.reserved)
        self.reserved = self.allocated


class CardPolicy(FakePolicy):
    """A policy rank. `gives_back=False` is one that keeps what it freed, as torch does unless told."""

    def __init__(self, plan: Plan, card: Card, gives_back: bool = True) -> None:
        super().__init__()
        self.config = plan.config
        self.terms = {term.name: term for term in plan.devices[0].terms if term.role == "policy"}
        self.memory = CachingAllocator(card, "policy")
        self.gives_back = gives_back and RunSizes.from_config(plan.config).gives_memory_back
        for name in ("contexts, NCCL", *STATE):
            self.memory.allocate(name, self.terms[name].gib_at("update"))

    def update(self, plan: Any) -> Any:
        self._work("update")

    def rehearse(self, num_tokens: int) -> Any:
        self._work("update")

    def log_probs(self, *_: Any, **__: Any) -> Any:
        self._work("update")

    def begin_save(self, folder: Path) -> None:
        """The largest gather of the optimizer's state: one key of all parameters, in fp32, as gradients are."""
        self.memory.allocate("gathered", self.terms["gradients"].gib_at("update"))
        self.memory.drop("gathered")

    def weight_stream(self) -> Iterator[StreamedBucket]:
        self.memory.allocate("weight buckets", self.terms["weight buckets"].gib_at("publish"))
        yield StreamedBucket(None, 4)
        self.memory.drop("weight buckets")

    def release(self) -> None:
        if self.gives_back:
            self.memory.release()

    def offload(self) -> None:
        away = OFFLOADED[self.config.policy.offload]
        self.memory.drop(*away)
        if away:
            self.memory.release()  # it always was a part of offloading
        self.release()

    def onload(self) -> None:
        for name in OFFLOADED[self.config.policy.offload]:
            self.memory.allocate(name, self.terms[name].gib_at("update"))

    def _work(self, moment: str) -> None:
        names = [name for name in self.terms if name not in (*STATE, "contexts, NCCL", "weight buckets")]
        for name in names:
            self.memory.allocate(name, self.terms[name].gib_at(moment))
        self.memory.drop(*names)


class CardEngine(FakeGenerator):
    """The engine on the card: maps and unmaps, and keeps no cache of what it gave up.

    `loses_engine` says that it dies when it is told to sleep; another starts when weights are woken, and is ready when
    they come or, without a publication, when the cache is woken. One that measures (`measures`, without the size of
    its cache) demands its whole share to be free, and that nobody frees anything until it is ready.
    """

    def __init__(self, plan: Plan, card: Card) -> None:
        super().__init__()
        self.card = card
        self.terms = {term.name: term for term in plan.devices[0].terms if term.role == "engine"}
        self.share = plan.engine.share_gib
        self.mode = plan.config.generation.sleep
        self.loses_engine = False
        self.measures = False
        self.free_at_start: float | None = None
        self.mapped: dict[str, float] = {}
        self._map("engine context")
        self._map("engine weights")
        self._map("KV cache", "engine batch")

    def sleep(self) -> Mapping[str, float]:
        if self.loses_engine:
            self._unmap(*list(self.mapped))
            return {}
        self._unmap("KV cache", "engine batch")
        if self.mode != "cache":
            self._unmap("engine weights")
        self._map("sleep residual")
        return {}

    def wake_weights(self) -> bool:
        if self.loses_engine:
            self._start()
            return False
        self._unmap("sleep residual")
        self._map("engine weights")
        return self.mode == "discard"

    def load_weights(self, manifest: Sequence[TensorInfo], buckets: Iterable[StreamedBucket], version: int) -> int:
        self._become_ready()
        return super().load_weights(manifest, buckets, version)

    def wake_cache(self) -> None:
        self._become_ready()
        self._map("KV cache", "engine batch")

    def _start(self) -> None:
        self.loses_engine = False
        self.free_at_start = self.card.free
        if self.measures and self.card.free < self.share:
            raise OutOfMemoryOnCardError(f"{self.card.free:.1f} GiB are free of a share of {self.share:.1f}")
        self._map("engine context", "engine weights")

    def _become_ready(self) -> None:
        if self.free_at_start is None:
            return
        own = sum(self.mapped.values())
        if self.measures and self.card.free + own > self.free_at_start + 0.01:
            raise OutOfMemoryOnCardError("somebody freed memory while vLLM measured")
        self.free_at_start = None
        self._map("KV cache", "engine batch")

    def _map(self, *names: str) -> None:
        for name in names:
            if name not in self.mapped:
                moment = "publish" if name == "sleep residual" else "generate"
                size = self.terms[name].gib_at(moment)
                self.card.change("engine", size)
                self.mapped[name] = size

    def _unmap(self, *names: str) -> None:
        for name in names:
            self.card.change("engine", -self.mapped.pop(name, 0.0))
