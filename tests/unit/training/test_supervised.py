"""Conversations as examples, their order, and the loop of fine-tuning, on fakes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from nemo_brorl.config.data import DataConfig
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.config.sft import SftConfig
from nemo_brorl.core.clock import StopRequest
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import CheckpointError, DataError
from nemo_brorl.core.tokenizer import ChatTokenizer
from nemo_brorl.training.checkpoint import Checkpoints
from nemo_brorl.training.records import JsonlSink
from nemo_brorl.training.supervised.chat_files import messages_of, read_examples, shortened
from nemo_brorl.training.supervised.conversations import Conversations
from nemo_brorl.training.supervised.examples import Example, learning_rate, supervised_batch, supervised_plan
from nemo_brorl.training.supervised.trainer import Lessons, SftParts, SftTrainer, held_out_loss
from tests.support.fakes import FakePolicy

CHAT = (
    "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
# Earlier answers lose what stands before a slash, as thinking does in some models.
FORGETS = (
    "{% for m in messages %}{{ m['role'][0] }}:"
    "{{ m['content'] if loop.last else m['content'].split('/')[-1] }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
TALK = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "ho"},
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": "yz"},
]


def tokenizer(template: str | None = CHAT) -> ChatTokenizer:
    """One token a character."""
    vocabulary = {"<pad>": 0, "<eos>": 1}
    for code in (10, *range(32, 127)):
        vocabulary[chr(code)] = len(vocabulary)
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    backend.add_special_tokens(["<pad>", "<eos>"])
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    return ChatTokenizer(backend, template, {"eos_token": "<eos>"})


def conversations(template: str | None = CHAT) -> Conversations:
    return Conversations(tokenizer(template), frozenset([1]), system_prompt=None)


def written(example: Example) -> list[str]:
    """The prompt, the response, and the response with a dot for every token that is not learnt."""
    words = tokenizer().backend
    prompt, response = (
        words.decode(ids, skip_special_tokens=False) for ids in (example.prompt_ids, example.response_ids)
    )
    has_loss = np.ones(len(example.response_ids), bool) if example.has_loss is None else example.has_loss
    learnt = ""
    for token_id, counts in zip(example.response_ids, has_loss, strict=True):
        learnt += words.decode([token_id], skip_special_tokens=False) if counts else "."
    return [prompt, response, learnt]


def test_the_loss_counts_every_turn_of_the_assistant_with_its_stop_token_and_nothing_else() -> None:
    (example,) = conversations().examples(TALK, "chat")
    assert written(example) == [
        "u:hi<eos>\na:",
        "ho<eos>\nu:x<eos>\na:yz<eos>",
        "ho<eos>" + "." * len("\nu:x") + "." + "." * len("\na:") + "yz<eos>",
    ]
    assert example.num_trained_tokens == 6
    (batch,) = supervised_batch([example]).groups
    assert batch.group.num_sampled.tolist() == [6]
    assert batch.group.lengths.tolist() == [len(example.response_ids)]


def test_one_turn_needs_no_mask() -> None:
    (example,) = conversations().examples(TALK[:2], "chat")
    assert example.has_loss is None
    assert written(example)[2] == "ho<eos>"


def test_turns_that_the_template_writes_anew_are_examples_of_their_own() -> None:
    thoughtful = [*TALK[:1], {"role": "assistant", "content": "hm/ho"}, *TALK[2:]]
    first, second = conversations(FORGETS).examples(thoughtful, "chat")
    assert written(first)[:2] == ["u:hi<eos>\na:", "hm/ho<eos>"]
    assert written(second)[:2] == ["u:hi<eos>\na:ho<eos>\nu:x<eos>\na:", "yz<eos>"]


def test_a_model_without_a_template_learns_single_answers() -> None:
    (example,) = conversations(None).examples(TALK[:2], "chat")
    assert written(example)[:2] == ["hi\n", "ho<eos>"]
    with pytest.raises(DataError, match="several turns"):
        conversations(None).examples(TALK, "chat")


def test_a_template_that_never_stops_is_refused() -> None:
    endless = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    with pytest.raises(DataError, match="would not learn to end"):
        conversations(endless).examples(TALK, "chat")


def test_rows_are_messages_or_a_prompt_and_a_response() -> None:
    asked, answered = TALK[:2]
    assert messages_of({"messages": TALK}, None, None) == TALK
    assert messages_of({"messages": TALK[:3]}, None, None) == TALK[:2]
    assert messages_of({"prompt": "hi", "response": "ho"}, None, None) == [asked, answered]
    assert messages_of({"prompt": TALK[:3], "response": "yz"}, None, None) == TALK
    assert messages_of({"q": "hi", "out": {"best": "ho"}}, "q", "out.best") == [asked, answered]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"text": "hi"}, "'prompt' is missing: write messages"),
        ({"messages": []}, r"'messages' is \[\]"),
        ({"messages": TALK[:1]}, "no turn is the assistant's"),
        ({"messages": TALK[1:]}, "begins with the assistant"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "the role 'bot' is not known: write system, user"),
        ({"messages": [*TALK[:1], {"role": "assistant", "content": " "}]}, "write a text that is not empty"),
        ({"prompt": "hi"}, "'response' has missing as a text of the assistant"),
    ],
)
def test_a_row_that_cannot_be_learnt_says_why(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        messages_of(row, None, None)


def data(tmp_path: Path, rows: Sequence[dict[str, Any]], **settings: Any) -> DataConfig:
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return DataConfig(source="jsonl", path=str(path), **settings)


def pairs(num: int) -> list[dict[str, str]]:
    return [{"prompt": f"say {number}", "response": str(number)} for number in range(num)]


def test_a_share_is_held_out_by_what_was_asked(tmp_path: Path) -> None:
    rows = [*pairs(200), {"prompt": "say 3", "response": "three"}]
    found = read_examples(data(tmp_path, rows, held_out_fraction=0.25), SftConfig(), conversations())
    assert found.num_conversations == 201
    assert 25 < len(found.held_out) < 75
    asked = {tuple(example.prompt_ids.tolist()) for example in found.held_out}
    assert not asked & {tuple(example.prompt_ids.tolist()) for example in found.train}


def test_an_epoch_has_every_example_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    found = read_examples(data(tmp_path, pairs(12), held_out_fraction=0.0), SftConfig(), conversations())
    epochs = []
    for epoch in range(2):
        drawn: list[str] = []
        for step in range(3 * epoch, 3 * epoch + 3):
            drawn += [written(example)[1] for example in found.batch(step, 4, seed=1)]
        epochs.append(drawn)
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(f"{number}<eos>" for number in range(12))
    assert epochs[0] != epochs[1]


def test_what_is_too_long_is_refused_cut_or_left_out(tmp_path: Path) -> None:
    rows = [*pairs(2), {"prompt": "hi", "response": "o" * 50}]
    source = data(tmp_path, rows, held_out_fraction=0.0)
    with pytest.raises(DataError, match=r"1 of 3 .* sft.max_tokens=40 \(.*line 3: 59 tokens\). Raise it, or set"):
        read_examples(source, SftConfig(max_tokens=40), conversations())
    cut = read_examples(source, SftConfig(max_tokens=40, too_long="cut"), conversations())
    assert (cut.num_cut, cut.num_left_out) == (1, 0)
    assert written(cut.train[2])[1] == "o" * 32
    dropped = read_examples(source, SftConfig(max_tokens=40, too_long="drop"), conversations())
    assert (len(dropped.train), dropped.num_left_out) == (2, 1)


def test_a_cut_that_leaves_nothing_to_learn_leaves_nothing() -> None:
    (example,) = conversations().examples(TALK, "chat")
    assert shortened(example, len(example.prompt_ids)) is None


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "is empty"),
        ([{"messages": TALK[:1]}], r"data.max_bad_rows=0: .*line 1: no turn is the assistant's"),
    ],
)
def test_a_file_that_cannot_be_learnt_is_one_message(tmp_path: Path, rows: list[Any], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_examples(data(tmp_path, rows), SftConfig(), conversations())


def test_bad_rows_may_be_left_out(tmp_path: Path) -> None:
    rows = [*pairs(2), {"messages": TALK[:1]}]
    source = data(tmp_path, rows, max_bad_rows=1, held_out_fraction=0.0)
    assert read_examples(source, SftConfig(), conversations()).num_left_out == 1


@pytest.mark.parametrize(("schedule", "middle"), [("cosine", 0.55), ("linear", 0.55), ("constant", 1.0)])
def test_the_learning_rate_rises_then_follows_its_schedule(schedule: str, middle: float) -> None:
    sft = SftConfig(lr=1.0, lr_schedule=schedule, warmup_steps=20)
    assert learning_rate(sft, 0, 120) == pytest.approx(1 / 20)
    assert learning_rate(sft, 20, 120) == pytest.approx(1.0)
    assert learning_rate(sft, 70, 120) == pytest.approx(middle)
    assert learning_rate(sft, 120, 120) == pytest.approx(1.0 if schedule == "constant" else 0.1)


def test_micro_batches_hold_several_conversations_within_the_budget() -> None:
    config = BroRLConfig()
    config.policy.tokens_per_micro_batch = 40
    config.policy.data_parallel_size = 2
    examples = [Example("chat", np.arange(5, dtype=np.int32), np.arange(10, dtype=np.int32)) for _ in range(8)]
    sizes = RunSizes.from_config(config)
    plan = supervised_plan(examples, config.sft, sizes, seed=1, step=0, num_mini_batches=1, num_steps=10, version=1)
    for micro_batches in plan.mini_batches[0]:
        assert [micro.num_tokens for micro in micro_batches] == [30, 30]
    assert plan.num_loss_tokens(0) == 80


class ScoringPolicy(FakePolicy):
    """Every token has the log-prob −1, the first of a response −3."""

    def log_probs(self, prompt_ids: Any, response_ids: Any, with_fp8: bool = True) -> list[Any]:
        scores = []
        for response in response_ids:
            of_tokens = np.full(len(response), -1.0, np.float32)
            of_tokens[0] = -3.0
            scores.append(of_tokens)
        return scores


def example(num: int, has_loss: list[bool] | None = None) -> Example:
    mask = None if has_loss is None else np.array(has_loss)
    return Example("chat", np.arange(2, dtype=np.int32), np.arange(num, dtype=np.int32), mask)


def test_the_validation_loss_is_the_mean_over_learnt_tokens() -> None:
    held_out = [example(2), example(3, [True, False, True])]
    assert held_out_loss(ScoringPolicy(), held_out) == pytest.approx((3 + 1 + 3 + 1) / 4)


def make_trainer(folder: Path, fingerprint: str = "a", num_steps: int = 5) -> SftTrainer:
    config = BroRLConfig()
    config.trainer.val_interval = 2
    config.trainer.save_interval = 2
    batch: Callable[[int], list[Example]] = lambda step: [example(2 + step)]  # noqa: E731
    lessons = Lessons(batch, num_steps, epoch_steps=2.0, held_out=(example(3),), fingerprint=fingerprint)
    sink = JsonlSink(folder / "metrics.jsonl", None)
    parts = SftParts(ScoringPolicy(), sink, Checkpoints(folder / "checkpoints", 2), Console(), folder)
    return SftTrainer(config, parts, lessons, StopRequest(None))


def test_a_run_validates_saves_and_goes_on_from_its_newest_checkpoint(tmp_path: Path) -> None:
    make_trainer(tmp_path).fit()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert [row["step"] for row in rows if "sft/val_loss" in row] == [0, 2, 4, 5]
    assert rows[3]["sft/epoch"] == 1.5
    assert rows[3]["sft/trained_tokens"] == 4
    again = make_trainer(tmp_path)
    assert again.resume()
    assert again.step_number == 5
    assert [entry["step"] for entry in again.history] == [0, 2, 4, 5]


def test_a_run_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    make_trainer(tmp_path).fit()
    with pytest.raises(CheckpointError, match="data was 'a', now 'b'"):
        make_trainer(tmp_path, fingerprint="b").resume()
