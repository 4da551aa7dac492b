"""Which files a store holds: bounds, resume, and what is left when a writer is killed."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from brorl_lab.store_reader import read_step

from nemo_brorl.config.records import StoreConfig
from nemo_brorl.training.store.files import StoreFiles
from nemo_brorl.training.store.writer import StoreWriter
from tests.support.stored import record

pytestmark = pytest.mark.slow

NUM_KILLS = 50
LONGEST_LIFE_S = 0.03  # after its first step: several steps are written in that time


def put_steps(folder: Path, *steps: int, size: int = 1000) -> StoreFiles:
    """Steps of two files of `size` bytes each."""
    files = StoreFiles(folder)
    for step in steps:
        for path in (files.rollouts(step), files.groups(step)):
            with files.replacing(path) as aside:
                aside.write_bytes(b"\0" * size)
    return files


def test_steps_are_listed_in_order_of_their_numbers(tmp_path: Path) -> None:
    assert put_steps(tmp_path, 12, 3, 1_000_000).steps() == [3, 12, 1_000_000]


def test_a_step_without_its_groups_is_none(tmp_path: Path) -> None:
    files = put_steps(tmp_path, 1, 2)
    files.groups(2).unlink()
    assert files.steps() == [1]


def test_the_newest_steps_are_kept(tmp_path: Path) -> None:
    files = put_steps(tmp_path, 1, 2, 3, 4)
    files.prune(StoreConfig(keep_steps=2))
    assert files.steps() == [3, 4]
    assert not files.rollouts(2).exists()


def test_the_oldest_steps_are_deleted_beyond_the_bytes_that_are_allowed(tmp_path: Path) -> None:
    """Four steps of 2,000 bytes; 5,000 hold two."""
    files = put_steps(tmp_path, 1, 2, 3, 4)
    files.prune(StoreConfig(max_gib=5000 / 1024**3))
    assert files.steps() == [3, 4]


def test_a_step_that_is_too_large_alone_is_not_kept_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = put_steps(tmp_path, 1)
    files.prune(StoreConfig(max_gib=1999 / 1024**3))
    assert files.steps() == []
    assert "step 1 alone is larger" in caplog.text


def test_a_resumed_run_has_no_later_steps(tmp_path: Path) -> None:
    files = put_steps(tmp_path, 1, 2, 3, 4)
    files.groups(4).unlink()  # its rollouts alone count as well
    files.drop_after(2)
    assert files.steps() == [1, 2]
    assert not files.rollouts(4).exists()
    files.drop_after(None)
    assert files.steps() == []


def test_what_fails_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    files = put_steps(tmp_path, 1)
    with pytest.raises(OSError, match="disk full"), files.replacing(files.groups(1)) as aside:
        aside.write_bytes(b"half")
        raise OSError("disk full")
    assert files.groups(1).stat().st_size == 1000
    assert list((files.folder / "unfinished").iterdir()) == []


def die_before_the_rename(folder: Path) -> None:
    files = StoreFiles(folder)
    with files.replacing(files.groups(1)) as aside:
        aside.write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_writer_killed_before_the_rename_leaves_what_was_there(tmp_path: Path) -> None:
    files = put_steps(tmp_path, 1)
    child = multiprocessing.get_context("fork").Process(target=die_before_the_rename, args=(tmp_path,))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert files.groups(1).stat().st_size == 1000
    files.drop_after(1)
    assert not (files.folder / "unfinished").exists()


def write_for_ever(folder: Path) -> None:
    writer = StoreWriter(folder, StoreConfig(keep_steps=3), folder)
    for number in range(1_000_000):
        step = number % 5 + 1  # steps made again replace their files
        writer.write(record(step))
        (folder / "started").touch()


def test_fifty_kills_at_random_moments_leave_readable_files_only(tmp_path: Path) -> None:
    moments = random.Random(5)
    files = StoreFiles(tmp_path)
    num_found = 0
    for _ in range(NUM_KILLS):
        (tmp_path / "started").unlink(missing_ok=True)
        child = multiprocessing.get_context("fork").Process(target=write_for_ever, args=(tmp_path,))
        child.start()
        while not (tmp_path / "started").exists():
            time.sleep(0.001)
        time.sleep(moments.uniform(0.0, LONGEST_LIFE_S))
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
        for path in files.folder.glob("rollouts/*"):
            pq.read_table(path)
        for step in files.steps():
            assert read_step(tmp_path, step).step == step
            num_found += 1
    assert num_found >= NUM_KILLS
