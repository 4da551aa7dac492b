"""Estimated seconds against numbers worked by hand and published steps on H100s."""

from __future__ import annotations

import math

import pytest
from brorl_launcher.planner.hardware import configured_hardware
from brorl_launcher.planner.plan import Plan, make_plan
from brorl_launcher.planner.step_time import (
    EngineSpeed,
    decode_seconds,
    engine_speed,
    mean_cached_tokens,
    prompt_tokens_computed,
)
from brorl_launcher.planner.workload import ASSUMED, Lengths, Workload, micro_batches, workload_of

from nemo_brorl.config.load import load_config
from nemo_brorl.config.parallel_layout import layout_of
from nemo_brorl.config.schema import BroRLConfig

pytestmark = pytest.mark.slow

# A step takes a second whatever its batch, then two more for every rollout.
SIMPLE = EngineSpeed(0, 0, 1.0, 0, 0, 0, math.inf, 1.0, step_s=1.0, rollout_s=2.0)


def work(response: float = 10, spread: float = 0.0, prompt: float = 100, num: int = 64, prompts: int = 4) -> Workload:
    return Workload(num, prompts, 1.0, prompt, response, 1000, spread)


def test_rollouts_of_one_length_run_in_rounds() -> None:
    seconds, tail = decode_seconds(SIMPLE, 4, 2, work())
    assert seconds == 2 * 10 * (1 + 2 * 2)  # two rounds of ten steps with two rollouts
    assert tail == 0.5


def test_a_long_tail_runs_with_a_small_batch() -> None:
    even, _ = decode_seconds(SIMPLE, 64, 64, work(response=100))
    uneven, _ = decode_seconds(SIMPLE, 64, 64, work(response=100, spread=0.7))
    assert even == 100 * (1 + 2 * 64)
    assert uneven - even == pytest.approx(
        max(work(100, 0.7).response_quantiles(64)) - 100, abs=0.02 * even
    )  # tokens are the same


def test_a_step_takes_as_long_as_its_bytes_or_its_operations() -> None:
    speed = EngineSpeed(weight_bytes=80, expert_bytes=0, expert_share=1, token_bytes=1, flops=10, context_flops=0,
                        bandwidth=10,
                        matrix_flops=1, step_s=0, rollout_s=0)  # fmt: skip
    assert speed.step_seconds(1, 20) == 10  # (80 + 20) / 10 bytes, 10 operations
    assert speed.step_seconds(8, 20) == 80  # (80 + 160) / 10, 80 operations
    mixture = EngineSpeed(0, 128, 0.5, 0, 0, 0, 1, 1, 0, 0)
    assert [mixture.step_seconds(batch, 0) for batch in (1, 2, 50)] == [
        64,
        96,
        pytest.approx(128),
    ]  # experts that some token uses


def test_lengths_keep_their_mean_under_the_limit() -> None:
    lengths = Workload(64, 4, 1.0, 10, 500, 800, 1.0).response_quantiles(1000)
    assert sum(lengths) / 1000 == pytest.approx(500, rel=0.01)
    assert max(lengths) == 800


def test_prompts_are_computed_once_an_engine_and_the_last_block_for_every_rollout() -> None:
    config = load_config("brorl_cpu", ["rollouts.num_per_prompt=64", "rollouts.chunk_size=32"])
    cached = mean_cached_tokens(100, 32)
    assert cached == pytest.approx(sum((100 * (0.65 + 0.05 * i) - 1) // 32 * 32 for i in range(15)) / 15)
    assert prompt_tokens_computed(config, work(), 8) == pytest.approx(4 * (2 * 100 + 62 * (100 - cached)))


def test_micro_batches_hold_the_responses_and_a_copy_of_a_prompt_for_each_group_in_them() -> None:
    config = load_config(
        "brorl_cpu",
        ["policy.tokens_per_micro_batch=600", "algorithm.num_mini_batches=2", "policy.data_parallel_size=2"],
    )
    found = micro_batches(config, work(response=10, prompt=100, num=64, prompts=4), layout_of(config))
    # 64 rollouts for each of two ranks: 640 tokens and two prompts need two rows; each has 32 rollouts, all of one
    # group
    assert (found.num, found.response_tokens) == (2, 320)
    assert found.tokens == pytest.approx(320 + 100 * (1 + 31 / 32))


def test_keep_rates_are_the_papers() -> None:
    rates = {name: workload_of(load_config(name), Lengths()).keep_rate for name in ("prorl_v2", "brorl")}
    assert rates == {"prorl_v2": pytest.approx(0.41), "brorl": pytest.approx(0.62)}


# NeMo RL's performance summary (docs/about/performance-summary.md) and the layouts of its recipes
# (examples/configs/recipes/llm/performance/): H100s, 64 prompts × 32 rollouts, four mini-batches, the policy on the
# host while rollouts are sampled. Nodes, mean tokens of a sequence, seconds of a step, layout, GPUs of an engine, and
# the plan over the published seconds.
PUBLISHED: dict[str, tuple[int, int, float, dict[str, int], int, float]] = {
    "llama-3.1-8b": (2, 1019, 92.8, {"pipeline_model_parallel_size": 2}, 1, 0.88),
    "qwen3-32b": (4, 3251, 376.0, {"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 4}, 4, 1.26),
    "qwen3-30b-a3b": (4, 3203, 192.0, {"expert_model_parallel_size": 8}, 2, 0.92),
}


def published(name: str) -> Plan:
    nodes, mean, _, policy, engine, _ = PUBLISHED[name]
    settings = {
        "policy.model": name, "trainer.num_nodes": nodes, "rollouts.num_per_prompt": 32,
        "rollouts.prompts_per_step": 64,
        "rollouts.max_response_tokens": 3840, "data.max_prompt_tokens": 256, "evaluation.max_response_tokens": 3840,
        "generation.max_model_len": 4096, "dynamic_sampling.enabled": "false", "algorithm.num_mini_batches": 4,
        "trainer.val_interval": 0, "trainer.save_interval": 0, "generation.gpu_memory_utilization": 0.6,
        "policy.offload": "all", "policy.sequence_parallel": str("tensor_model_parallel_size" in policy).lower(),
        "policy.recompute": "full", "policy.tokens_per_micro_batch": 4096, "generation.tensor_parallel_size": engine,
    } | {f"policy.{key}": value for key, value in policy.items()}  # fmt: skip
    config = load_config("brorl", [f"{key}={value}" for key, value in settings.items()])
    return make_plan(config, configured_hardware(config), Lengths(prompt=150, response=mean - 150))


@pytest.mark.parametrize("name", PUBLISHED)
def test_steps_on_h100s_in_published_layouts_take_about_as_long_as_published(name: str) -> None:
    *_, seconds, _, _, ratio = PUBLISHED[name]
    plan = published(name)
    assert plan.time.seconds / seconds == pytest.approx(ratio, abs=0.01)
    assert plan.fits, "as it did for those who published it"


def test_two_of_three_published_steps_are_planned_within_fifteen_percent() -> None:
    assert sum(abs(ratio - 1) <= 0.15 for *_, ratio in PUBLISHED.values()) == 2


def test_an_fp8_cache_moves_half_of_the_bytes_of_a_decode_step() -> None:
    configs = [load_config("brorl_64gpu", added) for added in ([], ["+generation.engine_args.kv_cache_dtype=fp8"])]
    hardware = configured_hardware(configs[0])
    shape = make_plan(configs[0], hardware).shape
    full, half = (engine_speed(config, shape, hardware) for config in configs)
    assert half.token_bytes == full.token_bytes / 2 == 28 * 2 * 2 * 128
    assert half.weight_bytes == full.weight_bytes


def test_a_sequence_costs_the_host_time_of_the_scheduler_that_runs() -> None:
    """The lean scheduler is off on GPUs unless it is set."""
    config = load_config("brorl_64gpu")
    hardware = configured_hardware(config)
    shape = make_plan(config, hardware).shape
    lean = load_config("brorl_64gpu", ["generation.lean_scheduler=on"])
    assert engine_speed(config, shape, hardware).rollout_s == 30e-6
    assert engine_speed(lean, shape, hardware).rollout_s == 7e-6


def test_the_papers_rollouts_take_about_as_long_as_they_did() -> None:
    """arXiv 2510.01180: 72.4 samples/s at N = 512 on 64 H100; mean lengths are not published, half the limit is
    assumed."""
    config = load_config("brorl_64gpu")
    plan = make_plan(config, configured_hardware(config))
    seconds = {stage.name: stage.seconds for stage in plan.time.stages}
    assert plan.work.sampled / seconds["generate"] == pytest.approx(72.4, rel=0.5)


def test_what_is_computed_anew_takes_its_share_of_a_forward_pass() -> None:
    """Of the 1.5B model the MLPs are 28 · 3 · 1,536 · 8,960 of the products' 1.54 G parameters."""
    notes = {}
    for recompute in ("null", "selective", "full"):
        config = load_config("brorl_64gpu", [f"policy.recompute={recompute}"])
        plan = make_plan(config, configured_hardware(config))
        notes[recompute] = {stage.name: stage.note for stage in plan.time.stages}["update"]
    assert notes["null"].startswith("3 forward passes")
    assert notes["full"].startswith("4 forward passes")
    parameters = 2 * (28 * (2 * 1536 * 14 * 128 + 3 * 1536 * 8960) + 151_936 * 1536)
    attended = 4 * 28 * 12 * 128 * attended_tokens(config)
    share = 2 * 28 * 3 * 1536 * 8960 / (parameters + attended)
    assert notes["selective"].startswith(f"{3 + share:.3g} forward passes")


def attended_tokens(config: BroRLConfig) -> float:
    return workload_of(config, ASSUMED).attended_tokens
