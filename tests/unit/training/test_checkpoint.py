"""Checkpoints: atomic, marker last, newest usable first."""

import json
import os
from pathlib import Path

import pytest

from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.training.checkpoint import Checkpoints, CutStep
from nemo_brorl.training.marker import MARKER
from nemo_brorl.training.saver import Saver
from nemo_brorl.types import RolloutRequest, Sampling
from tests.support.fakes import FakePolicy, make_chunk, make_prompt, score_chunk
from tests.unit.training.saved_steps import run_state, save_steps


def test_the_newest_checkpoint_is_loaded_with_its_carried_groups(tmp_path: Path) -> None:
    checkpoints, policy = save_steps(tmp_path, [2, 4, 10])
    run = checkpoints.load_newest(policy.load)
    assert run is not None
    assert (run.step, run.state, policy.weight) == (10, {"version": 10}, 10.0)
    assert run.groups.kept[0].prompt.uid == "train/10"


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    save_steps(tmp_path, [2, 4, 10], keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_10", "step_4"]


@pytest.mark.parametrize("damage", ["no marker", "half a file", "a flipped bit", "bad marker", "unreadable policy"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path, damage: str) -> None:
    checkpoints, policy = save_steps(tmp_path, [2, 4])
    newest = tmp_path / "step_4"
    if damage == "no marker":
        (newest / MARKER).unlink()
    elif damage == "half a file":
        (newest / "groups.npz").write_bytes((newest / "groups.npz").read_bytes()[:50])
    elif damage == "a flipped bit":
        flip_bit(newest / "state.json", 0)
    elif damage == "bad marker":
        (newest / MARKER).write_text("{")
    else:
        (newest / "policy" / "weight.json").write_text("{{{")
    run = checkpoints.load_newest(policy.load)
    assert run is not None
    assert (run.step, policy.weight) == (2, 2.0)


@pytest.mark.parametrize("name", ["state.json", "groups.npz"])
def test_a_flipped_bit_is_named_with_its_file_and_the_run_goes_on_from_the_checkpoint_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    checkpoints, policy = save_steps(tmp_path, [2, 4])
    flip_bit(tmp_path / "step_4" / name, -1)
    run = checkpoints.load_newest(policy.load)
    assert run is not None and run.step == 2
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"step_4/{name} holds other bytes than were written (crc32)" in message
    assert message.endswith("trying the one before")


def test_a_damaged_checkpoint_is_written_anew_when_its_step_comes_again(tmp_path: Path) -> None:
    checkpoints, policy = save_steps(tmp_path, [2, 4], keep=2)
    flip_bit(tmp_path / "step_4" / "state.json", 0)
    checkpoints.load_newest(policy.load)
    assert [path.name for path in checkpoints.complete()] == ["step_2"]
    Saver(checkpoints, policy, in_background=False).save(run_state(4), wait=True)
    assert [path.name for path in checkpoints.complete()] == ["step_4", "step_2"]
    run = Checkpoints(tmp_path, 2).load_newest(policy.load)
    assert run is not None and run.step == 4


def test_a_checkpoint_of_an_earlier_version_which_knows_sizes_alone_is_loaded(tmp_path: Path) -> None:
    checkpoints, policy = save_steps(tmp_path, [2])
    marker = tmp_path / "step_2" / MARKER
    sizes = {name: row[0] for name, row in json.loads(marker.read_text()).items()}
    marker.write_text(json.dumps(sizes))
    run = checkpoints.load_newest(policy.load)
    assert run is not None and run.step == 2


def flip_bit(path: Path, place: int) -> None:
    """Change a byte of a file by one bit."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_no_checkpoint_at_all_is_a_fresh_start(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "checkpoints", 2).load_newest(FakePolicy().load) is None


def test_checkpoints_that_all_fail_are_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    checkpoints, policy = save_steps(tmp_path, [2])
    (tmp_path / "step_2" / "policy" / "weight.json").write_text("{{{")
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
        checkpoints.load_newest(policy.load)


def test_a_save_that_was_cut_short_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / "step_4.partial" / "policy").mkdir(parents=True)
    checkpoints, _ = save_steps(tmp_path, [4])
    assert [path.name for path in checkpoints.complete()] == ["step_4"]
    assert json.loads((tmp_path / "step_4" / MARKER).read_text()).keys() == {
        "policy/weight.json",
        "state.json",
        "groups.npz",
    }


def cut_step(step: int) -> CutStep:
    request = RolloutRequest(make_prompt(), first_index=0, num_rollouts=2, seed=1, sampling=Sampling(1.0, 1.0, 8))
    return CutStep(step, (score_chunk(make_chunk(request, [2, 3]), [0.0, 1.0]),))


def test_what_a_cut_step_had_sampled_is_kept_until_the_next_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.begin(run_state(2))
    checkpoints.commit(2)
    assert checkpoints.load_cut_step(2) == ()
    assert checkpoints.save_cut_step(cut_step(2)) == 2
    assert checkpoints.load_cut_step(1) == (), "that of another step"
    (chunk,) = checkpoints.load_cut_step(2)
    (kept,) = cut_step(2).chunks
    assert chunk.rewards.tolist() == [0.0, 1.0]
    assert chunk.chunk.data.token_ids.tolist() == kept.chunk.data.token_ids.tolist()
    assert chunk.chunk.request.sampling == kept.chunk.request.sampling
    checkpoints.begin(run_state(3))
    checkpoints.commit(3)
    assert checkpoints.load_cut_step(2) == ()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_2", "step_3"]


def test_a_damaged_file_of_a_cut_step_costs_only_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save_cut_step(cut_step(2))
    path = tmp_path / "cut_step.npz"
    for content in (path.read_bytes()[:100], b""):
        path.write_bytes(content)
        assert checkpoints.load_cut_step(2) == ()
    assert caplog.text.count("is damaged") == 2


def test_rollouts_of_a_cut_step_that_cannot_be_written_are_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert Checkpoints(tmp_path / "missing", keep=2).save_cut_step(cut_step(2)) == 0
    assert "will be sampled again" in caplog.text


def test_a_state_too_large_to_be_one_is_not_read(tmp_path: Path) -> None:
    checkpoints, policy = save_steps(tmp_path, [2, 4])
    os.truncate(tmp_path / "step_4" / "state.json", 1 << 40)
    marker = tmp_path / "step_4" / MARKER
    sizes = {name: row[0] for name, row in json.loads(marker.read_text()).items()}
    marker.write_text(json.dumps(sizes | {"state.json": 1 << 40}))
    run = checkpoints.load_newest(policy.load)
    assert run is not None and run.step == 2
