"""Answers on disk: what a killed evaluation leaves is gone on with, other weights or settings are kept apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_brorl.config.rewards import RewardsConfig
from nemo_brorl.core.errors import CheckpointError, ModelError, ResourceError
from nemo_brorl.evaluation.answers import AnswerFile, answers_of, nearest_other
from nemo_brorl.evaluation.identity import differing, weights_digest
from tests.support.fakes import make_group
from tests.support.full_disk import full_disk
from tests.unit.evaluation.answers import identity, made, make_benchmark


def file_in(folder: Path, weights: str = "w", temperature: float = 1.0) -> AnswerFile:
    return AnswerFile(folder, identity(make_benchmark(temperature=temperature), weights))


def test_answers_read_back_as_they_were_written(tmp_path: Path) -> None:
    first, second = made("toy/0", "10", answers=["4", None], reference="4"), made("toy/1", "00")
    with file_in(tmp_path) as file:
        file.add(first)
        file.add(second)
    with file_in(tmp_path) as again:
        assert again.found == {"toy/0": first, "toy/1": second}


def test_half_a_line_is_cut_off_and_the_rest_is_gone_on_with(tmp_path: Path) -> None:
    with file_in(tmp_path) as file:
        file.add(made("toy/0", "10"))
        file.add(made("toy/1", "01"))
    whole = file.path.read_bytes()
    file.path.write_bytes(whole[:-20])
    with file_in(tmp_path) as again:
        assert list(again.found) == ["toy/0"]
        again.add(made("toy/1", "01"))
    assert again.path.read_bytes() == whole


def test_a_line_that_is_no_record_costs_its_own_prompt_only(tmp_path: Path) -> None:
    with file_in(tmp_path) as file:
        file.add(made("toy/0", "10"))
        file.add(made("toy/1", "01"))
    lines = file.path.read_text().splitlines(keepends=True)
    file.path.write_text(lines[0] + "\x00\x00\n" + lines[2])
    with file_in(tmp_path) as again:
        assert list(again.found) == ["toy/1"]


def test_a_file_killed_before_its_first_line_is_begun_anew(tmp_path: Path) -> None:
    file_in(tmp_path).path.write_text('{"identity": {"benchma')
    with file_in(tmp_path) as file:
        file.add(made("toy/0", "1"))
    with file_in(tmp_path) as again:
        assert list(again.found) == ["toy/0"]


def test_answers_that_a_full_disk_refuses_are_a_message_and_leave_nothing_of_themselves(tmp_path: Path) -> None:
    with file_in(tmp_path) as file:
        file.add(made("toy/0", "10"))
        whole = file.path.read_bytes()
        refused = pytest.raises(ResourceError, match=f"{file.path} cannot be written .*make room on that disk")
        with full_disk(len(whole) + 10), refused:
            file.add(made("toy/1", "01"))
    assert file.path.read_bytes() == whole


def test_a_file_with_another_beginning_is_left_alone(tmp_path: Path) -> None:
    path = file_in(tmp_path).path
    path.write_text('{"identity": {}}\n')
    with pytest.raises(CheckpointError, match="it is damaged; move it away"), file_in(tmp_path):
        pass
    assert path.read_text() == '{"identity": {}}\n'


def test_one_process_at_a_time_writes(tmp_path: Path) -> None:
    with (
        file_in(tmp_path),
        pytest.raises(CheckpointError, match="is being written by another process"),
        file_in(tmp_path),
    ):
        pass


def test_other_weights_and_settings_have_files_of_their_own_and_other_settings_are_named(tmp_path: Path) -> None:
    with file_in(tmp_path) as old:
        old.add(made("toy/0", "1"))
    colder, model = file_in(tmp_path, temperature=0.5), file_in(tmp_path, weights="v")
    assert len({old.path, colder.path, model.path}) == 3
    assert nearest_other(tmp_path, colder.identity) == f"{old.path.name} has other temperature"
    assert nearest_other(tmp_path, old.identity) is None
    assert nearest_other(tmp_path, model.identity) is None, "another model is nothing to wonder about"
    with colder:
        assert colder.found == {}


def test_limits_of_verifiers_that_are_not_asked_decide_nothing() -> None:
    rewards = RewardsConfig()
    rewards.code.memory_mib, rewards.timeouts = 1024, {"code": 60.0}
    words, programs = make_benchmark(), make_benchmark(verifier="code")
    assert identity(words, rewards=rewards) == identity(words)
    assert differing(identity(programs, rewards=rewards), identity(programs)) == ["scoring"]


def test_what_differs_is_named() -> None:
    one = {"weights": "a", "settings": {"temperature": 1.0, "top_p": 1.0}}
    other = {"weights": "b", "settings": {"temperature": 1.0, "top_p": 0.9}}
    assert differing(one, other) == ["top_p", "weights"]


def test_a_scored_group_keeps_rewards_lengths_and_reference() -> None:
    kept = answers_of(make_group([1.0, 0.5, 0.0], uid="toy/7", lengths=[3, 4, 5]))
    assert (kept.uid, kept.rewards, kept.tokens, kept.is_correct) == (
        "toy/7",
        (1.0, 0.5, 0.0),
        (3, 4, 5),
        (True, False, False),
    )
    assert (kept.reference, kept.answers) == ("1", None)


def test_weights_are_told_apart_by_their_bytes_and_a_copy_is_the_same(tmp_path: Path) -> None:
    for name, content in (("a", b"1234"), ("copy", b"1234"), ("other", b"1235")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(content)
        (tmp_path / name / "config.json").write_text("{}")
    digests = {name: weights_digest(tmp_path / name) for name in ("a", "copy", "other")}
    assert digests["a"] == digests["copy"] != digests["other"]
    (tmp_path / "a" / "config.json").write_text('{"rope_theta": 1}')
    assert weights_digest(tmp_path / "a") != digests["copy"]


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no \\*.safetensors"):
        weights_digest(tmp_path)
