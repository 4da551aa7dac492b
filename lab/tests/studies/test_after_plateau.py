"""The rig of the study after a plateau: exact draws, advantages and losses, checkpoints, and what the lines decide."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen2ForCausalLM

from lab.studies.after_plateau import Course
from lab.studies.after_plateau_learner import (
    Arm,
    Batch,
    CeilingTask,
    Learner,
    advantages_of,
    batch_loss,
    draw_ceilings,
)
from lab.studies.after_plateau_tables import decision, value_at
from lab.studies.cipher_chains import COPIER
from lab.studies.cipher_plain import MODEL, sampled_mask
from lab.studies.exact_groups import Rows, answer_log_probs, chances_of, draw_wrong, score_rows

pytestmark = pytest.mark.numbers

HELD_OUT, TRAINED = 8, 64


def make_task(folder: Path, num: int) -> CeilingTask:
    """Questions of the copier, which the base of the repository solves, and of a family that it does not."""
    random = np.random.default_rng(0)
    rows = []
    for place in range(num):
        digits = "".join(map(str, random.integers(0, 10, 6)))
        rows.append({"prompt": f"{(COPIER, 'A')[place % 2]}: {digits}xx", "answer": digits})
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return CeilingTask(path, num, "A", HELD_OUT, TRAINED)


@pytest.fixture
def task(tmp_path: Path) -> CeilingTask:
    return make_task(tmp_path, 4)


def test_wrong_responses_have_the_chances_of_plain_sampling_given_that_they_are_wrong(task: CeilingTask) -> None:
    model = Qwen2ForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    places = torch.arange(2)
    right = answer_log_probs(model, task, places)
    chances = chances_of(right)
    # Of a solved question and of a hard one.
    assert chances[0] > 0.9 > chances[1]
    num = 8000
    found = draw_wrong(model, task, places, right, torch.tensor([num, num]), torch.Generator().manual_seed(0))
    for group in (0, 1):
        chosen = found.groups == group
        assert found.numbers[chosen].sum() == num
        equal = (found.tokens[chosen][:, : task.length] == task.answers[group]) | ~task.mask[group]
        assert not equal.all(dim=1).any()
        # The tag and two digits, whatever comes behind them.
        begins, row_of = found.tokens[chosen][:, :3].unique(dim=0, return_inverse=True)
        numbers = torch.zeros(len(begins), dtype=torch.long).index_add(0, row_of, found.numbers[chosen])
        log_probs = torch.zeros(len(begins)).index_copy(0, row_of, found.log_probs[chosen][:, :3].sum(dim=1))
        is_right = (begins == task.answers[group, :3]).all(dim=1)
        expected = num * (log_probs.double().exp() - is_right * chances[group]) / (1 - chances[group])
        often = expected > 20
        z = (numbers - expected)[often] / expected[often].sqrt()
        assert often.sum() >= 10
        assert z.abs().max() < 4
        assert float(z.square().mean()) == pytest.approx(1, abs=4 * (2 / len(z)) ** 0.5)


def test_log_probs_of_drawn_responses_are_those_of_scoring_them(task: CeilingTask) -> None:
    model = Qwen2ForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    places = torch.arange(4)
    right = answer_log_probs(model, task, places)
    found = draw_wrong(model, task, places, right, torch.tensor([3, 0, 5, 40]), torch.Generator().manual_seed(0))
    assert torch.bincount(found.groups, found.numbers.float(), minlength=4).tolist() == [3, 0, 5, 40]
    with torch.no_grad():
        scored = score_rows(model, task.questions.prompts[places], found.groups, found.tokens)
    mask = sampled_mask(found.tokens, task.end)
    torch.testing.assert_close(scored * mask, found.log_probs, atol=2e-5, rtol=0)


def test_ceilings_keep_as_many_groups_as_the_paper_where_all_is_learnt() -> None:
    ceilings = draw_ceilings(40_000)
    kept = [np.mean(1 - ceilings**size - (1 - ceilings) ** size) for size in (16, 512)]
    # The paper's are 0.41 and 0.62, for which a search found no Beta distribution.
    assert kept == pytest.approx([0.39, 0.63], abs=0.01)


def test_advantages_are_whitened_over_tokens() -> None:
    # A group of 2 rollouts: one accepted of 2 tokens, one wrong of 6. Rewards minus the mean: ±1/2, per token −1/4.
    good, bad = advantages_of(
        rates=torch.tensor([0.5]).double(),
        groups=torch.tensor([0, 0]),
        accepted=torch.tensor([1, 0]).double(),
        refused=torch.tensor([0, 1]).double(),
        lengths=torch.tensor([2, 6]).double(),
        is_maxrl=False,
    )
    # 3/4 and −1/4 over the root of (2 · 9/16 + 6 · 1/16) / 8 = 3/16.
    assert good.tolist() == pytest.approx([3**0.5] * 2)
    assert bad.tolist() == pytest.approx([-(3**-0.5)] * 2)


def test_maxrl_divides_by_the_share_of_accepted_rollouts() -> None:
    one = torch.ones(1).double()
    good, bad = advantages_of(0.25 * one, torch.tensor([0]), one, one, one, is_maxrl=True)
    assert (float(good), float(bad)) == (3.0, -1.0)


def test_the_loss_of_different_rows_is_that_of_all_rollouts() -> None:
    # Two rollouts of the first row are accepted and one is not; two of the second are wrong.
    old = torch.tensor([[-1.0, -2.0], [-0.5, 0.0]])
    rows = Rows(torch.tensor([0, 0]), torch.zeros(2, 2, dtype=torch.long), old, torch.tensor([3, 2]))
    batch = Batch(
        torch.tensor([0]), rows, torch.tensor([2, 0]), torch.tensor([2.0, 2.0]), torch.tensor([-1.0, -1.0]), 1
    )
    scored = old + torch.tensor([[0.1, 0.5], [-0.5, 9.0]])
    mask = torch.tensor([[True, True], [True, False]])
    # Above a ratio of 1.27 an accepted token has 1.27, and below 0.8 a wrong one has 0.8.
    first, second, third = np.exp(0.1), np.exp(0.5), 0.8
    accepted = 2 * 2.0 * (first + 1.27)
    refused = -1.0 * (first + second) + 2 * -1.0 * third
    loss = batch_loss(scored, mask, batch, torch.tensor([0, 1]))
    assert float(loss) == pytest.approx(-(accepted + refused), rel=1e-5)


def course_of(task: CeilingTask, folder: Path, ends_at: float) -> Course:
    options = argparse.Namespace(base=folder / "base", variant="A", before=700, every=600, ends_at=ends_at)
    return Course(task, options, 1)


def test_a_run_that_was_stopped_goes_on_as_if_it_was_not(tmp_path: Path) -> None:
    task = make_task(tmp_path, HELD_OUT + TRAINED)
    Qwen2ForCausalLM.from_pretrained(MODEL, dtype=torch.float32).save_pretrained(tmp_path / "base")
    before, arms = Arm(16, 8, rollouts=700), [("arm", Arm(16, 16, False, rollouts=500))]
    whole = course_of(task, tmp_path, np.inf)
    assert whole.has_run(before, arms)
    whole.checkpoint.unlink()
    num_stops = 0
    # A run whose time is over ends behind every step.
    while not (cut := course_of(task, tmp_path, 0.0)).has_run(before, arms):
        num_stops += 1
    assert num_stops >= 3
    assert {line["arm"] for line in whole.progress.lines} == {"before", "arm"}
    lines = [[{**line, "processor_s": 0} for line in course.progress.lines] for course in (whole, cut)]
    assert lines[0] == lines[1]


def test_a_filled_batch_has_as_many_groups_as_asked_for(tmp_path: Path) -> None:
    task = make_task(tmp_path, HELD_OUT + TRAINED)
    learner = Learner(task, MODEL, 1)
    learner.step(Arm(16, 8), 10**6)
    assert learner.counts.trained == 8 * 16
    assert learner.counts.sampled == learner.counts.groups * 16 > 8 * 16
    assert learner.counts.updates == 8
    kept = learner.counts.kept
    learner.step(Arm(16, 64, False), 10**6)
    # A step of fixed samples trains on what it finds.
    assert learner.counts.trained == 16 * (8 + learner.counts.kept - kept)


def write_seeds(folder: Path, differences: list[float]) -> None:
    """Write lines of the three arms for seeds 1, 2, …: N = 512 leads the control by the seed's difference."""
    ends = {"16 x 128": 0.5, "512 x 32": 0.6, "16 x many": 0.6}
    for seed, difference in enumerate(differences, start=1):
        lines = []
        for arm, end in ends.items():
            reached = end + difference * (arm == "512 x 32")
            for sampled, value in ((0, 0.5), (500_000, reached), (735_000, reached)):
                lines.append({"arm": arm, "seed": seed, "rate": 1, "sampled": sampled, "pass_at_1": value})
        (folder / f"A_seed_{seed}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "A_rates.json").write_text(json.dumps(dict.fromkeys(ends, 1)))


WIDE = [-0.1, 0.1]


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.04, 0.05] * 5, "N = 512 pays: +4.5"),
        ([-0.01, 0.01] * 5, "N = 512 pays less than 3 points: +0.0"),
        # Above 0 and below 3 points.
        ([0.01, 0.02] * 5, "N = 512 pays less than 3 points: +1.5"),
        (WIDE * 5, "Not decided: +0.0"),
        (WIDE * 8, "Not decided: +0.0"),
        ([0.04, 0.05], "Not looked at yet: 2 seeds of 10."),
        (WIDE * 6, "Not looked at yet: 12 seeds of 16."),
    ],
)
def test_verdicts_are_given_at_both_looks_alone(tmp_path: Path, differences: list[float], verdict: str) -> None:
    write_seeds(tmp_path, differences)
    *_, given, too_small = decision(tmp_path, "A")
    assert given.startswith(verdict)
    assert given.endswith("once.") == (len(differences) == 10 and differences[0] == WIDE[0])
    assert "+0.8 points" in too_small


def test_numbers_are_read_between_measurements_that_have_them() -> None:
    lines = [{"sampled": 0}, {"sampled": 100, "x": 1.0}, {"sampled": 200, "x": 3.0}]
    assert value_at(lines, "x", 150) == 2.0


def test_a_seed_without_a_plateau_counts_and_is_also_left_out(tmp_path: Path) -> None:
    write_seeds(tmp_path, [0.5, -0.01, 0.01])
    path = tmp_path / "A_seed_1.jsonl"
    line = {"arm": "before", "seed": 1, "rate": 1, "sampled": 2_000_000, "pass_at_1": 0.5}
    path.write_text(path.read_text() + json.dumps(line) + "\n")
    found = "\n".join(decision(tmp_path, "A"))
    assert "+16.7" in found
    assert "with a plateau" in found
    assert "+0.0" in found


def test_one_seed_tests_nothing(tmp_path: Path) -> None:
    write_seeds(tmp_path, [0.1])
    assert decision(tmp_path, "A")[0] == "Two seeds with the three arms are needed at least."
