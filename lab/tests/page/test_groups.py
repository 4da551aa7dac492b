"""What the page says of the groups of a store, on a small one worked out by hand."""

from __future__ import annotations

import datetime
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from brorl_lab.page.details import (
    ResponseTokens,
    group_details,
    mean_log_probs,
    pieces_of,
    response_details,
    shown_places,
)
from brorl_lab.page.groups import (
    RATE_EDGES,
    StoreTables,
    by_size,
    group_table,
    newest_rates,
    rate_shares,
    success_rates,
)
from brorl_lab.page.page import as_json, reading_order

from nemo_brorl.config.records import StoreConfig
from nemo_brorl.core.errors import DataError
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.training.store.files import StoreFiles
from nemo_brorl.training.store.writer import StoreWriter
from tests.support.run_folders import put_tokenizer
from tests.support.stored import DirectStore, record


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Steps 3 and 4, each with a trained group of rewards 0, 1, 0.5 and lengths 1, 2, 3, and one of two wrong."""
    store = DirectStore(tmp_path)
    store.write(record(3))
    store.write(record(4))
    return tmp_path


def test_rollouts_are_summed_by_group(run: Path) -> None:
    columns = StoreTables(run).by_step()[3]
    assert columns["num_right"].tolist() == [1, 0]
    assert columns["mean_tokens"].tolist() == [2.0, 1.5]
    assert columns["num_cut"].tolist() == [0, 0]


def test_right_rollouts_have_the_full_mark_of_their_prompt_or_1_in_a_store_of_an_earlier_version(run: Path) -> None:
    """The rewards are 0, 1, 0.5 and 0, 0."""
    kept = record(5)
    groups = []
    for stored in kept.groups:
        prompt = replace(stored.scored.prompt, payload={"data.success_reward": 0.5})
        group = replace(stored.scored.group, prompt=prompt)
        groups.append(replace(stored, scored=replace(stored.scored, group=group)))
    DirectStore(run).write(replace(kept, groups=tuple(groups)))
    assert StoreTables(run).by_step()[5]["num_right"].tolist() == [2, 0]
    assert group_details(run, 5, 0, None)["lowest_right"] == 0.5
    path = StoreFiles(run).groups(3)
    pq.write_table(pq.read_table(path).drop_columns("full_mark"), path)
    assert StoreTables(run).by_step()[3]["num_right"].tolist() == [1, 0]


def test_the_table_has_the_newest_steps_and_says_how_many_groups_there_are(run: Path) -> None:
    table = group_table(StoreTables(run).by_step(), max_groups=3)
    rows = table["rows"]
    assert rows["step"] == [4, 4]
    assert rows["uid"] == ["train/4", "train/4b"]
    assert [table["lists"]["fate"][number] for number in rows["fate"]] == ["trained", "all_wrong"]
    assert rows["right"] == [1, 0]
    assert rows["reward"] == [0.5, 0.0]
    assert (table["num_all"], table["first_step"]) == (4, 4)


def test_a_step_that_cannot_be_read_is_named_and_the_others_are_shown(run: Path) -> None:
    StoreFiles(run).rollouts(4).write_bytes(b"no Parquet")
    tables = StoreTables(run)
    assert list(tables.by_step()) == [3]
    assert list(tables.unreadable) == [4]


def test_a_step_of_which_no_group_is_stored_has_no_rows(run: Path) -> None:
    StoreWriter(run, StoreConfig(share=1e-9), run).write(record(4))
    by_step = StoreTables(run).by_step()
    assert len(by_step[4]["num_right"]) == 0
    assert group_table(by_step)["num_all"] == 2
    rates = success_rates(by_step)
    assert rates["pass_at"][1] == {}
    assert set(rates["shares"][1]) == {0.0}


def test_a_step_that_was_written_anew_is_read_anew(run: Path) -> None:
    tables = StoreTables(run)
    before = tables.by_step()
    DirectStore(run).write(record(4))
    after = tables.by_step()
    assert after[3] is before[3]
    assert after[4] is not before[4]


def test_success_rates_of_sampled_groups_by_step(run: Path) -> None:
    """One group has 1 of 3 right, the other none of 2; the smallest group has 2. pass@1 = (1/3 + 0) / 2. Of two from
    the first: both wrong 1/3, both right 0, so pass@2 = (2/3 + 0) / 2, and as many groups disagree."""
    rates = success_rates(StoreTables(run).by_step())
    assert rates["steps"] == [3, 4]
    expected = [0.0] * (len(RATE_EDGES) + 3)
    expected[0] = 0.5
    expected[5] = 0.5  # from 20 to 35 %: after "none" and the bins that end at 2, 5, 10 and 20 %
    assert rates["shares"][0] == expected
    assert rates["pass_at"][0] == {"1": round(1 / 6, 5), "2": round(1 / 3, 5)}
    assert rates["informative"][0] == {"1": 0.0, "2": round(1 / 3, 5)}


def test_all_right_and_nearly_all_right_are_not_the_same_bin() -> None:
    shares = rate_shares(np.array([512, 512]), np.array([511, 512]))
    assert shares[-2:] == [0.5, 0.5]


def test_sizes_up_to_that_of_the_smallest_group() -> None:
    """3 of 4 right: of two, one is wrong in half of the cases; of all four, always."""
    passed, mixed = by_size(np.array([4, 4]), np.array([3, 3]))
    assert passed == {"1": 0.75, "2": 1.0, "4": 1.0}
    assert mixed == {"1": 0.0, "2": 0.5, "4": 1.0}


def test_a_group_has_its_numbers_conversation_and_responses(run: Path) -> None:
    found = group_details(run, 3, 0, None)
    assert found["uid"] == "train/3"
    assert found["columns"]["reward"] == [0.0, 1.0, 0.5]
    assert found["columns"]["advantage"] == [-1.0, 1.0, 0.0]
    assert found["columns"]["is_trained"] == [True, True, False]
    assert found["columns"]["mean_log_prob"] == [-0.5, -0.5, -0.5]
    assert found["messages"] == [{"role": "user", "content": "What is 1?"}]
    assert found["payload"] == {"answer": "1"}
    assert found["expected"] == "1"
    assert list(found["responses"]) == ["0", "1", "2"]


def test_mean_log_probs_are_over_the_tokens_that_were_sampled() -> None:
    columns = {
        "num_tokens": [9, 2, 0, 3],
        "log_probs": [[-9.0] * 9, [-1.0, -3.0], [], [-2.0, 0.0, -5.0]],
        "is_sampled": [None, None, None, [True, False, True]],
    }
    later = pa.table(columns).slice(1)  # lists that do not begin at the first value
    assert mean_log_probs(later) == [-2.0, None, -3.5]
    assert mean_log_probs(later.drop_columns("is_sampled")) == [-2.0, None, -2.3333]


def test_without_a_tokenizer_token_ids_are_shown(run: Path) -> None:
    [piece] = response_details(run, 3, 0, 1, None)["pieces"]
    assert piece == "(the tokenizer of this run is not there; token ids) 10 11"


def test_what_is_not_there_is_one_message(run: Path) -> None:
    with pytest.raises(DataError, match="step 3 has 2 groups, there is no group 2"):
        group_details(run, 3, 2, None)
    with pytest.raises(DataError, match="there is no rollout 7"):
        response_details(run, 3, 0, 7, None)
    with pytest.raises(DataError, match="step 9"):
        group_details(run, 9, 0, None)


def put_column(path: Path, name: str, values: list[object]) -> None:
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.column_names.index(name), name, pa.array(values)), path)


@pytest.mark.parametrize("sizes", [[2**33, 2], [-1, 6], [0, 5], [3, 3], ["<b>", "2"]])
def test_groups_of_other_sizes_than_their_rollouts_are_unreadable(run: Path, sizes: list[object]) -> None:
    put_column(StoreFiles(run).groups(3), "num_rollouts", sizes)
    store = StoreTables(run)
    assert list(store.by_step()) == [4] and list(store.unreadable) == [3]


def test_a_mean_reward_that_is_a_text_is_unreadable(run: Path) -> None:
    put_column(StoreFiles(run).groups(3), "mean_reward", ["<b>", "0"])
    assert list(StoreTables(run).by_step()) == [4]


@pytest.mark.parametrize(
    ("file", "name", "values"),
    [("groups", "payload", ["{" * 65] * 2), ("rollouts", "reward", [math.nan] * 5), ("groups", "messages", [[7]] * 2)],
)
def test_a_group_that_cannot_be_shown_is_one_message(run: Path, file: str, name: str, values: list[object]) -> None:
    put_column(getattr(StoreFiles(run), file)(3), name, values)
    with pytest.raises(DataError, match="step 3 of .* cannot be read"):
        group_details(run, 3, 0, None)


def test_a_value_that_json_does_not_have_is_a_text_on_the_page() -> None:
    assert as_json({"uid": datetime.date(2024, 2, 29)}) == '{"uid":"2024-02-29"}'


def test_a_character_of_several_tokens_is_one_piece_with_their_least_log_prob(tmp_path: Path) -> None:
    put_tokenizer(tmp_path / "tokenizer")
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    tokens = [*"aé".encode(), 256]
    found = pieces_of(tokenizer, ResponseTokens(tokens, [-1.0, -0.5, -3.0, -0.25], None))
    assert found == [("a", -1.0), ("é", -3.0), ("<eos>", -0.25)]


def test_what_an_environment_said_has_no_log_prob(tmp_path: Path) -> None:
    put_tokenizer(tmp_path / "tokenizer")
    tokens = ResponseTokens([*b"abc"], [-1.0, 0.0, -2.0], [True, False, True])
    assert pieces_of(load_tokenizer(tmp_path / "tokenizer"), tokens) == [("a", -1.0), ("b", None), ("c", -2.0)]


def test_bytes_that_are_no_character_at_the_end_are_shown_as_one(tmp_path: Path) -> None:
    put_tokenizer(tmp_path / "tokenizer")
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    assert pieces_of(tokenizer, ResponseTokens([*b"a\xc3"], [-1.0, -2.0], None)) == [("a", -1.0), ("\ufffd", -2.0)]


def test_responses_to_read_are_right_and_wrong_alike() -> None:
    assert shown_places([1.0] * 2 + [0.0] * 8, 1.0, 6) == [0, 1, 2, 4, 6, 8]
    assert shown_places([0.0] * 3, 1.0, 6) == [0, 1, 2]


def test_groups_with_the_rarest_success_of_the_newest_step_come_first(run: Path) -> None:
    assert list(reading_order(StoreTables(run).by_step())) == [(4, 0), (3, 0), (4, 1), (3, 1)]


def test_what_n_buys_is_read_from_the_newest_step_alone(run: Path) -> None:
    by_step = StoreTables(run).by_step()
    newest, rates = newest_rates(by_step), success_rates(by_step)
    assert len(rates["steps"]) > 1
    assert newest["steps"] == rates["steps"][-1:]
    assert newest["informative"] == rates["informative"][-1:]
    assert newest_rates({})["steps"] == []
