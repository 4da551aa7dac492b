"""Advice from the metrics of a run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from brorl_lab.commands.advise import build_advice, main, measured_step, measured_steps
from brorl_lab.theory.success_prior import SuccessPrior

from nemo_brorl.core.errors import ConfigError, DataError
from nemo_brorl.training.records import read_metrics

HARD = SuccessPrior(0.2, 40.0)


def write_run(path: Path, prior: SuccessPrior, num: int, num_steps: int = 6) -> Path:
    """Metrics of a run with these success rates, 64 groups sampled a step."""
    random = np.random.default_rng(0)
    lines = [{"step": 0, "validation/pass_at_1": 0.1}]
    for step in range(1, num_steps + 1):
        counts = random.binomial(num, random.beta(prior.a, prior.b, 64))
        row: dict[str, float] = {"step": step, "rollouts/successes_all": float((counts == num).mean())}
        k = 1
        while k <= num:
            missed = np.ones(64)
            for place in range(k):
                missed *= np.maximum(num - counts - place, 0) / (num - place)
            row[f"rollouts/pass_at_{k}"] = float(1 - missed.mean())
            k *= 2
        row |= {
            "rollouts/num_per_prompt": num, "rollouts/prompts_per_step": 64, "dynamic_sampling/loss_scale": 1.0,
            "generation/num_samples": 64 * num, "policy/num_updates": 4, "rollouts/prompt_tokens": 40,
            "rollouts/response_tokens": 10, "time/generate_s": 2.0, "time/log_prob_s": 1.0, "time/update_s": 3.0,
        }  # fmt: skip
        lines.append(row)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_row_for_each_n_and_a_word_of_those_that_would_starve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_run(tmp_path / "metrics.jsonl", HARD, num=64)
    assert main([str(path), "--sizes", "4", "64", "512"]) == 0
    text = capsys.readouterr().out
    rows = [line.split() for line in text.splitlines()]
    assert [row[0] for row in rows if row and row[0].isdigit()] == ["4", "64", "512"]
    assert "most signal per second: N" in text
    assert "of fill=samples at N = 4" in text
    true = HARD.keep_rate(4)
    (keep_rates,) = [row[1:4] for row in rows if row and row[0] == "4"]
    assert float(keep_rates[0]) - 0.01 <= true <= float(keep_rates[2]) + 0.01


@pytest.mark.parametrize(("prior", "is_named"), [(HARD, False), (SuccessPrior(9.0, 0.1), True)])
def test_leaving_out_what_is_solved_is_named_where_that_is_most_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], prior: SuccessPrior, is_named: bool
) -> None:
    path = write_run(tmp_path / "metrics.jsonl", prior, num=16)
    assert main([str(path), "--sizes", "16"]) == 0
    assert ("brorl_lab.prompt_pool:retiring_pool leaves them out" in capsys.readouterr().out) is is_named


def test_rate_times_updates_is_told_per_100_000_rollouts(tmp_path: Path) -> None:
    path = write_run(tmp_path / "metrics.jsonl", HARD, num=16)
    table, _ = build_advice(measured_steps(read_metrics(path)), sizes=[64], num_samples=1e6)
    # A batch has 64 groups of 16, so 1,024 rollouts at every N and one rate: 100,000 / 1,024 updates.
    assert table[0][4] == "97.7"


def test_only_the_newest_steps_with_one_n_count(tmp_path: Path) -> None:
    early = write_run(tmp_path / "early.jsonl", HARD, num=4, num_steps=3).read_text()
    late = write_run(tmp_path / "late.jsonl", HARD, num=16, num_steps=2).read_text()
    rows = [json.loads(line) for line in (early + late).splitlines()]
    assert [step.num_per_prompt for step in measured_steps(rows)] == [16, 16]


def test_a_run_that_says_too_little_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match="0 steps have"):
        measured_steps([{"step": 1, "policy/loss": 1.0}])
    with pytest.raises(DataError):
        main([str(write_run(tmp_path / "m.jsonl", HARD, 4, num_steps=1))])
    with pytest.raises(ConfigError, match="there is no such run folder"):
        main([str(tmp_path / "missing.jsonl")])
    assert main([str(tmp_path), "--sizes", "1"]) == 2
    assert "--sizes of at least 2" in capsys.readouterr().err


def test_seconds_are_of_the_rollouts_that_were_trained_on() -> None:
    row = {
        "rollouts/num_per_prompt": 512, "rollouts/prompts_per_step": 4, "dynamic_sampling/loss_scale": 0.5,
        "dynamic_sampling/trained_rollouts": 128, "generation/num_samples": 2048, "rollouts/pass_at_1": 0.1,
        "rollouts/successes_all": 0.0, "rollouts/prompt_tokens": 40, "rollouts/response_tokens": 10,
        "policy/num_updates": 4, "time/generate_s": 2.0, "time/log_prob_s": 0.5, "time/update_s": 1.5,
    }  # fmt: skip
    measured = measured_step(row)
    assert measured is not None
    assert measured.train_s == 2.0 / 128
