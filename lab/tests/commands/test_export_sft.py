"""The best stored responses as chat lines."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
from brorl_lab.commands.export_sft import BestOfPrompts, best_lines

from nemo_brorl.core.tokenizer import ChatTokenizer
from tests.support.stored import MESSAGES, group


class WordTokenizer:
    """Decodes a response as its token ids."""

    def decode(self, token_ids: list[int]) -> str:
        return " ".join(map(str, token_ids))


WORDS = cast(ChatTokenizer, WordTokenizer())


def test_the_shortest_right_response_follows_its_conversation() -> None:
    """Rollout i has i + 1 tokens, from 10 i on."""
    (line,) = best_lines(group("train/1", [0.0, 1.0, 1.0]), 7, 1, 1.0, WORDS)
    answer = {"role": "assistant", "content": "10 11"}
    assert line == {
        "messages": [*MESSAGES, answer],
        "uid": "train/1",
        "task": "toy",
        "step": 7,
        "place": 1,
        "reward": 1.0,
    }


def test_the_highest_reward_comes_first_and_nothing_below_the_least() -> None:
    lines = best_lines(group("train/1", [0.5, 0.25, 1.0]), 7, 5, 0.5, WORDS)
    assert [line["place"] for line in lines] == [2, 0]


def test_responses_that_were_cut_are_left_out() -> None:
    scored = group("train/1", [1.0, 1.0])
    cut = replace(scored.group.chunks[0], is_stopped=np.array([False, True]))
    lines = best_lines(replace(scored, group=replace(scored.group, chunks=(cut,))), 7, 1, 1.0, WORDS)
    assert [line["place"] for line in lines] == [1]


def test_a_question_of_two_steps_has_its_best_answers_once() -> None:
    chosen = BestOfPrompts(best=1)
    for step, rewards in ((7, [0.5, 0.0]), (8, [0.0, 1.0]), (9, [0.0, 1.0])):
        chosen.add("question", best_lines(group(f"train/{step}", rewards), step, 1, 0.5, WORDS))
    (line,) = chosen.lines()
    assert (line["step"], line["reward"]) == (8, 1.0)


def test_equal_answers_of_two_steps_count_once() -> None:
    chosen = BestOfPrompts(best=3)
    for step in (7, 8):
        chosen.add("question", best_lines(group(f"train/{step}", [1.0, 1.0]), step, 3, 0.5, WORDS))
    assert [line["step"] for line in chosen.lines()] == [7, 7]
