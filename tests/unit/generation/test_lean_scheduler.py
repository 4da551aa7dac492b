"""Whole runs of the lean scheduler and of vLLM's own, over a made-up device.

The token and log-prob at a position follow from the request's seed, so two schedulers that do the same give the same.
Every step is compared: what it schedules, in which order and with which blocks.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_brorl.generation.device import prepare_process
from tests.support.tiny_model import make_tiny_model

pytestmark = pytest.mark.slow

EOS, SECOND_EOS = 2, 4
NUM_CASES = 100


@pytest.fixture(scope="module", autouse=True)
def vllm_process() -> Iterator[None]:
    """The environment of an engine's process, taken back after the module."""
    before = dict(os.environ)
    prepare_process(on_cpu=True)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@dataclass
class Case:
    """Requests that arrive, are cut off and wait for memory in some order."""

    max_num_seqs: int
    batch_tokens: int
    max_model_len: int
    block_size: int
    num_blocks: int
    end_rate: float  # share of tokens that end their request
    arrivals: dict[int, list[tuple[str, int, list[int], int]]]  # by step: name, seed, prompt, max_tokens
    aborts: dict[int, list[str]]
    resets: set[int]  # steps before which the cache is emptied under running requests, as new weights do
    stop_tokens: list[int] = field(default_factory=list)


def draw_case(seed: int) -> Case:
    draw = np.random.default_rng(seed)
    prompts = [draw.integers(5, 300, draw.integers(3, 150)).tolist() for _ in range(3)]
    max_model_len = int(draw.choice([176, 320]))
    arrivals: dict[int, list[Any]] = {}
    aborts: dict[int, list[str]] = {}
    for index in range(int(draw.integers(5, 60))):
        prompt = prompts[draw.integers(3)]
        if draw.random() < 0.2:
            prompt = draw.integers(5, 300, draw.integers(1, 100)).tolist()
        request = (f"r{index}", index, prompt, int(draw.integers(1, 120)))
        arrivals.setdefault(int(draw.integers(0, 60)), []).append(request)
        if draw.random() < 0.15:
            aborts.setdefault(int(draw.integers(1, 150)), []).append(request[0])
    max_num_seqs = int(draw.integers(2, 24))
    return Case(
        max_num_seqs=max_num_seqs,
        batch_tokens=int(max(max_num_seqs, draw.integers(24, 256))),
        max_model_len=max_model_len,
        block_size=int(draw.choice([16, 32])),
        num_blocks=int(draw.choice([24, 40, 80, 400])) + 1,
        end_rate=float(draw.choice([0.0, 0.02, 0.1])),
        arrivals=arrivals,
        aborts=aborts,
        resets={int(step) for step in draw.integers(1, 120, draw.integers(0, 3))},
        stop_tokens=[SECOND_EOS] if draw.random() < 0.5 else [],
    )


def mixed(seed: int, position: int) -> int:
    """A number that looks random, and is the same in every run."""
    value = (seed * 0x9E3779B1 + position * 0x85EBCA77 + 0x27D4EB2F) & 0xFFFFFFFF
    value = ((value ^ value >> 15) * 0x2C1B3C6D) & 0xFFFFFFFF
    return value ^ value >> 13


class FakeDevice:
    """Computes what it is told to, from seeds and positions alone."""

    def __init__(self, end_rate: float) -> None:
        self.end_rate = end_rate
        self.seeds: dict[str, int] = {}
        self.prefill: dict[str, int] = {}  # tokens before the first sampled one

    def run(self, output: Any) -> Any:
        from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput

        computed = {}
        for new in output.scheduled_new_reqs:
            self.seeds[new.req_id] = new.sampling_params.seed
            self.prefill[new.req_id] = len(new.prompt_token_ids)
            computed[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for name, tokens in cached.all_token_ids.items():
            self.prefill[name] = len(tokens)
        computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        names = list(output.num_scheduled_tokens)[::-1]  # a runner has an order of its own
        token_ids = []
        log_probs = np.zeros((len(names), 1), np.float32)
        for row, name in enumerate(names):
            position = computed[name] + output.num_scheduled_tokens[name]
            value = mixed(self.seeds[name], position)
            token = 5 + value % 300
            if value % 100_000 < self.end_rate * 100_000:
                token = EOS if value % 2 else SECOND_EOS
            token_ids.append([token] if position >= self.prefill[name] else [])
            log_probs[row] = -(value % 9973) / 1000
        no_ids, no_ranks = np.zeros((len(names), 1), np.int32), np.ones(len(names), np.int64)
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: row for row, name in enumerate(names)},
            sampled_token_ids=token_ids,
            logprobs=LogprobsLists(no_ids, log_probs, no_ranks),
        )


class FakeConnector:
    """A connector that asks about every step, and sends nothing."""

    def build_connector_meta(self, *args: Any) -> None:
        return None


@dataclass
class Outcome:
    """Everything that a run has shown."""

    token_ids: dict[str, list[int]] = field(default_factory=dict)
    log_probs: dict[str, list[float]] = field(default_factory=dict)
    reasons: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    steps: list[Any] = field(default_factory=list)
    num_preempted: int = 0
    num_lean_tokens: int = 0

    def add(self, outputs: dict[int, Any]) -> None:
        for output in (output for core in outputs.values() for output in core.outputs):
            name = output.request_id
            self.token_ids.setdefault(name, []).extend(output.new_token_ids)
            log_probs = self.log_probs.setdefault(name, [])
            if output.new_logprobs is not None:
                log_probs.extend(output.new_logprobs.logprobs[:, 0].tolist())
            if output.finish_reason is not None:
                self.reasons[name] = (output.finish_reason, output.stop_reason)

    def cut(self, scheduler: Any, name: str) -> None:
        """Add what an unfinished request has sampled and no output has had."""
        sampled = scheduler.unreported(name) if hasattr(scheduler, "unreported") else None
        if sampled is not None:
            assert len(sampled.token_ids) == scheduler.num_unreported(name)
            self.token_ids.setdefault(name, []).extend(sampled.token_ids.tolist())
            self.log_probs.setdefault(name, []).extend(sampled.log_probs.tolist())

    def add_step(self, output: Any) -> None:
        cached = output.scheduled_cached_reqs
        news = [(new.req_id, new.block_ids, new.num_computed_tokens) for new in output.scheduled_new_reqs]
        columns = (cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, cached.num_output_tokens)
        olds = list(zip(*columns, strict=True))
        ends = (sorted(output.finished_req_ids), sorted(output.preempted_req_ids or ()))
        self.steps.append((list(output.num_scheduled_tokens.items()), news, olds, ends))


def make_scheduler(name: str, model: Path, case: Case, **settings: Any) -> tuple[Any, Any]:
    """A scheduler by its name, and what hashes blocks."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    from nemo_brorl.generation.lean_scheduler import make_scheduler as make_lean

    constructors = {"vllm": Scheduler, "vllm async": AsyncScheduler, "lean": make_lean, "lean async": make_lean}
    config = EngineArgs(
        model=str(model),
        max_model_len=case.max_model_len,
        max_num_seqs=case.max_num_seqs,
        max_num_batched_tokens=case.batch_tokens,
        block_size=32,
        enforce_eager=True,
        kv_cache_memory_bytes=2**26,
    ).create_engine_config()
    config.scheduler_config.async_scheduling = name.endswith("async")
    for setting, value in settings.items():
        setattr(config.scheduler_config, setting, value)
    spec = FullAttentionSpec(block_size=case.block_size, num_kv_heads=1, head_size=8, dtype=torch.float32)
    caches = KVCacheConfig(case.num_blocks, [], [KVCacheGroupSpec(["layer"], spec)])
    config.cache_config.num_gpu_blocks = case.num_blocks
    config.cache_config.block_size = case.block_size
    with set_current_vllm_config(config):
        scheduler = constructors[name](
            vllm_config=config,
            kv_cache_config=caches,
            structured_output_manager=StructuredOutputManager(config),
            block_size=case.block_size,
            hash_block_size=case.block_size,
        )
    hash_function = get_hash_fn_by_name("sha256")
    init_none_hash(hash_function)
    return scheduler, get_request_block_hasher(case.block_size, hash_function)


def add_request(
    scheduler: Any, hasher: Any, case: Case, name: str, seed: int, prompt: list[int], max_tokens: int
) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.request import Request

    kind = RequestOutputKind.FINAL_ONLY
    params = SamplingParams(seed=seed, max_tokens=max_tokens, logprobs=0, output_kind=kind)
    params.update_from_generation_config({"eos_token_id": [EOS, *case.stop_tokens]}, EOS)
    scheduler.add_request(Request(name, list(prompt), params, None, block_hasher=hasher))


def run(scheduler: Any, hasher: Any, case: Case) -> Outcome:
    """Run a case to its end, with one step in flight where the scheduler is asynchronous."""
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import RequestStatus

    device = FakeDevice(case.end_rate)
    outcome = Outcome()
    preempt = scheduler._preempt_request

    def count_and_preempt(*args: Any, **kwargs: Any) -> None:
        outcome.num_preempted += 1
        preempt(*args, **kwargs)

    scheduler._preempt_request = count_and_preempt
    max_in_flight = int(scheduler.scheduler_config.async_scheduling)
    in_flight: deque[Any] = deque()
    arrivals = dict(case.arrivals)
    step = 0
    while scheduler.has_requests() or arrivals or in_flight:
        for arrival in arrivals.pop(step, []):
            add_request(scheduler, hasher, case, *arrival)
        for name in case.aborts.get(step, []):
            outcome.cut(scheduler, name)
            scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        if step in case.resets:
            scheduler.reset_prefix_cache(reset_running_requests=True)
        if scheduler.has_requests():
            output = scheduler.schedule()
            outcome.add_step(output)
            is_empty = not output.total_num_scheduled_tokens
            answer = ModelRunnerOutput([], {}) if is_empty else device.run(output)
            in_flight.append((output, answer, is_empty))
        if in_flight and (len(in_flight) > max_in_flight or not scheduler.has_requests() or in_flight[-1][2]):
            output, answer, _ = in_flight.popleft()
            outcome.add(scheduler.update_from_output(output, answer))
        step += 1
        assert step < 20_000, "the run does not end"
    outcome.num_lean_tokens = getattr(scheduler, "num_lean_tokens", 0)
    return outcome


def results(outcome: Outcome) -> tuple[Any, ...]:
    return outcome.token_ids, outcome.log_probs, outcome.reasons, outcome.steps


@pytest.mark.parametrize("kind", ["", " async"])
def test_every_step_token_and_log_prob_is_that_of_vllms_scheduler(model: Path, kind: str) -> None:
    num_lean, num_preempted, num_tokens = 0, 0, 0
    for seed in range(NUM_CASES):
        case = draw_case(seed)
        expected = run(*make_scheduler("vllm" + kind, model, case), case)
        outcome = run(*make_scheduler("lean" + kind, model, case), case)
        assert results(outcome) == results(expected), f"case {seed}"
        num_lean += outcome.num_lean_tokens
        num_preempted += outcome.num_preempted
        num_tokens += sum(map(len, outcome.token_ids.values()))
    # The cases are worth something only if most tokens are lean and memory runs out often.
    assert num_lean > 0.8 * num_tokens
    assert num_preempted > NUM_CASES


@pytest.mark.parametrize("kind", ["", " async"])
def test_without_blocks_of_generated_tokens_every_request_ends_with_the_same_tokens(model: Path, kind: str) -> None:
    for seed in range(0, NUM_CASES, 4):
        case = draw_case(seed)
        # When a request is cut off depends on what the cache had for it.
        case.aborts.clear()
        expected = run(*make_scheduler("vllm" + kind, model, case), case)
        scheduler, hasher = make_scheduler("lean" + kind, model, case)
        scheduler.caches_generated = False
        outcome = run(scheduler, hasher, case)
        assert results(outcome)[:3] == results(expected)[:3], f"case {seed}"


def test_a_step_that_holds_prompts_back_and_one_with_a_connector_are_vllms_own(model: Path) -> None:
    case = Case(4, 64, 320, 16, 81, 0.0, {}, {}, set())
    for attribute, throttle in (("", True), ("connector", False), ("aux_output_connector", False)):
        scheduler, hasher = make_scheduler("lean", model, case)
        add_request(scheduler, hasher, case, "a", 1, [7] * 20, 50)
        device = FakeDevice(0.0)
        for _ in range(3):
            output = scheduler.schedule()
            scheduler.update_from_output(output, device.run(output))
        assert scheduler.num_lean_tokens == 2
        if attribute:
            setattr(scheduler, attribute, FakeConnector())
        scheduler.schedule(throttle)
        assert (scheduler.num_lean_tokens, scheduler.num_unreported("a")) == (2, 2)
        assert scheduler.requests["a"].num_output_tokens == 3


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("watermark", 0.05),
        ("long_prefill_token_threshold", 16),
        ("policy", "priority"),
        ("prefill_schedule_interval", 2),
    ],
)
def test_what_it_does_not_know_is_left_to_vllms_scheduler(model: Path, setting: str, value: Any) -> None:
    case = draw_case(3)
    expected = run(*make_scheduler("vllm", model, case, **{setting: value}), case)
    outcome = run(*make_scheduler("lean", model, case, **{setting: value}), case)
    assert results(outcome) == results(expected)
    assert outcome.num_lean_tokens == 0
