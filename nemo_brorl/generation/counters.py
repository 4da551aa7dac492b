"""Counters of an engine, kept where vLLM's scheduler counts.

vLLM's own metrics come with an observation for every token of every step, on the thread that also schedules and
launches. They stay off, and the two numbers that a run needs are read from the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class EngineCounters:
    """Prefix-cache queries and hits, in tokens, and preemptions, since this was made."""

    def __init__(self, engine: Any) -> None:
        """`engine`: a vllm.LLMEngine whose core is in this process and whose log stats are off."""
        from vllm.v1.metrics.stats import PrefixCacheStats

        scheduler = engine.engine_core.engine_core.scheduler
        manager = scheduler.kv_cache_manager
        # Nobody takes these away: that is what the scheduler does where its log stats are on.
        self._prefix_cache = PrefixCacheStats()
        manager.prefix_cache_stats = self._prefix_cache
        manager.log_stats = True
        self.num_preemptions = 0
        self._preempt: Callable[..., None] = scheduler._preempt_request
        scheduler._preempt_request = self._count_preemption

    @property
    def prefix_cache_queries(self) -> int:
        return int(self._prefix_cache.queries)

    @property
    def prefix_cache_hits(self) -> int:
        return int(self._prefix_cache.hits)

    def _count_preemption(self, *args: Any, **kwargs: Any) -> None:
        self.num_preemptions += 1
        self._preempt(*args, **kwargs)
