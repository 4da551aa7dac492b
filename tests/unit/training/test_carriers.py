"""Carriers on disk come back as they were."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.rollouts.ledger import OpenGroup
from nemo_brorl.training.carriers import load_carriers, save_carriers
from nemo_brorl.types import PartialRollouts
from tests.support.fakes import SAMPLING, make_arrays, make_group, make_prompt


def test_a_group_survives_token_by_token(tmp_path: Path) -> None:
    group = make_group([0.0, 1.0, 0.5], lengths=[1, 3, 2], version=7)
    save_carriers(tmp_path / "groups.npz", [group])
    (loaded,) = load_carriers(tmp_path / "groups.npz")
    assert loaded.prompt == group.prompt
    assert loaded.group.version == loaded.group.newest_version == 7
    assert loaded.mass == group.mass
    assert loaded.group.chunks[0].request == group.group.chunks[0].request
    np.testing.assert_array_equal(loaded.rewards, group.rewards)
    for name in ("token_ids", "log_probs", "offsets"):
        np.testing.assert_array_equal(
            getattr(loaded.group.chunks[0].data, name), getattr(group.group.chunks[0].data, name)
        )


def test_an_open_group_keeps_its_partial_rollouts(tmp_path: Path) -> None:
    partial = PartialRollouts(np.array([4, 6], np.int32), np.array([2, 0], np.int32), 3, make_arrays([4, 6], [2, 0]))
    save_carriers(tmp_path / "groups.npz", [OpenGroup(make_prompt("train/9"), SAMPLING, partial=[partial])])
    (loaded,) = load_carriers(tmp_path / "groups.npz", OpenGroup)
    assert (loaded.uid, loaded.num_rollouts, loaded.num_partial, loaded.oldest_version) == ("train/9", 2, 2, 3)
    np.testing.assert_array_equal(loaded.partial[0].data.token_ids, partial.data.token_ids)


@pytest.mark.parametrize(
    "records",
    [
        "[" * 100_000,
        "[" + '{"mapping":{"a":' * 700 + "1" + "}}" * 700 + "]",
        "5",
        '[{"type": "Evil", "fields": {}}]',
        '[{"type": "Prompt", "fields": []}]',
        '[{"mapping": []}]',
        "[[1]]",
        '[{"array": "../x"}]',
        '[{"array": 1}]',
        "[1" + "0" * 5000 + "]",
    ],
)
def test_a_damaged_file_is_a_checkpoint_error(tmp_path: Path, records: str) -> None:
    np.savez(tmp_path / "groups.npz", records=np.frombuffer(records.encode(), np.uint8))
    with pytest.raises(CheckpointError):
        load_carriers(tmp_path / "groups.npz")


@pytest.mark.parametrize(
    "content", [b"", b"PK\x05\x06" + bytes(18), b"\x93NUMPY", b"\x80\x04.", b"PK\x03\x04" + bytes(100)]
)
def test_what_is_no_npz_is_a_checkpoint_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "groups.npz").write_bytes(content)
    with pytest.raises(CheckpointError):
        load_carriers(tmp_path / "groups.npz")


def test_a_file_of_another_version_is_refused_by_name(tmp_path: Path) -> None:
    @dataclasses.dataclass
    class Unknown:
        number: int

    save_carriers(tmp_path / "old.npz", [Unknown(3)])
    with pytest.raises(CheckpointError, match=r"old\.npz was written by another version .*Unknown"):
        load_carriers(tmp_path / "old.npz")
