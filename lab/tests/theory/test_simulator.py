"""The simulator: the published shape at a tenth of the size, exact steps by hand, and independence of its rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from brorl_lab.commands.simulate import main
from brorl_lab.theory.simulator import Simulation, ablations, equal_draws, simulate

pytestmark = pytest.mark.slow

SMALL = Simulation(sizes=(4, 512), num_tokens=2000, num_correct=200, num_steps=30, precision="float64")


def test_the_seeded_start_has_the_mass_of_its_logits() -> None:
    first = next(simulate(Simulation(sizes=(4,), precision="float64")))
    correct = 9999 * np.exp(3.0) + np.exp(5.0)
    assert first.q_pos[0] == pytest.approx(correct / (correct + 118_000), rel=1e-12)  # 0.6301
    assert first.share_improved[0] == 0


def test_one_adam_step_moves_every_drawn_token_by_the_learning_rate() -> None:
    # Two tokens of which one is right; both drawn: Adam's first step is lr · sign(gradient), here without decay.
    setting = Simulation(
        sizes=(1000,), num_tokens=2, num_correct=1, num_steps=1, weight_decay=0.0, is_seeded=False, precision="float64"
    )
    before, after = simulate(setting)
    assert before.q_pos[0] == 0.5
    assert after.q_pos[0] == pytest.approx(1 / (1 + np.exp(-2e-3)), abs=1e-7)


def test_a_row_does_not_depend_on_the_sizes_beside_it() -> None:
    both, alone = list(simulate(SMALL))[-1], list(simulate(replace(SMALL, sizes=(512,))))[-1]
    assert both.q_pos[1] == alone.q_pos[0]


def test_a_larger_n_ends_with_more_mass_on_correct_tokens() -> None:
    last = list(simulate(replace(SMALL, num_steps=300)))[-1]
    assert last.q_pos[1] > last.q_pos[0]
    assert last.share_improved[1] > last.share_improved[0]


def test_single_and_double_precision_agree() -> None:
    single, double = (list(simulate(replace(SMALL, precision=precision)))[-1] for precision in ("float32", "float64"))
    assert single.q_pos == pytest.approx(double.q_pos, abs=1e-5)


@pytest.mark.end_to_end
def test_the_published_setting_gives_the_reproduced_numbers() -> None:
    last = list(simulate(Simulation(sizes=(4, 16, 512, 51200))))[-1]
    assert last.q_pos == pytest.approx([0.601, 0.607, 0.634, 0.647], abs=0.002)
    assert 100 * last.share_improved == pytest.approx([11, 32, 63, 100], abs=2)


def test_the_decline_at_small_n_is_a_gradient_below_epsilon_and_not_weight_decay() -> None:
    """A vocabulary 32 times smaller has gradients of tokens not drawn 32² times larger, so epsilon is, too."""
    small = Simulation(sizes=(4,), num_tokens=4000, num_correct=312, num_steps=200, eps=1e-5, precision="float64")

    def change(simulation: Simulation) -> float:
        first, *_, last = simulate(simulation)
        return float(last.q_pos[0] - first.q_pos[0])

    assert change(small) < 0
    assert change(replace(small, weight_decay=0.0)) < change(small) / 2, "most of the decline remains"
    assert change(replace(small, eps=1e-15)) > 0, "every gradient is above epsilon: nothing declines"


def test_settings_that_cannot_be_are_named() -> None:
    for wrong, message in (
        ({"rule": "ppo"}, "rule='ppo' is unknown"),
        ({"sizes": (0,)}, r"sizes=\[0\]"),
        ({"num_correct": 2000}, "num_correct=2000 must be between 1 and num_tokens − 1 = 1999"),
        ({"learning_rates": (1e-3,)}, "1 learning rates for 2 rollout sizes"),
    ):
        with pytest.raises(ValueError, match=message):
            next(simulate(replace(SMALL, **wrong)))


def test_equal_draws_spend_the_same_number_whatever_n() -> None:
    settings = equal_draws(replace(SMALL, num_steps=100), 512, 51200)
    assert {name: setting.num_steps * setting.sizes[0] for name, setting in settings.items()} == dict.fromkeys(
        settings, 51200
    )
    assert settings["N=51200, linear"].learning_rates == (pytest.approx(0.1),)
    with pytest.raises(ValueError, match="not a whole number of steps"):
        equal_draws(replace(SMALL, num_steps=30), 512, 51200)


def test_without_seeding_no_correct_token_is_told_apart_at_the_start() -> None:
    assert next(simulate(ablations(SMALL)["not seeded"])).q_pos == pytest.approx([0.1, 0.1])


def test_the_command_writes_tables_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--tokens", "300", "--correct", "30", "--steps", "100", "--sizes", "4", "64", "--output", str(tmp_path)]
    assert main(options) == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        "simulation.csv", "equal_draws.csv", "figure_3.png", "ablations.png", "equal_draws.png"
    }  # fmt: skip
    lines = (tmp_path / "simulation.csv").read_text().splitlines()
    assert len(lines) == 1 + 4 * 101 * 2  # settings × steps with step 0 × sizes
    assert "policy gradient, after 100 steps" in capsys.readouterr().out


def test_the_command_refuses_what_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--correct", "0", "--output", str(tmp_path / "out")]) == 2
    assert "num_correct=0 must be between 1 and" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
