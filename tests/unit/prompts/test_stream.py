"""The prompt stream: exactly once, resumable, long prompts skipped."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from nemo_brorl.config.schema import DataConfig
from nemo_brorl.errors import CheckpointError, DataError
from nemo_brorl.prompts.sources import Question
from nemo_brorl.prompts.stream import PromptStream
from nemo_brorl.tokenizer import ChatTokenizer


@dataclass
class CountingSource:
    """Question i is the word `w` i + 1 times, but every third is long."""

    def question(self, index: int) -> Question:
        return Question("count", "exact_match", " ".join(["w"] * (50 if index % 3 == 2 else 2)), {"answer": str(index)})


def word_tokenizer() -> ChatTokenizer:
    backend = Tokenizer(models.WordLevel({"w": 0, "?": 1}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return ChatTokenizer(backend, chat_template=None, special_tokens={})


def make_stream(max_prompt_tokens: int = 10) -> PromptStream:
    return PromptStream(CountingSource(), word_tokenizer(), DataConfig(max_prompt_tokens=max_prompt_tokens))


def test_prompts_are_handed_out_once_and_long_ones_are_skipped_and_counted() -> None:
    stream = make_stream()
    assert [prompt.uid for prompt in stream.take(2) + stream.take(3)] == ["train/0", "train/1", "train/3", "train/4", "train/6"]
    assert stream.num_skipped == 2


def test_a_prompt_carries_tokens_task_verifier_and_payload() -> None:
    (prompt,) = make_stream().take(1)
    assert prompt.token_ids == (0, 0)
    assert (prompt.task, prompt.verifier, prompt.payload) == ("count", "exact_match", {"answer": "0"})


def test_a_resumed_stream_goes_on_where_the_state_was_taken() -> None:
    whole = [prompt.uid for prompt in make_stream().take(9)]
    first = make_stream()
    head = [prompt.uid for prompt in first.take(4)]
    second = make_stream()
    second.load_state_dict(first.state_dict())
    assert head + [prompt.uid for prompt in second.take(5)] == whole
    assert second.num_skipped == 4


@pytest.mark.parametrize(
    "state",
    [
        {"next_index": 3},
        {"split": "held_out", "next_index": 3, "num_skipped": 0},
        {"split": "train", "next_index": 1, "num_skipped": 0, "x": 1},
    ],
)
def test_the_state_of_another_stream_is_refused(state: dict[str, object]) -> None:
    with pytest.raises(CheckpointError):
        make_stream().load_state_dict(state)


def test_a_limit_that_no_prompt_meets_is_an_error() -> None:
    with pytest.raises(DataError, match="longer than data.max_prompt_tokens=1"):
        make_stream(max_prompt_tokens=1).take(1)
