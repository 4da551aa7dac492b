"""The driver's side of the store, over a fake writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nemo_brorl.training.store.store import FLUSH_S, ParquetStore
from tests.support.fake_engines import FakeTransport, Reference, RemoteMethod
from tests.support.stored import record


class FakeWriter:
    """Keeps what it is given; a test ends the calls."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.references: list[Reference] = []

    @property
    def write(self) -> RemoteMethod:
        return RemoteMethod(self._write)

    def _write(self, kept: Any) -> Reference:
        self.steps.append(kept.step)
        self.references.append(Reference())
        return self.references[-1]


def make(folder: Path) -> tuple[ParquetStore, FakeWriter]:
    writer = FakeWriter()
    return ParquetStore(folder, lambda: writer, FakeTransport()), writer


def test_steps_are_handed_on_and_nobody_waits(tmp_path: Path) -> None:
    store, writer = make(tmp_path)
    store.write(record(1))
    store.write(record(2))
    assert writer.steps == [1, 2]
    assert store.transport.now() == 100.0


def test_a_third_step_is_left_out_while_two_are_being_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, writer = make(tmp_path)
    for step in (1, 2, 3):
        store.write(record(step))
    assert writer.steps == [1, 2]
    assert "the rollouts of step 3 are not stored" in caplog.text
    writer.references[0].resolve("written")
    store.write(record(4))
    assert writer.steps == [1, 2, 4]


def test_a_full_disk_is_a_warning_that_names_the_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, writer = make(tmp_path)
    store.write(record(5))
    writer.references[0].resolve(OSError("no space left on device"))
    store.flush()
    assert "step 5 were not stored" in caplog.text
    assert store.pending == {}


def test_a_flush_waits_no_longer_than_a_disk_may_take(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, _ = make(tmp_path)
    store.write(record(5))
    store.flush()
    assert store.transport.now() == 100.0 + FLUSH_S
    assert "step 5 were not stored within" in caplog.text


def test_a_store_that_is_off_starts_nothing_and_writes_nothing(tmp_path: Path) -> None:
    store = ParquetStore(tmp_path, None, FakeTransport())
    store.write(record(1))
    store.flush()
    assert list(tmp_path.iterdir()) == []
