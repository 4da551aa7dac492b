"""The prompt stream: exactly once, resumable anywhere, long prompts replaced and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from brorl_graders import full_mark
from tokenizers import Tokenizer, models, pre_tokenizers

from graders.tests.support.names import allow_also
from nemo_brorl.config.data import DataConfig, DomainConfig
from nemo_brorl.core.errors import CheckpointError, DataError
from nemo_brorl.core.tokenizer import ChatTokenizer
from nemo_brorl.prompts.asking import render_question
from nemo_brorl.prompts.file_source import FileSource
from nemo_brorl.prompts.fingerprints import fingerprint_of_texts
from nemo_brorl.prompts.levels import TaskLevel
from nemo_brorl.prompts.mixture import Domain, Mixture
from nemo_brorl.prompts.questions import Question
from nemo_brorl.prompts.sources import make_source
from nemo_brorl.prompts.stream import PromptStream
from tests.unit.prompts.files import plain_rows, write_jsonl

SYSTEM = {"role": "system", "content": "row"}
MESSAGES = ({"role": "user", "content": "w"},)
TEMPLATE = "{% for message in messages %}{{ message.role }} {{ message.content }} {% endfor %}"


def data_config(**settings: Any) -> DataConfig:
    """Settings under which nothing is added to a question."""
    return DataConfig(answer_instruction="", **settings)


@dataclass
class CountingSource:
    """Question i is the word `w` twice, but every third is long."""

    size: int | None = None
    fingerprint: str = ""
    levels: Mapping[str, TaskLevel] = field(default_factory=dict)

    def change_since(self, earlier: str) -> str:
        return "" if earlier == self.fingerprint else "other questions"

    def question(self, index: int) -> Question:
        return Question("count", "exact_match", " ".join(["w"] * (50 if index % 3 == 2 else 2)), {"answer": str(index)})


@dataclass
class ConversationSource:
    """Every question comes with a system prompt of its own."""

    size: int | None = None
    fingerprint: str = ""
    levels: Mapping[str, TaskLevel] = field(default_factory=dict)

    def change_since(self, earlier: str) -> str:
        return "" if earlier == self.fingerprint else "other questions"

    def question(self, index: int) -> Question:
        return Question("talk", "exact_match", "w", {"answer": "1"}, (SYSTEM, *MESSAGES))


def word_tokenizer(template: str | None = None) -> ChatTokenizer:
    words = {word: number for number, word in enumerate(("w", "?", "system", "user", "row", "own"))}
    backend = Tokenizer(models.WordLevel(words, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return ChatTokenizer(backend, chat_template=template, special_tokens={})


def make_stream(max_prompt_tokens: int = 10) -> PromptStream:
    domain = Domain("", CountingSource(), 1.0, None, max_prompt_tokens)
    return PromptStream(Mixture([domain], "1"), word_tokenizer(), data_config())


def mixed_stream(
    folder: Path, sizes: tuple[int, ...] = (7, 4, 11), seed: int = 1, split: str = "train"
) -> PromptStream:
    """Files of `sizes` rows in equal shares."""
    domains = []
    for number, size in enumerate(sizes):
        path = folder / f"{number}_{size}.jsonl"
        if not path.exists():
            write_jsonl(path, plain_rows(size, f"d{number} q"))
        domains.append(DomainConfig(source="jsonl", path=str(path), name=f"d{number}"))
    config = data_config(source="mixture", domains=domains, held_out_fraction=0.0 if split == "train" else 0.5)
    return PromptStream(make_source(config, split, seed), word_tokenizer(), config, split)


def test_prompts_are_handed_out_once_and_long_ones_are_skipped_and_counted() -> None:
    stream = make_stream()
    assert [prompt.uid for prompt in stream.take_prompts(2) + stream.take_prompts(3)] == [
        "train/0",
        "train/1",
        "train/3",
        "train/4",
        "train/6",
    ]
    assert stream.num_skipped == {"": 2}
    assert stream.metrics() == {"prompts/too_long": 2.0}


def test_a_prompt_carries_tokens_task_verifier_and_payload() -> None:
    (prompt,) = make_stream().take_prompts(1)
    assert prompt.token_ids == (0, 0)
    assert (prompt.task, prompt.verifier, prompt.payload, prompt.domain) == (
        "count",
        "exact_match",
        {"answer": "0"},
        "",
    )


def test_a_resumed_stream_goes_on_where_the_state_was_taken() -> None:
    whole = [prompt.uid for prompt in make_stream().take_prompts(9)]
    first = make_stream()
    head = [prompt.uid for prompt in first.take_prompts(4)]
    second = make_stream()
    second.load_state_dict(first.state_dict())
    assert head + [prompt.uid for prompt in second.take_prompts(5)] == whole
    assert second.num_skipped == {"": 4}


@pytest.mark.parametrize("num_before", [0, 1, 6, 22, 23, 60, 131])
@pytest.mark.parametrize(("sizes", "seed"), [((7, 4, 11), 1), ((7, 4, 11), 5), ((1, 2, 3), 1), ((30,), 3)])
def test_every_row_comes_once_an_epoch_however_often_the_run_is_resumed(
    tmp_path: Path, sizes: tuple[int, ...], seed: int, num_before: int
) -> None:
    first = mixed_stream(tmp_path, sizes, seed)
    prompts = first.take_prompts(num_before)
    again = mixed_stream(tmp_path, sizes, seed)
    again.load_state_dict(first.state_dict())
    prompts += again.take_prompts(150 - num_before)
    whole = mixed_stream(tmp_path, sizes, seed).take_prompts(150)
    assert prompts == whole and len({prompt.uid for prompt in prompts}) == 150
    for number, size in enumerate(sizes):
        drawn = [prompt.payload["question"] for prompt in prompts if prompt.domain == f"d{number}"]
        epochs = [drawn[start : start + size] for start in range(0, len(drawn) - size + 1, size)]
        assert epochs and all(len(set(epoch)) == size for epoch in epochs)


def test_shares_hold_although_one_domain_loses_prompts_to_the_limit() -> None:
    domains = [Domain("long", CountingSource(), 1.0, None, 10), Domain("any", CountingSource(), 1.0, None, 60)]
    stream = PromptStream(Mixture(domains, "1"), word_tokenizer(), data_config())
    counts = Counter(prompt.domain for prompt in stream.take_prompts(4096))
    assert counts == {"long": 2048, "any": 2048}
    assert stream.num_skipped == {"long": 1023, "any": 0}


def test_uids_and_prompts_name_their_domain(tmp_path: Path) -> None:
    prompts = mixed_stream(tmp_path).take_prompts(20)
    assert {prompt.uid.rpartition("/")[0] for prompt in prompts} == {"train/d0", "train/d1", "train/d2"}
    assert all(prompt.domain == prompt.uid.split("/")[1] for prompt in prompts)


def test_metrics_count_epochs_by_domain(tmp_path: Path) -> None:
    stream = mixed_stream(tmp_path, sizes=(2, 5))
    counts = Counter(prompt.domain for prompt in stream.take_prompts(30))
    metrics = stream.metrics()
    assert metrics["prompts/epochs/d0"] == counts["d0"] / 2
    assert metrics["prompts/epochs/d1"] == counts["d1"] / 5
    assert metrics["prompts/too_long/d1"] == 0.0


def test_a_held_out_stream_ends_where_its_files_do(tmp_path: Path) -> None:
    stream = mixed_stream(tmp_path, sizes=(20, 12), split="held_out")
    prompts = stream.take_prompts(1000)
    rows = sum(domain.source.size or 0 for domain in stream.mixture.domains)
    assert len(prompts) == len({prompt.payload["question"] for prompt in prompts}) == rows < 32
    assert stream.take_prompts(5) == []


def test_a_domain_that_runs_out_of_held_out_rows_leaves_the_others_their_share() -> None:
    domains = [Domain("few", CountingSource(size=3), 1.0, None, 60), Domain("many", CountingSource(), 1.0, None, 60)]
    stream = PromptStream(Mixture(domains, "1"), word_tokenizer(), data_config(), "held_out")
    assert Counter(prompt.domain for prompt in stream.take_prompts(4096)) == {"few": 3, "many": 2048}


@pytest.mark.parametrize(
    ("system_prompt", "words"),
    [(None, ["system", "row", "user", "w"]), ("own", ["system", "own", "user", "w"]), ("", ["user", "w"])],
)
def test_the_domains_system_prompt_takes_the_place_of_the_rows(system_prompt: str | None, words: list[str]) -> None:
    mixture = Mixture([Domain("", ConversationSource(), 1.0, system_prompt, 160)], "1")
    stream = PromptStream(mixture, word_tokenizer(TEMPLATE), data_config())
    (prompt,) = stream.take_prompts(1)
    assert stream.tokenizer.decode(prompt.token_ids).split() == words


def test_without_a_template_messages_are_plain_text() -> None:
    assert word_tokenizer().prompt_ids([SYSTEM, *MESSAGES]) == word_tokenizer().prompt_ids("w", "row")


@pytest.mark.parametrize(
    "state",
    [
        {"position": 3},
        {"split": "held_out", "position": 3, "skipped": {"": 0}, "sources": {"": ""}},
        {"split": "train", "position": 1, "skipped": {"": 0}, "sources": {"": ""}, "x": 1},
        {"split": "train", "position": 1, "skipped": {"": 0}, "sources": {"": "other rows"}},
        {"split": "train", "position": 1, "skipped": {"math": 0}, "sources": {"math": ""}},
    ],
)
def test_the_state_of_another_stream_is_refused(state: dict[str, object]) -> None:
    with pytest.raises(CheckpointError):
        make_stream().load_state_dict(state)


def test_a_checkpoint_does_not_fit_a_file_that_has_changed(tmp_path: Path) -> None:
    old = mixed_stream(tmp_path).state_dict()
    write_jsonl(tmp_path / "1_4.jsonl", plain_rows(5, "d1 q"))
    with pytest.raises(CheckpointError, match="not those the checkpoint was made with .d1: 5 questions, 4 before"):
        mixed_stream(tmp_path).load_state_dict(old)


def test_a_limit_that_no_prompt_meets_is_an_error() -> None:
    with pytest.raises(DataError, match="longer than data.max_prompt_tokens=1"):
        make_stream(max_prompt_tokens=1).take_prompts(1)


def test_looking_at_the_next_prompts_takes_none() -> None:
    stream = make_stream()
    seen = [prompt.uid for prompt in stream.peek(3)]
    assert stream.position == 0
    assert [prompt.uid for prompt in stream.take_prompts(3)] == seen == ["train/0", "train/1", "train/3"]


def test_changed_rows_are_accepted_where_the_settings_say_so(tmp_path: Path) -> None:
    old = mixed_stream(tmp_path).state_dict()
    write_jsonl(tmp_path / "1_4.jsonl", plain_rows(5, "d1 q"))
    stream = mixed_stream(tmp_path)
    stream.config.changed_rows = "accept"
    stream.load_state_dict(old)
    assert stream.accepted_changes == ["d1: 5 questions, 4 before"]


def test_every_domain_gives_its_prompts_its_full_mark_or_that_of_the_mixture(tmp_path: Path) -> None:
    domains = []
    for name, mark in (("points", 10.0), ("plain", None)):
        write_jsonl(tmp_path / f"{name}.jsonl", plain_rows(4, name))
        path = str(tmp_path / f"{name}.jsonl")
        domains.append(DomainConfig(source="jsonl", path=path, name=name, success_reward=mark))
    for shared, expected in ((0.9, {10.0, 0.9}), (None, {10.0, 1.0})):
        config = data_config(source="mixture", domains=domains, held_out_fraction=0.0, success_reward=shared)
        stream = PromptStream(make_source(config, "train", 1), word_tokenizer(), config)
        assert {full_mark(prompt.payload) for prompt in stream.take_prompts(8)} == expected


def test_a_full_mark_changes_no_question_and_no_fingerprint(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", plain_rows(4, "q"))
    found = []
    for mark in (None, 0.9):
        config = data_config(source="jsonl", path=str(tmp_path / "rows.jsonl"), success_reward=mark)
        stream = PromptStream(make_source(config, "train", 1), word_tokenizer(), config)
        found.append((stream.state_dict(), [prompt.token_ids for prompt in stream.take_prompts(3)]))
    assert found[0] == found[1]


def test_the_question_of_an_environment_has_the_full_mark_of_its_source() -> None:
    asked = Question("t", "environment", "w", {"environment": "e", "task": {"text": "w", "payload": {"answer": "1"}}})
    payload = render_question(asked, None, data_config(), 10.0).payload
    assert full_mark(payload) == full_mark(payload["task"]["payload"]) == 10.0
    assert "data.success_reward" not in asked.payload["task"]["payload"]


def test_changed_code_of_a_reward_function_is_refused_or_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "rew_of_a_run.py").write_text("def score(payload, response): return 1.0\n")
    allow_also(verifiers=["rew_of_a_run:score"])
    old = make_stream().state_dict()
    make_stream().load_state_dict(old)
    (tmp_path / "rew_of_a_run.py").write_text("def score(payload, response): return 0.0\n")
    with pytest.raises(CheckpointError, match="the source of rew_of_a_run:score.: bring the old ones back, set data"):
        make_stream().load_state_dict(old)
    stream = make_stream()
    stream.config.changed_rows = "accept"
    stream.load_state_dict(old)
    assert stream.accepted_changes == ["the source of rew_of_a_run:score"]


def test_a_state_is_compared_once_before_processes_start_and_when_it_is_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = mixed_stream(tmp_path).state_dict()
    write_jsonl(tmp_path / "1_4.jsonl", plain_rows(5, "d1 q"))
    stream = mixed_stream(tmp_path)
    stream.config.changed_rows = "accept"
    stream.accept_changes(old)
    stream.load_state_dict(old)
    assert stream.accepted_changes == ["d1: 5 questions, 4 before"]
    # A state of version 0.2.0 has hashes of texts alone.
    sources = {}
    for domain in stream.mixture.domains:
        assert isinstance(domain.source, FileSource)
        sources[domain.name] = fingerprint_of_texts(domain.source.file.hashes, domain.source.rows)
    stream = mixed_stream(tmp_path)
    for _ in range(2):
        stream.accept_changes({**old, "sources": sources})
    assert caplog.text.count("cannot tell whether answers have changed") == len(sources)


def test_a_changed_tokenizer_is_refused_or_accepted_and_a_checkpoint_that_knows_none_resumes() -> None:
    old = make_stream().state_dict()
    other = make_stream()
    other.tokenizer = word_tokenizer(TEMPLATE)
    with pytest.raises(CheckpointError, match="the tokenizer or its chat template.: bring the old ones back"):
        other.load_state_dict(old)
    other.config.changed_rows = "accept"
    other.load_state_dict(old)
    assert other.accepted_changes == ["the tokenizer or its chat template"]
    other.config.changed_rows = "refuse"
    del old["tokenizer"]
    other.load_state_dict(old)


def test_a_checkpoint_that_knows_no_code_resumes() -> None:
    old = make_stream().state_dict()
    allow_also(verifiers=["rew_of_a_run:score"])
    stream = make_stream()
    stream.load_state_dict(old)
    assert stream.accepted_changes == []
