"""`brorl sweep`: the grid, which runs are run, and the tables; training itself is a fake that writes metrics."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from brorl_lab.commands import sweep
from brorl_lab.commands.sweep import curve_of, main, mean_and_interval, plan_runs, read_file, tables

from nemo_brorl.config.load import load_config
from nemo_brorl.config.same_run import leaves
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.clock import SAVED
from nemo_brorl.core.errors import ConfigError

pytestmark = pytest.mark.slow

ABLATIONS = Path(__file__).parents[3] / "lab" / "studies" / "sweeps" / "ablations.yaml"
TEXT = """
config: sums_cpu
output: {output}
common: [trainer.max_steps=4]
axes:
  n:
    16: [rollouts.num_per_prompt=16, rollouts.prompts_per_step=256, rollouts.chunk_size=16]
    64: [rollouts.num_per_prompt=64, rollouts.prompts_per_step=64]
  lr: {{1e-4: [policy.optim.lr=1e-4], 2e-4: [policy.optim.lr=2e-4], 4e-4: [policy.optim.lr=4e-4]}}
seeds: [1, 2]
hypothesis: more of N is more
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(TEXT.format(output=tmp_path / "runs"))
    return path


class FakeTraining:
    """`subprocess.run` that trains: every process does `steps_each` steps, then is told to go on later."""

    def __init__(self, steps_each: int = 4) -> None:
        self.steps_each = steps_each
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str], check: bool) -> subprocess.CompletedProcess[bytes]:
        self.commands.append(command)
        (folder,) = [part.partition("=")[2] for part in command if part.startswith("exp_manager.explicit_log_dir=")]
        file = Path(folder) / "metrics.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        steps = [json.loads(line)["step"] for line in file.read_text().splitlines()] if file.exists() else [-1]
        last = min(steps[-1] + self.steps_each + (steps[-1] < 0), 4)
        with file.open("a") as out:
            for step in range(steps[-1] + 1, last + 1):
                out.write(json.dumps(row_of(step, 0.1 + 0.1 * step)) + "\n")
        return subprocess.CompletedProcess(command, 0 if last == 4 else SAVED)


def row_of(step: int, score: float) -> dict[str, Any]:
    """Metrics of a step of 100 rollouts and 10 + 5 seconds; step 0 is the base's validation."""
    row: dict[str, Any] = {"step": step, "validation/pass_at_1": score, "time/validate_s": 50.0}
    if step > 0:
        row |= {"generation/num_samples": 100.0, "time/collect_s": 10.0, "time/generate_s": 9.0, "time/update_s": 5.0}
    return row


def test_every_combination_has_every_seed_and_seeds_are_outermost(path: Path) -> None:
    runs = plan_runs(read_file(path))
    assert len(runs) == 2 * 3 * 2
    assert [run.seed for run in runs] == [1] * 6 + [2] * 6
    assert runs[1].arm == "n=16 lr=2e-4"
    assert runs[1].folder == path.parent / "runs" / "n_16_lr_2e-4" / "seed_1"
    assert runs[1].overrides[:5] == (
        "trainer.max_steps=4",
        "rollouts.num_per_prompt=16",
        "rollouts.prompts_per_step=256",
        "rollouts.chunk_size=16",
        "policy.optim.lr=2e-4",
    )
    assert runs[1].max_steps == 4


def run_with(monkeypatch: pytest.MonkeyPatch, run: Callable[..., subprocess.CompletedProcess[bytes]]) -> None:
    """Replace `subprocess` in the sweep only, since matplotlib asks for the machine's fonts by a process of its own."""
    monkeypatch.setattr(sweep, "subprocess", SimpleNamespace(run=run))


def test_a_sweep_goes_on_where_it_was_broken_off(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    training = FakeTraining(steps_each=2)
    run_with(monkeypatch, training)
    assert main([str(path), "--only", "2"]) == 0
    assert len(training.commands) == 2  # saved after two steps, then run again
    assert "policy.optim.lr=2e-4" in training.commands[0]
    assert main([str(path)]) == 0
    assert len(training.commands) == 2 + 11 * 2
    assert main([str(path)]) == 0
    assert len(training.commands) == 2 + 11 * 2  # nothing is left to do
    shown = capsys.readouterr().out
    assert "hypothesis, written before the runs: more of N is more" in shown
    assert "at 400 rollouts" in shown
    assert (path.parent / "runs" / "sweep.png").stat().st_size > 1000


def test_a_run_that_fails_is_named_and_the_others_go_on(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    training = FakeTraining()

    def fail_once(command: list[str], check: bool) -> subprocess.CompletedProcess[bytes]:
        done = training(command, check)
        return subprocess.CompletedProcess(command, 2) if len(training.commands) == 3 else done

    run_with(monkeypatch, fail_once)
    assert main([str(path)]) == 1
    assert len(training.commands) == 12
    assert "n=16 lr=4e-4, seed 1 ended with exit code 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("seeds: [1, 2]", "seeds: one"), "seeds=one: set a list of whole numbers"),
        (("seeds: [1, 2]", "seed: [1, 2]"), r"missing \['seeds'\], unknown \['seed'\]"),
        (("[policy.optim.lr=1e-4]", "policy.optim.lr=1e-4"), "axes.lr.1e-4=policy.optim.lr=1e-4 is no list"),
        (("policy.optim.lr=4e-4", "policy.optim.rate=4e-4"), "policy.optim.rate"),
        (("sums_cpu", "no_such_recipe"), "no_such_recipe"),
    ],
)
def test_mistakes_in_the_file_are_told_before_anything_runs(path: Path, change: tuple[str, str], message: str) -> None:
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(ConfigError, match=message):
        plan_runs(read_file(path))


def test_samples_and_seconds_count_training_alone() -> None:
    curve = curve_of([row_of(0, 0.1), row_of(1, 0.2), row_of(2, 0.5)])
    assert curve is not None
    assert curve.samples.tolist() == [0, 100, 200]
    assert curve.seconds.tolist() == [0, 15, 30]
    assert curve.score_at("samples", 150) == pytest.approx(0.35)
    assert curve_of([row_of(0, 0.1)]) is None


def test_arms_are_compared_seed_by_seed_where_all_of_them_have_come() -> None:
    rows_of = {
        "n=16": {1: [row_of(0, 0.1), row_of(1, 0.2), row_of(2, 0.3)], 2: [row_of(0, 0.1), row_of(1, 0.3)]},
        "n=64": {1: [row_of(0, 0.1), row_of(1, 0.3)], 2: [row_of(0, 0.1), row_of(1, 0.5)]},
    }
    title, _, rows = tables(rows_of)[0]
    assert "at 100 rollouts" in title
    # 20 and 30, 30 and 50: mean 40, standard error 10, t(1) = 12.706; differences 10 and 20
    assert rows[0] == ["n=16", "2", "10.0", "25.0 ± 63.5", "", "2"]
    assert rows[1] == ["n=64", "2", "10.0", "40.0 ± 127.1", "15.0 ± 63.5", "1"]


def test_an_arm_says_after_which_share_of_the_first_ones_compute_it_is_where_that_ends() -> None:
    rows_of = {
        "n=16": {1: [row_of(0, 0.1), row_of(1, 0.2), row_of(2, 0.3)], 2: [row_of(0, 0.1), row_of(1, 0.6)]},
        "n=64": {1: [row_of(0, 0.1), row_of(1, 0.5)], 2: [row_of(0, 0.1), row_of(1, 0.5)]},
        "n=512": {1: [row_of(0, 0.3), row_of(1, 0.2)]},
    }
    title, header, rows = tables(rows_of)[2]
    assert title == "share of the first arm's rollouts until its last pass@1 is reached, seed by seed"
    assert header == ["arm", "seed 1", "seed 2"]
    # 0.3 is half of the way from 0.1 to 0.5: 50 of 200 rollouts; the base of the last has it already
    assert rows == [["n=64", "0.25", "never"], ["n=512", "0.00", "never"]]


def test_one_value_has_no_interval() -> None:
    assert mean_and_interval([3.25]) == "3.2"


def test_an_arm_of_the_ablations_differs_from_the_whole_by_its_switch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[BroRLConfig] = []

    def load_and_keep(config_name: str, overrides: Sequence[str]) -> BroRLConfig:
        checked.append(load_config(config_name, overrides))
        return checked[-1]

    monkeypatch.setattr(sweep, "load_config", load_and_keep)
    file = read_file(ABLATIONS)
    runs = plan_runs(file)
    arms = file.axes["without"]
    assert len(runs) == len(arms) * len(file.seeds)
    assert runs[0].arm == "without=nothing"
    whole, *others = (dict(leaves(dataclasses.asdict(config), "")) for config in checked)
    for without, (arm, switch) in zip(others, list(arms.items())[1:], strict=True):
        changed = {name for name, value in without.items() if value != whole[name]}
        assert changed - {"exp_manager.explicit_log_dir"} == {setting.partition("=")[0] for setting in switch}, arm
    switches = [tuple(switch) for switch in arms.values()]
    assert len(set(switches)) == len(switches)
