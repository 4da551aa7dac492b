"""The notebook of `examples/`, run as a kernel runs it: its cells one after the other in `__main__` of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.forked_workers import use_forked_workers
from tests.support.source_tree import ROOT

pytestmark = pytest.mark.end_to_end

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
KERNEL = """
import json, sys
import psutil
from tests.support.forked_workers import enter_command
enter_command(sys.argv[1] or None)
for number, cell in enumerate(json.load(sys.stdin)):
    exec(compile(cell, f"<cell {number}>", "exec"))
    left = [process.name() for process in psutil.Process().children(recursive=True)]
    print("children", number, [name for name in left if "ray" in name.lower() or name == "gcs_server"])
print("rows", json.dumps(rows))
"""


def cells(notebook: Path) -> list[str]:
    """The code of a notebook's cells, whose outputs no commit should hold."""
    read = json.loads(notebook.read_text(encoding="utf-8"))
    code = [cell for cell in read["cells"] if cell["cell_type"] == "code"]
    assert [cell["outputs"] for cell in code] == [[]] * len(code)
    return ["".join(cell["source"]) for cell in code]


def test_the_notebook_trains_in_a_loop_and_train_goes_on_where_it_ended(tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to(ROOT / "models")
    code = cells(NOTEBOOK)
    workers = use_forked_workers() or ""
    kernel = subprocess.run(
        [sys.executable, "-c", KERNEL, workers], input=json.dumps(code), cwd=tmp_path, capture_output=True, text=True,
        timeout=580, check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert kernel.returncode == 0, kernel.stdout[-2000:] + kernel.stderr[-4000:]
    lines = kernel.stdout.splitlines()
    assert [line for line in lines if line.startswith("children")] == [f"children {n} []" for n in range(len(code))]
    rows = json.loads(next(line for line in lines if line.startswith("rows ")).removeprefix("rows "))
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert ["validation/pass_at_1" in row for row in rows] == [False, False, True]
    assert all(0 < row["reward/mean"] < 1 for row in rows)
    run = tmp_path / "runs" / "notebook"
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"step_2", "step_3"}
    for folder in ("weights", "hf"):
        assert (run / folder / "model.safetensors").exists()
    assert "resumed after step 2" in kernel.stdout
