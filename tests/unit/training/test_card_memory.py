"""Turns on one card by the memory that both roles take of it, for every recipe with shared GPUs and the planner's
numbers (tests/support/card.py says what that cannot show)."""

from __future__ import annotations

from pathlib import Path

import pytest
from brorl_launcher.planner.hardware import configured_hardware
from brorl_launcher.planner.plan import Plan, make_plan

from nemo_brorl.config.load import load_config
from nemo_brorl.core.clock import Stopwatch
from nemo_brorl.training.device_handover import DeviceHandover
from tests.support.card import Card, CardEngine, CardPolicy, OutOfMemoryOnCardError

pytestmark = pytest.mark.slow

RECIPES = (
    "brorl_64gpu",
    "brorl_8gpu",
    "brorl_7b",
    "brorl_7b_fp8",
    "brorl_32b",
    "brorl_qwen3_30b_a3b",
    "prorl_v2",
    "prorl_v1",
    "brorl_on_plateau",
    "brorl_1gpu",
)


def plan_of(recipe: str) -> Plan:
    config = load_config(recipe, [])
    return make_plan(config, configured_hardware(config, "h100"))


def pair_on(card: Card, plan: Plan, gives_back: bool = True) -> DeviceHandover:
    """Engines start first and sleep, and the policy loads beside them."""
    engine = CardEngine(plan, card)
    engine.sleep()
    return DeviceHandover(CardPolicy(plan, card, gives_back), engine)


def run_turns(handover: DeviceHandover) -> None:
    """A resume with its rehearsal, two steps, a checkpoint, log-probs."""
    with handover.first_phase(1):
        handover.policy.rehearse(1)
    for version in (2, 3):
        with handover.policy_phase(Stopwatch()) as phase:
            handover.policy.update(None)  # type: ignore[arg-type]
            phase.set_version(version)
    with handover.policy_phase(Stopwatch()):
        handover.policy.begin_save(Path())
    with handover.policy_phase(Stopwatch()):
        handover.policy.log_probs([], [])


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_turn_of_every_recipe_fits_on_the_card(recipe: str) -> None:
    plan = plan_of(recipe)
    card = Card(plan.devices[0].capacity_gib)
    run_turns(pair_on(card, plan))
    planned = plan.devices[0]
    assert card.used == pytest.approx(planned.peak("generate"), abs=0.01)
    assert card.peak == pytest.approx(planned.peak(planned.worst_moment), abs=0.01)


@pytest.mark.parametrize("recipe", ["brorl_64gpu", "brorl_8gpu", "prorl_v2", "prorl_v1", "brorl_on_plateau"])
def test_an_engine_does_not_wake_beside_a_policy_that_keeps_what_it_freed(recipe: str) -> None:
    plan = plan_of(recipe)
    card = Card(plan.devices[0].capacity_gib)
    with pytest.raises(OutOfMemoryOnCardError, match="engine asks for"):
        run_turns(pair_on(card, plan, gives_back=False))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("publishes", [True, False], ids=["published", "not published"])
def test_an_engine_that_takes_anothers_place_fits_beside_the_policy(recipe: str, publishes: bool) -> None:
    plan = plan_of(recipe)
    handover = pair_on(Card(plan.devices[0].capacity_gib), plan)
    with handover.first_phase(1):
        pass
    handover.generator.loses_engine = True  # type: ignore[attr-defined]
    with handover.policy_phase(Stopwatch()) as phase:
        handover.policy.update(None)  # type: ignore[arg-type]
        if publishes:
            phase.set_version(2)
    run_turns(handover)


def test_an_engine_that_measures_while_the_policy_offloads_does_not_start() -> None:
    plan = plan_of("brorl_1gpu")
    handover = pair_on(Card(plan.devices[0].capacity_gib), plan)
    with handover.first_phase(1):
        pass
    engine = handover.generator
    engine.loses_engine = engine.measures = True  # type: ignore[attr-defined]
    with (
        pytest.raises(OutOfMemoryOnCardError, match="freed memory while vLLM measured"),
        handover.policy_phase(Stopwatch()),
    ):
        handover.policy.log_probs([], [])
