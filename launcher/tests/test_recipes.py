"""Every recipe for GPUs survives a job of days, and has a layout that is about as fast as the planner's best."""

from __future__ import annotations

from functools import cache

import pytest
from brorl_launcher.planner.evidence import PAPER_STEP_S, never_run, paper_step_s
from brorl_launcher.planner.hardware import configured_hardware
from brorl_launcher.planner.plan import Plan, make_plan
from brorl_launcher.planner.proposals import propose_layouts
from brorl_launcher.planner.step_time import StepTime
from brorl_launcher.planner.tables import evidence
from brorl_launcher.planner.workload import ASSUMED

from nemo_brorl.config.load import load_config
from nemo_brorl.config.rules import check_rules
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.policy.process.process_groups import COLLECTIVE_TIMEOUT
from tests.support.source_tree import ROOT

pytestmark = pytest.mark.slow

# save_interval, stall_timeout_s, start_timeout_s as loaded and as chosen: 1,800 s and 30 s for each GiB of weights
# in bf16. 1.777 G parameters: 3.31 GiB, 99 s; 7.616 G: 14.19 GiB, 426 s; 32.764 G: 61.03 GiB, 1,831 s;
# 30.532 G: 56.87 GiB, 1,706 s.
EXPECTED = {
    "prorl_v1": (10, 900, None, 1899),
    "prorl_v2": (10, 900, None, 1899),
    "brorl": (1, 900, None, 1899),
    "brorl_on_plateau": (1, 900, None, 1899),
    "brorl_five_domains": (1, 900, None, 1899),
    "brorl_64gpu": (1, 900, None, 1899),
    "brorl_64gpu_fast": (1, 900, None, 1899),
    "brorl_8gpu": (1, 900, None, 1899),
    "brorl_1gpu": (1, 900, None, 1899),
    "brorl_7b": (1, 900, None, 2226),
    "brorl_7b_fp8": (1, 900, None, 2226),
    "brorl_32b": (1, 900, None, 3631),
    "brorl_qwen3_30b_a3b": (1, 900, None, 3506),
}
EVALUATIONS = {"evaluation", "evaluation_brorl"}  # without a training step
# Settings that a recipe leaves to its user.
NEEDED = {
    "brorl_five_domains": [f"data.domains.{number}.path={__file__}" for number in range(4)],
    "sft": [f"data.path={__file__}"],
}
LONG_STEP_S = 600.0


def load(name: str, *overrides: str) -> BroRLConfig:
    return load_config(name, [*NEEDED.get(name, []), *overrides])


@cache
def plan_of(name: str) -> Plan:
    config = load(name)
    return make_plan(config, configured_hardware(config))


def gpu_recipes() -> set[str]:
    names = {path.stem for path in (ROOT / "conf").glob("*.yaml")}
    return {name for name in names if load(name).trainer.num_gpus > 0} - EVALUATIONS


def test_the_table_has_every_recipe_for_gpus() -> None:
    assert gpu_recipes() == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recipe_loses_little_when_a_process_fails_or_hangs(name: str) -> None:
    config, plan = load(name), plan_of(name)
    trainer = config.trainer
    chosen = {size.setting: size.value for size in plan.sizes}["trainer.start_timeout_s"]
    assert (trainer.save_interval, trainer.stall_timeout_s, trainer.start_timeout_s, chosen) == EXPECTED[name]
    assert (trainer.save_interval == 1) == (plan.time.seconds > LONG_STEP_S)
    # All responses of a chunk may take as long as a response may be scored.
    assert config.rollouts.chunk_size * config.rewards.timeout_s < trainer.stall_timeout_s
    # What hangs is replaced, or ends with an error of its own, before the run is given up.
    assert config.generation.timeout_s < trainer.stall_timeout_s
    assert COLLECTIVE_TIMEOUT.total_seconds() == 600 < trainer.stall_timeout_s


@pytest.mark.parametrize("name", EXPECTED)
def test_no_recipe_is_five_per_cent_slower_than_the_best_plan_for_its_gpus(name: str) -> None:
    plan = plan_of(name)
    check_rules(plan.config)
    assert plan.fits, plan.refusal
    every = propose_layouts(load(name), plan.hardware, ASSUMED, plan.shape, 1000)
    best = min(every, key=lambda proposal: proposal.plan.time.seconds)
    assert plan.time.seconds <= 1.05 * best.plan.time.seconds, best.overrides


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recipe_leaves_the_last_gibibytes_of_a_gpu_free(name: str) -> None:
    """docs/planner.md: do not trust the last 3 GiB of a memory plan."""
    for memory in plan_of(name).devices:
        assert memory.peak(memory.worst_moment) <= memory.capacity_gib - 3.0


def test_a_plan_counts_the_share_of_a_validation() -> None:
    each, tenth, never = (
        make_plan(config, configured_hardware(config)).time
        for config in (load("brorl_64gpu", f"trainer.val_interval={interval}") for interval in (1, 10, 0))
    )
    assert stage_seconds(each, "validate") == pytest.approx(10 * stage_seconds(tenth, "validate"))
    assert stage_seconds(never, "validate") == 0
    assert tenth.seconds == pytest.approx(never.seconds + stage_seconds(tenth, "validate"))
    # 512 prompts × 16 samples over 64 engines: 128 responses each, all at a time, the longest of 32,768 tokens. A step
    # of one rollout takes at least 3.55 GB / (0.7 · 3.35 TB/s) + 1.3 ms = 2.8 ms, one of the full batch some 20 ms.
    assert 32_768 * 0.0028 < stage_seconds(each, "validate") < 32_768 * 0.020
    note = {stage.name: stage.note for stage in tenth.stages}["validate"]
    assert "every 10 steps: 8,192 responses of 14,746 tokens up to 32,768" in note  # 0.45 · 32,768


def test_a_longer_validation_takes_longer() -> None:
    def validate_s(*overrides: str) -> float:
        config = load("brorl_64gpu", *overrides)
        return stage_seconds(make_plan(config, configured_hardware(config)).time, "validate")

    few = validate_s("evaluation.num_prompts=64")
    short = validate_s("evaluation.max_response_tokens=4096")
    assert max(few, short) < validate_s()


def test_the_papers_step_stands_beside_the_plan_of_the_papers_run_and_no_other() -> None:
    assert pytest.approx(3384, abs=1) == PAPER_STEP_S  # 393.9 h, 419 steps
    shown = {name for name in EXPECTED if paper_step_s(plan_of(name)) is not None}
    assert shown == {"brorl", "brorl_64gpu", "brorl_64gpu_fast", "brorl_five_domains", "brorl_on_plateau"}
    assert "the paper's step took 3,384 s" in evidence(plan_of("brorl_64gpu"))[0]


def test_a_plan_says_which_of_its_pieces_have_never_run() -> None:
    one = load("brorl_1gpu", "generation.engine_args={scheduler_cls: null}")
    assert evidence(make_plan(one, configured_hardware(one))) == []
    assert {"several nodes", "expert parallelism", "engines over several GPUs"} <= set(
        never_run(plan_of("brorl_qwen3_30b_a3b"))
    )
    assert {"context parallelism", "FP8 over several ranks"} <= set(never_run(plan_of("brorl_32b")))
    assert "several nodes" not in never_run(plan_of("brorl_8gpu"))


def stage_seconds(time: StepTime, name: str) -> float:
    return sum(stage.seconds for stage in time.stages if stage.name == name)
