"""Cipher chains: the task's files, and the arithmetic of the plain trainer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from brorl_lab.prompt_pool import RetiringParams
from transformers import Qwen2ForCausalLM

from lab.studies import cipher_chains, cipher_plateau, cipher_pool
from lab.studies.cipher_plain import (
    MODEL,
    Questions,
    grpo,
    log_probs,
    maxrl,
    sample,
    sampled_mask,
    score_responses,
    update_policy,
)
from lab.studies.figures.plateau import rates_of
from nemo_brorl.config.data import DataConfig
from nemo_brorl.prompts.sources import make_source

pytestmark = [pytest.mark.slow, pytest.mark.numbers]

END = 2


@pytest.fixture(scope="module")
def questions_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thousand questions of cipher chains."""
    folder = tmp_path_factory.mktemp("cipher")
    cipher_chains.main(["--output", str(folder), "--num-questions", "1000"])
    return folder / "questions.jsonl"


def test_a_run_takes_all_questions(questions_file: Path) -> None:
    config = DataConfig(source="jsonl", path=str(questions_file), held_out_fraction=0.02)
    held_out = make_source(config, "held_out", 1).domains[0].source.size
    trained = make_source(config, "train", 1).domains[0].source.size
    assert trained + held_out == 1000  # none is refused, none is there twice


def test_maxrl_divides_by_the_mean_and_leaves_a_group_without_success_alone() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert maxrl(rewards).tolist() == [[3.0, -1.0, -1.0, -1.0], [0.0, 0.0, 0.0, 0.0]]


def test_grpo_divides_by_the_deviation() -> None:
    # mean 1/4, deviation with N − 1: sqrt((9/16 + 3/16) / 3) = 1/2
    advantages = grpo(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    torch.testing.assert_close(advantages, torch.tensor([[1.5, -0.5, -0.5, -0.5]]), rtol=1e-4, atol=0)


def test_a_response_counts_as_far_as_its_first_end() -> None:
    mask = sampled_mask(torch.tensor([[5, END, END], [5, 6, 7]]), END)
    assert mask.tolist() == [[True, True, False], [True, True, True]]


def test_a_response_is_right_when_it_is_the_whole_answer() -> None:
    responses = torch.tensor([[5, 6, END], [5, END, END], [7, END, END], [7, 8, END]])
    assert score_responses(responses, [[5, 6, END], [7, END]], 2).tolist() == [1.0, 0.0, 1.0, 0.0]


def test_a_step_makes_what_was_rewarded_likelier(questions_file: Path) -> None:
    torch.manual_seed(0)
    model = Qwen2ForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    prompts = Questions(questions_file, 2).prompts
    responses = sample(model, prompts, 4, END, torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = log_probs(model, prompts, 4, responses)
    rewards = torch.zeros(2, 4)
    rewards[0, 1] = 1.0
    update_policy(model, torch.optim.SGD(model.parameters(), lr=0.1), prompts, responses, maxrl(rewards), END)
    with torch.no_grad():
        after = log_probs(model, prompts, 4, responses)
    gains = ((after - before) * sampled_mask(responses, END)).sum(dim=1)
    assert gains[1] > 0
    assert gains[1] > gains[[0, 2, 3]].max()


@pytest.fixture(scope="module")
def solved_in_part(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 16 questions, three quarters of them copies, and chains kept apart."""
    folder = tmp_path_factory.mktemp("cipher_solved")
    cipher_chains.main(["--output", str(folder), "--num-questions", "16", "--solved", "0.75"])
    return folder


def test_of_any_four_questions_three_are_copies_and_none_that_is_kept_apart_is_trained_on(solved_in_part: Path) -> None:
    rows = [json.loads(line) for line in (solved_in_part / "questions.jsonl").read_text().splitlines()]
    copies = [row["prompt"].startswith("I: ") for row in rows]
    assert copies == [False, True, True, True] * 4
    kept_apart = [json.loads(line)["prompt"] for line in (solved_in_part / "held_out.jsonl").read_text().splitlines()]
    assert len(kept_apart) == 1024
    assert not any(prompt.startswith("I: ") for prompt in kept_apart)
    assert not {row["prompt"] for row in rows} & set(kept_apart)


def test_the_pool_asks_solved_questions_once_and_then_the_others_alone(solved_in_part: Path) -> None:
    questions = Questions(solved_in_part / "questions.jsonl", 16)
    pool = RetiringParams(retire_from=0.8, recheck=0.0)
    run = cipher_pool.PooledRun(questions, size=8, seed=1, pool=pool, rollouts=16 * 8)  # all questions a step
    run.step()
    once = run.num_solved
    assert once == 10 * 8  # copies that were right in all of eight rollouts; the other two were in seven
    run.step()
    assert (run.num_sampled, run.num_solved) == (2 * 16 * 8, once)


def test_a_run_filled_until_full_goes_on_from_the_same_place_and_counts_what_it_sampled(solved_in_part: Path) -> None:
    questions = Questions(solved_in_part / "questions.jsonl", 16)
    run = cipher_pool.PooledRun(questions, size=8, seed=1, pool=None, places=range(4), rollouts=4 * 8)
    asked = {prompt.payload["place"] for prompt in run.pool.prompts.take_prompts(8)}
    assert asked == {0, 1, 2, 3}
    run.filled_step(limit=32 * 100)
    assert run.num_updates == 1 and run.num_sampled % 32 == 0
    sampled = run.num_sampled
    run.filled_step(limit=sampled)  # nothing is left to sample
    assert (run.num_updates, run.num_sampled) == (1, sampled)


def test_the_pupil_within_reach_is_right_about_four_digits_in_five_and_keeps_the_tags() -> None:
    answer = [90, 1, 2, 3, 4, 5, 6, 91, END]
    generator = torch.Generator().manual_seed(0)
    written = [cipher_plateau.pupil_answer(answer, list(range(10)), generator) for _ in range(500)]
    assert all((row[0], row[-2:]) == (90, [91, END]) for row in written)
    right = (torch.tensor(written)[:, 1:7] == torch.arange(1, 7)).float().mean()
    assert abs(float(right) - 0.82) < 0.03  # 0.8, and a tenth of the other fifth


def test_arms_are_compared_at_their_ends_and_after_as_many_seconds() -> None:
    begin = {"seconds": 0.0, "pass@1": 0.2, "within reach": 0.3, "beyond": 0.1}
    end = {"seconds": 100.0, "pass@1": 0.6, "within reach": 0.8, "beyond": 0.4}
    # a quarter of the way: 20 + 40 / 4, 10 + 30 / 4
    assert rates_of([begin, end], 25.0) == pytest.approx([60.0, 80.0, 40.0, 30.0, 17.5])


def test_copies_of_the_same_digits_are_one_question() -> None:
    drawn = [("A", "123456"), ("B", "123456"), ("C", "123456"), ("D", "234567"), ("E", "345678")]
    # the second is a copy, and the third would be the same one
    assert cipher_chains.first_questions(drawn, 3, 0.5) == [("A", "123456"), ("I", "123456"), ("C", "123456")]
    assert cipher_chains.first_questions(drawn, 3, 0.9) == [("A", "123456"), ("I", "123456"), ("I", "234567")]
