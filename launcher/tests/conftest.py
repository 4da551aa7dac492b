"""A fake Slurm on PATH, and a run folder to launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fake_slurm import FakeSlurm


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Slurm's commands, fakes, and no others."""
    fake = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", fake.path)
    return fake


@pytest.fixture
def no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Slurm, whatever this one has."""
    monkeypatch.setenv("PATH", FakeSlurm(tmp_path / "slurm").path_without)


@pytest.fixture(autouse=True)
def no_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BRORL_SITE", raising=False)
