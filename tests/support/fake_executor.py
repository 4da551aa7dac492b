"""vLLM's real LLMEngine, EngineCore and scheduler over an executor without a model, with asynchronous scheduling forced
on as CUDA has it: one batch is always under way while the next is scheduled.

What this cannot show: anything that a worker does (model runner, CUDA streams and graphs, sleep mode's memory, loading
of weights); batches end when they are asked for, never early or late; one worker, no speculative decoding.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch
from vllm import EngineArgs, LLMEngine
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput

BLOCK_TOKENS = 32
BLOCK_BYTES = 2 * BLOCK_TOKENS * 32 * 4  # keys and values of 32 numbers in fp32
FIRST_TOKEN = 10  # what version 0 samples; version v samples FIRST_TOKEN + v


class Gate:
    """Stops the engine's thread at one of its batches, until the test has asked for what shall come next."""

    def __init__(self, at_batch: int) -> None:
        self.at_batch = at_batch
        self.is_reached = threading.Event()
        self.may_go_on = threading.Event()

    def wait(self, num_batches: int) -> None:
        if num_batches == self.at_batch:
            self.is_reached.set()
            assert self.may_go_on.wait(60)


class FakeExecutor(Executor):
    """Samples one token a request and step: FIRST_TOKEN and the version of the weights at the launch of its batch."""

    num_blocks = 64  # of the cache of the next executor that is made
    made: list[FakeExecutor] = []  # noqa: RUF012 - those that were made, the last one is there now

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return True

    def _init_executor(self) -> None:
        self.threads: set[int] = set()  # that anything was asked on
        self.calls: list[str] = []
        self.version = 0
        self.num_batches = 0
        self.gate = Gate(at_batch=-1)
        self.launched: list[ModelRunnerOutput] = []  # not sampled yet
        self.mapped = {"weights", "kv_cache"}
        FakeExecutor.made.append(self)

    def collective_rpc(  # type: ignore[override]
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
    ) -> list[Any]:
        self.threads.add(threading.get_ident())
        assert isinstance(method, str)
        self.calls.append(method)
        answers = {
            "get_kv_cache_spec": {
                "layers.0": FullAttentionSpec(
                    block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=32, dtype=torch.float32
                )
            },
            "determine_available_memory": self.num_blocks * BLOCK_BYTES,
            "get_supported_kv_cache_layouts": ["NHD"],
            "resident_bytes": len(self.mapped),
            "get_supported_tasks": ("generate",),
        }
        if method == "compile_or_warm_up_model":
            return []
        if method == "finish_load":
            self.version += 1
        return [answers.get(method)]

    def execute_model(  # type: ignore[override]
        self, scheduler_output: SchedulerOutput, non_block: bool = False
    ) -> Any:
        self.threads.add(threading.get_ident())
        assert self.mapped == {"weights", "kv_cache"}, "a batch was launched on memory that is not there"
        ids = list(scheduler_output.num_scheduled_tokens)
        token = FIRST_TOKEN + self.version
        tokens = np.full((len(ids), 1), token)
        log_probs = LogprobsLists(tokens, np.full((len(ids), 1), -1.0, np.float32), np.ones(len(ids), np.int64))
        numbers = {identity: number for number, identity in enumerate(ids)}
        output = ModelRunnerOutput(ids, numbers, [[token] for _ in ids], log_probs)
        if not ids:
            return _resolved(output)
        self.launched.append(output)
        self.num_batches += 1
        self.gate.wait(self.num_batches)
        return _resolved(None)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:  # type: ignore[override]
        return _resolved(self.launched.pop(0))

    def sleep(self, level: int = 1) -> None:
        self.mapped.clear()
        self.sleeping_tags = {"weights", "kv_cache"}

    def discard(self, tags: tuple[str, ...]) -> None:
        self.mapped -= set(tags)
        self.sleeping_tags |= set(tags)

    def wake_up(self, tags: list[str] | None = None) -> None:
        woken = set(tags or ("weights", "kv_cache"))
        self.mapped |= woken
        self.sleeping_tags -= woken

    def check_health(self) -> None:
        pass

    def shutdown(self) -> None:
        """Called wherever the engine is collected as garbage."""


def _resolved(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


def new_engine(arguments: EngineArgs) -> LLMEngine:
    """What LLMEngine.from_engine_args is on CUDA, as far as scheduling goes: vLLM's CPU platform switches it off."""
    config = arguments.create_engine_config()
    config.scheduler_config.async_scheduling = True
    return LLMEngine(config, FakeExecutor, log_stats=not arguments.disable_log_stats)
