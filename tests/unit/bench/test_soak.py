"""What grows in a long run, told from what only moves."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from bench.soak import folder_mib, growth, last_step, look, table_of

STEPS = list(range(100))


def test_a_line_grows_by_its_slope_and_nothing_is_left_of_it() -> None:
    found = growth(STEPS, [5 + 0.02 * step for step in STEPS], 0.95)
    assert found.per_100 == pytest.approx(2.0)
    assert found.margin == pytest.approx(0.0, abs=1e-9)
    assert found.exceeds(0.0)


def test_what_goes_up_and_down_does_not_grow() -> None:
    found = growth(STEPS, [float(step % 2) for step in STEPS], 0.95)
    assert found.per_100 == pytest.approx(0.0)
    assert not found.exceeds(0.0)


def test_one_jump_in_the_middle_is_not_sure_to_go_on() -> None:
    # Ten blocks whose means are 0 five times and 1 five times, at 4.5, 14.5, …: slope Σ(x − 49.5) y / Σ(x − 49.5)² =
    # (5 + 15 + 25 + 35 + 45) / (2 · (5² + 15² + 25² + 35² + 45²)) = 125 / 8250. What is left: Σ(y − ½)² − slope · 125 =
    # 2.5 − 1.894 = 0.606; error √(0.606 / 8 / 8250) = 0.00303, times 2.306 for 8 degrees of freedom.
    found = growth(STEPS, [float(step >= 50) for step in STEPS], 0.95)
    assert found.per_100 == pytest.approx(12500 / 8250)
    assert found.margin == pytest.approx(0.699, abs=1e-3)


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="19 samples"):
        growth(STEPS[:19], [0.0] * 19, 0.95)


def test_a_disk_may_grow_and_memory_may_not() -> None:
    rising = [(step, float(step)) for step in STEPS]
    level = [(step, 7.0) for step in STEPS]
    rows, growing = table_of({("all", "disk"): rising, ("driver", "memory"): rising, ("rank", "files"): level}, skip=10)
    assert growing == ["memory of driver"]
    assert [row[-1] for row in rows] == ["grows", "grows", ""]


def test_processes_are_looked_at_by_what_they_do() -> None:
    found = look(psutil.Process())
    own = psutil.Process().name()
    assert found["all", "processes"] >= 1
    assert found[own, "memory"] > 1.0
    assert found[own, "files"] >= len(os.listdir("/proc/self/fd")) - 1


def test_size_of_a_folder_and_its_newest_step(tmp_path: Path) -> None:
    assert last_step(tmp_path / "metrics.jsonl") == 0
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    (tmp_path / "large").write_bytes(b"\1" * 2**20)
    assert last_step(tmp_path / "metrics.jsonl") == 2
    assert 1.0 <= folder_mib(tmp_path) < 1.1


def test_memory_that_gains_half_a_page_in_100_steps_does_not_grow_and_two_pages_do() -> None:
    page = 4 / 1024
    half = [(step, 100 + page / 2 * step / 100) for step in range(200)]
    two = [(step, 100 + 2 * page * step / 100) for step in range(200)]
    _, growing = table_of({("writer", "memory"): half, ("driver", "memory"): two}, skip=10)
    assert growing == ["memory of driver"]
