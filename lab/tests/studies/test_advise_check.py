"""Advice held against a sweep: orders of N and their rank correlation, from metrics files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from brorl_lab.commands.sweep import plan_runs, read_file
from brorl_lab.theory.success_prior import SuccessPrior

from lab.studies.advise_check import Comparison, best_first, compare, families_of, main, summary
from lab.tests.commands.test_advise import write_run

pytestmark = pytest.mark.slow

EASY = SuccessPrior(0.56, 0.13)  # more of N is less signal a sample: 16, 64, 512
TEXT = """
config: sums_cpu
output: {output}
axes:
  n: {{16: [rollouts.num_per_prompt=16], 64: [rollouts.num_per_prompt=64], 512: [rollouts.num_per_prompt=512]}}
  lr: {{1e-4: [policy.optim.lr=1e-4]}}
seeds: [1]
"""


def swept(folder: Path, scores: dict[int, float]) -> Path:
    """A sweep whose runs of these N end with these scores."""
    path = folder / "sweep.yaml"
    path.write_text(TEXT.format(output=folder / "runs"))
    for run in plan_runs(read_file(path)):
        size = int(run.arm.split()[0].removeprefix("n="))
        run.folder.mkdir(parents=True)
        file = write_run(run.folder / "metrics.jsonl", EASY, size)
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows[1:]:
            row["generation/num_samples"] = 4096  # a step, whatever N is
        rows[-1]["validation/pass_at_1"] = scores[size]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(("scores", "expected"), [((0.7, 0.5, 0.3), 1.0), ((0.3, 0.5, 0.7), -1.0)])
def test_an_order_that_comes_as_foretold_correlates_and_the_opposite_one_does_not(
    scores: tuple[float, ...], expected: float, tmp_path: Path
) -> None:
    path = swept(tmp_path, dict(zip((16, 64, 512), scores, strict=True)))
    families = families_of(plan_runs(read_file(path)), "n")
    assert list(families) == ["lr=1e-4 seed 1"]
    found = [one for one in compare("f", families["lr=1e-4 seed 1"], num_steps=4) if one.unit == "samples"]
    assert len(found) == 3 * 2  # every run is asked, with two guesses of the score noise
    assert {tuple(one.foretold) for one in found} == {(16, 64, 512)}
    assert [one.correlation for one in found] == pytest.approx([expected] * 6)


def test_means_are_over_all_that_were_asked() -> None:
    made = [
        Comparison("a", 16, "samples", 3.0, [16, 64], [16, 64], 1.0),
        Comparison("a", 64, "samples", 3.0, [16, 64], [64, 16], -1.0),
        Comparison("a", 16, "seconds", 3.0, [64, 16], [64, 16], 1.0),
    ]
    assert summary(made) == {"samples": (0.0, 0.5, 2), "seconds": (1.0, 1.0, 1)}
    assert best_first([16, 64, 512], [0.2, 0.9, 0.5]) == [64, 512, 16]


def test_the_command_shows_what_was_foretold_and_refuses_a_sweep_without_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = swept(tmp_path, {16: 0.7, 64: 0.5, 512: 0.3})
    assert main([str(path)]) == 0
    assert "equal samples: rank correlation 1.00 on average, best N foretold in 100% of 6" in capsys.readouterr().out
    path.write_text(path.read_text().replace(str(tmp_path / "runs"), str(tmp_path / "none")))
    assert main([str(path)]) == 2
    assert "no two runs of one seed with another N" in capsys.readouterr().err
