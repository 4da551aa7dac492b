"""What a stored step says, and that it comes back as it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from brorl_lab.store_reader import read_step, stored_steps
from tokenizers import Tokenizer, models, pre_tokenizers

from nemo_brorl.config.records import StoreConfig
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import DataError
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.training.carriers import load_carriers, save_carriers
from nemo_brorl.training.store.columns import GROUP_SCHEMA, ROLLOUT_SCHEMA
from nemo_brorl.training.store.files import StoreFiles
from nemo_brorl.training.store.writer import StoreWriter
from nemo_brorl.types import Period, RolloutChunk, Sampling, ScoredGroup, StepRecord, StoredGroup
from scripts import rollout_store_page
from tests.support.environments import EnvironmentVerifier, TurnGenerator, environment_prompt
from tests.support.fakes import SAMPLING, make_chunk, make_prompt, score_chunk
from tests.support.source_tree import ROOT
from tests.support.stored import group, record


def written(folder: Path, kept: StepRecord, **settings: object) -> StepRecord:
    """A step as it is read after it was written."""
    StoreWriter(folder, StoreConfig(**settings), folder).write(kept)  # type: ignore[arg-type]
    return read_step(folder, kept.step)


def same_chunk(one: RolloutChunk, other: RolloutChunk) -> bool:
    arrays = ("token_ids", "log_probs", "offsets")
    is_same_data = all(np.array_equal(getattr(one.data, name), getattr(other.data, name)) for name in arrays)
    is_same_place = np.array_equal(one.indices, other.indices) and np.array_equal(one.lengths, other.lengths)
    versions = (one.version, one.newest_version, one.engine) == (other.version, other.newest_version, other.engine)
    return is_same_data and is_same_place and versions and one.request == other.request


def check_same(one: ScoredGroup, other: ScoredGroup) -> None:
    assert one.prompt == other.prompt
    np.testing.assert_array_equal(one.rewards, other.rewards)
    np.testing.assert_array_equal(one.repetition, other.repetition)
    assert len(one.group.chunks) == len(other.group.chunks)
    assert all(map(same_chunk, one.group.chunks, other.group.chunks))


def test_a_step_comes_back_as_it_was(tmp_path: Path) -> None:
    before = record()
    after = written(tmp_path, before)
    assert (after.step, after.version, after.learning_rate, after.loss_scale) == (3, 3, 1e-3 / 3, 0.1)
    for old, new in zip(before.groups, after.groups, strict=True):
        assert (old.origin, old.fate) == (new.origin, new.fate)
        check_same(old.scored, new.scored)
    trained, dropped = after.groups
    np.testing.assert_array_equal(trained.shaped, [0.0, 0.5, 0.25])
    np.testing.assert_array_equal(trained.advantages, [-1.0, 1.0, 0.0])
    np.testing.assert_array_equal(trained.trained, [0, 1])
    assert dropped.advantages is None


def test_chunks_and_the_tail_of_a_cut_group_come_back(tmp_path: Path) -> None:
    """Rollout 2 of five is missing: the first chunk has 0 and 1, the second 3 and 4, from another engine."""
    prompt = make_prompt("train/9")
    whole = group("train/9", [0.0, 1.0])
    request = replace(whole.group.chunks[0].request, prompt=prompt, first_index=3)
    late = replace(make_chunk(request, [4, 0], version=5), newest_version=6, engine=1)
    first = replace(whole.group.chunks[0], request=replace(request, first_index=0))
    scored = replace(
        whole,
        group=replace(whole.group, prompt=prompt, chunks=(first, late)),
        rewards=np.array([0.0, 1.0, 1.0, 0.0], np.float32),
        repetition=np.zeros(4, np.float32),
        train_indices=np.array([2, 3]),
        scored=(),
    )
    kept = StepRecord(7, 7, 1e-6, 1.0, (StoredGroup(scored, "completed", "carried"),))
    loaded = written(tmp_path, kept).groups[0].scored
    assert all(map(same_chunk, loaded.group.chunks, scored.group.chunks))
    np.testing.assert_array_equal(loaded.train_indices, [2, 3])
    np.testing.assert_array_equal(loaded.indices, [0, 1, 3, 4])


def test_a_step_made_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    written(tmp_path, record(3))
    again = replace(record(3), groups=record(3).groups[:1])
    assert len(written(tmp_path, again).groups) == 1
    assert stored_steps(tmp_path) == [3]
    assert pq.read_table(StoreFiles(tmp_path).rollouts(3)).num_rows == 3


def test_the_tables_are_read_as_one_by_their_folder(tmp_path: Path) -> None:
    for step in (1, 2):
        written(tmp_path, record(step))
    rollouts = ds.dataset(tmp_path / "store" / "rollouts").to_table()
    assert rollouts.schema.equals(ROLLOUT_SCHEMA)
    assert ds.dataset(tmp_path / "store" / "groups").to_table().schema.equals(GROUP_SCHEMA)
    right = rollouts.filter(pc.greater(rollouts["reward"], 0.9))
    assert right["uid"].to_pylist() == ["train/1", "train/2"]
    assert right["token_ids"].to_pylist() == [[10, 11], [10, 11]]
    assert right["advantage"].to_pylist() == [1.0, 1.0]
    assert rollouts["advantage"].null_count == 4, "two rollouts of each dropped group"
    assert rollouts["text"].null_count == 10


def test_a_share_of_the_groups_is_kept_and_of_a_prompt_all_steps_or_none(tmp_path: Path) -> None:
    uids = [f"train/{number}" for number in range(200)]
    groups = tuple(StoredGroup(group(uid, [0.0]), "sampled", "all_wrong") for uid in uids)
    first = written(tmp_path, StepRecord(1, 1, 1e-6, 1.0, groups), share=0.25)
    again = written(tmp_path, StepRecord(2, 2, 1e-6, 1.0, groups[100:]), share=0.25)
    kept = {stored.scored.prompt.uid for stored in first.groups}
    assert 30 <= len(kept) <= 70, "50 on average, deviation 6"
    assert first.num_left_out == 200 - len(kept)
    assert {stored.scored.prompt.uid for stored in again.groups} == kept.intersection(uids[100:])


def test_a_step_of_which_no_group_is_kept_is_read(tmp_path: Path) -> None:
    nothing = written(tmp_path, record(3), share=1e-9)
    assert (nothing.groups, nothing.num_left_out) == ((), 2)
    assert stored_steps(tmp_path) == [3]


def test_pandas_reads_the_store_as_it_is(tmp_path: Path) -> None:
    for step in (1, 2):
        written(tmp_path, record(step))
    rollouts = pd.read_parquet(tmp_path / "store" / "rollouts")
    assert rollouts.groupby("fate")["reward"].mean().to_dict() == {"all_wrong": 0.0, "trained": 0.5}
    assert rollouts["token_ids"][1].tolist() == [10, 11]


def test_datasets_reads_the_store_as_it_is(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    written(tmp_path, record(1))
    files = str(tmp_path / "store" / "rollouts" / "*.parquet")
    loaded = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded["token_ids"][1] == [10, 11]
    assert loaded["reward"][:3] == [0.0, 1.0, 0.5]


def test_the_documents_queries_run_in_duckdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step has a trained group of mean reward 0.5 with one success in 3 rollouts, and an all-wrong group."""
    duckdb = pytest.importorskip("duckdb")
    written(tmp_path, record(1))
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "howto" / "replay_and_export.md").read_text(encoding="utf-8")
    block = text.partition("```sql\n")[2].partition("```")[0]
    by_task, rare = [duckdb.sql(query).fetchall() for query in block.split(";\n") if query.strip()]
    assert [row[1:] for row in by_task] == [("all_wrong", 1, 0.0), ("trained", 1, 0.5)]
    assert [row[1:] for row in rare] == [("train/1", 3, 1)]


def test_the_page_of_columns_is_current() -> None:
    assert rollout_store_page.PAGE.read_text(encoding="utf-8") == rollout_store_page.page(), "run `make docs`"


def test_text_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    words = {f"w{number}": number for number in range(100)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    written(tmp_path, record(3), text=True)
    table = pq.read_table(StoreFiles(tmp_path).rollouts(3), columns=["text"])
    assert table["text"].to_pylist()[:2] == ["w0", "w10 w11"]


def test_a_step_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no steps.*store\.enabled"):
        stored_steps(tmp_path)
    written(tmp_path, record(3))
    with pytest.raises(DataError, match=r"step 4 is not in .*; steps 3 to 3 are"):
        read_step(tmp_path, 4)


def test_reasons_and_times_are_kept_where_they_are_known(tmp_path: Path) -> None:
    known = group("train/1", [0.0, 1.0])
    sampled = [replace(chunk, period=Period(90.0, 100.0, 104.0)) for chunk in known.group.chunks]
    known = replace(
        known,
        group=replace(known.group, chunks=tuple(sampled)),
        reasons=("has not ended after 5 s", ""),
        scored=(Period(105.0, 105.0, 105.5),),
    )
    groups = (StoredGroup(known, "sampled", "dropped"), StoredGroup(group("train/2", [1.0]), "sampled", "all_correct"))
    written(tmp_path, StepRecord(3, 3, 1e-6, 1.0, groups))
    columns = ["reason", "sampled_at", "sampling_s", "scored_at", "scoring_s"]
    rows = pq.read_table(StoreFiles(tmp_path).rollouts(3), columns=columns).to_pylist()
    assert [row["reason"] for row in rows] == ["has not ended after 5 s", None, None]
    assert list(rows[1].values())[1:] == [104.0, 4.0, 105.5, 0.5]
    assert list(rows[2].values()) == [None] * 5


def test_a_damaged_file_is_one_message(tmp_path: Path) -> None:
    written(tmp_path, record(3))
    StoreFiles(tmp_path).rollouts(3).write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DataError, match="step 3 in .* cannot be read"):
        read_step(tmp_path, 3)


def test_fates_choose_groups(tmp_path: Path) -> None:
    written(tmp_path, record(3))
    (stored,) = read_step(tmp_path, 3, fates=["all_wrong"]).groups
    assert stored.scored.prompt.uid == "train/3b"


def test_a_payload_of_any_text_comes_back(tmp_path: Path) -> None:
    payload = {"answer": "½ \u202e\x1b[31m", "tests": [{"in": None}]}
    request = replace(group("train/1", [1.0]).group.chunks[0].request, prompt=replace(make_prompt(), payload=payload))
    scored = score_chunk(make_chunk(request, [1]), [1.0])
    whole = replace(
        group("train/1", [1.0]), group=replace(group("a", [1.0]).group, prompt=request.prompt, chunks=(scored.chunk,))
    )
    loaded = written(tmp_path, StepRecord(1, 1, 1e-6, 1.0, (StoredGroup(whole, "sampled", "all_correct"),)))
    assert json.loads(json.dumps(payload)) == loaded.groups[0].scored.prompt.payload
    assert loaded.groups[0].scored.group.chunks[0].request.sampling == SAMPLING


def test_trajectories_come_back_with_their_turns_and_observations(tmp_path: Path) -> None:
    sampler = Sampler(TurnGenerator(), EnvironmentVerifier(), Console(), chunk_size=5, seed=1)
    (scored,) = sampler.sample([environment_prompt()], 16, Sampling(1.0, 1.0, 64), "test")
    stored = StoredGroup(scored, "sampled", "all_wrong")
    step = StepRecord(3, version=3, learning_rate=1e-3, loss_scale=1.0, groups=(stored,))
    after = written(tmp_path, step).groups[0].scored
    assert len(after.group.chunks) == len(scored.group.chunks) > 4, "those that ended a turn later are a chunk apart"
    for old, new in zip(scored.group.chunks, after.group.chunks, strict=True):
        mask = np.ones(len(new.data.token_ids), bool) if new.data.is_sampled is None else new.data.is_sampled
        was = np.ones(len(mask), bool) if old.data.is_sampled is None else old.data.is_sampled
        np.testing.assert_array_equal(mask, was)
        np.testing.assert_array_equal(new.data.token_ids, old.data.token_ids)
    np.testing.assert_array_equal(after.group.num_sampled, scored.group.num_sampled)
    for was_record, is_record in zip(scored.turns, after.turns, strict=True):
        assert was_record is not None and is_record is not None
        np.testing.assert_array_equal(is_record.rewards, was_record.rewards)
        np.testing.assert_array_equal(is_record.is_tool_error, was_record.is_tool_error)
    save_carriers(tmp_path / "group.npz", [scored])
    (loaded,) = load_carriers(tmp_path / "group.npz")
    np.testing.assert_array_equal(loaded.num_turns, scored.num_turns)
    np.testing.assert_array_equal(loaded.group.chunks[-1].data.is_sampled, scored.group.chunks[-1].data.is_sampled)
