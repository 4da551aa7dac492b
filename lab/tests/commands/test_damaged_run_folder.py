"""Damaged files of a run folder: whoever reads one says so in one message, or goes on without it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from nemo_brorl.config.same_run import check_same_run, recorded_settings
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.config.trackers import ExpManagerConfig
from nemo_brorl.core.errors import BroRLError, CheckpointError
from nemo_brorl.training.records import read_metrics
from nemo_brorl.training.store.files import StoreFiles
from tests.support.run_readers import READERS, put_healthy

pytestmark = pytest.mark.slow

SHAPES = ("[]", "null", "3", '"x"', "{}", '[1]\n{"a": 1}\n', '{"step": "x"}\n', '{"step": null}')


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose every file can be read."""
    return put_healthy(tmp_path_factory.mktemp("runs"))


def damages(content: bytes, generator: random.Random) -> Iterator[bytes]:
    """Empty, cut, overwritten, with flipped bits, of another shape."""
    yield b""
    yield content[: len(content) // 2]
    yield content[:-3]
    yield bytes(len(content))
    yield generator.randbytes(len(content))
    yield b"\xff\xfe" + content
    for num_bits in (1, 1, 1, 20):
        flipped = bytearray(content)
        for _ in range(num_bits):
            flipped[generator.randrange(len(flipped))] ^= 1 << generator.randrange(8)
        yield bytes(flipped)
    for shape in SHAPES:
        yield shape.encode()


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_one_message_or_left_out(
    name: str, healthy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = healthy / name
    content = path.read_bytes()
    try:
        for damaged in damages(content, random.Random(name)):
            for read in READERS[name]:
                path.write_bytes(damaged)
                read_or_refuse(read, healthy)
    finally:
        path.write_bytes(content)


def read_or_refuse(read: Callable[[Path], object], folder: Path) -> None:
    """Anything but a message for the user is a mistake of ours, which the test shows."""
    try:
        read(folder)
    except BroRLError as error:
        assert str(error)
    except FileNotFoundError:
        assert read in READERS["timeline/step_000002.trace.json.gz"]


def test_a_setting_that_a_flipped_bit_has_made_another_is_shown_with_what_to_do(tmp_path: Path) -> None:
    config = BroRLConfig(exp_manager=ExpManagerConfig(explicit_log_dir=str(tmp_path)))
    path = tmp_path / "config.yaml"
    path.write_text(OmegaConf.to_yaml(OmegaConf.structured(config)).replace("loss: ppo_clip", "loss: ppo_clyp"))
    with pytest.raises(
        CheckpointError, match="algorithm.loss was 'ppo_clyp', now 'ppo_clip'.*config.yaml is damaged: delete that file"
    ):
        check_same_run(config)
    path.unlink()
    assert not check_same_run(config)  # goes on by the settings that are given


def test_damaged_settings_of_a_run_are_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    for text in ("a: [", "", "[1, 2]", "policy: {model: ${nowhere}}"):
        path.write_text(text)
        with pytest.raises(CheckpointError, match=r"config.yaml is damaged \(.+\). Delete this file to resume"):
            recorded_settings(path)


def test_rows_around_a_damaged_one_are_kept_and_it_is_named_by_its_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "a": 0.5}\n{"step": "\xff", "a": 1}\n[3]\n{"step": 2}\n{"st')
    assert read_metrics(path) == [{"step": 1, "a": 0.5}, {"step": 2}]
    assert "ignored half-written or damaged rows: line 2, 3, 5" in caplog.text


def test_files_of_the_store_that_are_no_steps_are_passed_over(healthy: Path) -> None:
    (healthy / "store" / "groups" / "step_x.parquet").touch()
    assert StoreFiles(healthy).steps() == [1, 2]
