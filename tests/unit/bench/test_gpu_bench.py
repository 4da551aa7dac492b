"""The GPU bench as far as it goes without a GPU: resuming, limits, verdicts, floors, and its cheapest part run to the
end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from bench.gpu import floors, run
from bench.gpu.record import Results, Row, read_results, table
from bench.gpu.run import Bench, Part
from bench.gpu.setting import Ceilings
from bench.gpu.shapes import QWEN_1_5B, layer_parameters, weight_bytes
from nemo_brorl.core.model_shape import ModelShape, read_model_shape

pytestmark = pytest.mark.slow


def script(monkeypatch: pytest.MonkeyPatch, code: str, limit_s: float = 60.0) -> Part:
    """A part that runs this code."""
    part = Part("x", "fake", limit_s)
    monkeypatch.setattr(Part, "command", lambda self, results, is_tiny: [sys.executable, "-c", code])
    monkeypatch.setattr(run, "LEAST_S", 0.0)
    return part


def test_a_part_that_is_done_is_passed_over_until_its_sources_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, bench = script(monkeypatch, "print('hello')"), Bench(tmp_path, False, None, tmp_path / "out" / "all.tar.gz")
    assert not bench.is_done(part)
    assert bench.run(part).status == "done"
    assert (tmp_path / "fake.log").read_text() == "hello\n"
    assert bench.is_done(part)
    monkeypatch.setattr(run, "revision", lambda part: "another")
    assert not bench.is_done(part)
    with tarfile.open(tmp_path / "out" / "all.tar.gz") as archive:
        assert {"fake.log", "fake.outcome"} <= set(archive.getnames())


def test_a_part_that_fails_or_hangs_costs_itself_alone_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, False, None, None)
    assert bench.run(script(monkeypatch, "raise SystemExit(3)")).status == "ended with 3, see fake.log"
    hangs = (
        "import subprocess, time; p = subprocess.Popen(['sleep', '600'], start_new_session=True); print(p.pid, "
        "flush=True); time.sleep(600)"
    )
    assert bench.run(script(monkeypatch, hangs, limit_s=2.0)).status == "over its limit of 2 s"
    child = int((tmp_path / "fake.log").read_text())
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}/stat").exists() and " Z " not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < deadline, "the part's own process lives on"
    assert not bench.is_done(Part("x", "fake", 1.0))


def test_what_cannot_begin_says_why_and_keeps_older_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, False, None, None)
    lacking = Part("x", "fake", 60.0, ("no_such_module.part",))
    assert bench.run(lacking).status == "lacks no_such_module.part"
    bench.run(script(monkeypatch, ""))
    assert bench.run(lacking).status == "lacks no_such_module.part"
    assert bench.is_done(lacking)
    bench.ends_at = time.monotonic() - 1
    monkeypatch.setattr(run, "LEAST_S", 20.0)
    assert bench.run(Part("x", "fake", 60.0)).status == "no time left"


def test_a_sources_digest_is_of_the_part_itself_and_what_parts_share() -> None:
    one, other = (run.revision(part) for part in run.PARTS[:2])
    assert one != other
    assert one == run.revision(run.PARTS[0])
    assert [part.letter for part in run.chosen("c,gpu_tests")] == ["c", "a"]
    with pytest.raises(SystemExit, match="--only nothing is no part"):
        run.chosen("nothing,c")


def test_the_first_parts_fit_into_thirty_minutes_and_keep_files_of_their_own() -> None:
    assert sum(part.limit_s for part in run.FIRST) <= 30 * 60
    assert run.FIRST[0].name == run.PARTS[0].name == "smoke"
    stems = [part.stem for part in run.FIRST]
    assert len(set(stems)) == len(stems)
    assert [part.stem for part in run.chosen("first_fp8,1", run.FIRST)] == ["smoke", "first_fp8"]
    command = run.chosen("first_step", run.FIRST)[0].command(Path("out"), is_tiny=True, python="python")
    assert command[:5] == ["python", "-m", "bench.gpu.throughput", "--label", "first_step"]
    assert command[-3:] == ["--tiny", "--rows", "bf16"]


def test_a_row_that_fails_costs_itself_alone_and_the_part_ends_with_an_error(tmp_path: Path) -> None:
    results = Results(tmp_path / "a.json", "a", is_tiny=False)
    with results.attempt("first"):
        raise ValueError("no kernel")
    with results.attempt("second"):
        results.add(Row("second", 1.0, "s"))
    with pytest.raises(SystemExit, match="a: 1 attempts failed"):
        results.finish()
    content = read_results(tmp_path / "a.json")
    assert content is not None and content["whole"]
    assert [(row.what, row.value) for row in content["rows"]] == [("first", None), ("second", 1.0)]
    assert content["rows"][0].note == "failed: ValueError: no kernel"


def test_a_target_is_met_by_a_measured_value_only(tmp_path: Path) -> None:
    rows = [Row("gain", 1.3, "×", at_least=1.25), Row("gain", 1.2, "×", at_least=1.25), Row("sync", 0.5, "s",
            floor=0.25, at_most=1.0),
            Row("sync", None, "s", at_most=1.0), Row("seconds", 3.0, "s")]  # fmt: skip
    assert [row.verdict(is_tiny=False) for row in rows] == ["met", "not met", "met", "not measured", ""]
    assert {row.verdict(is_tiny=True) for row in rows[:4]} == {"not measured"}
    results = Results(tmp_path / "a.json", "a", is_tiny=False)
    results.add(rows[2])
    content = read_results(tmp_path / "a.json")
    assert content is not None and content["rows"] == [rows[2]] and not content["whole"]
    assert "2.00" in table([("a", content["rows"], False)])[-1]  # twice its floor
    (tmp_path / "broken.json").write_text("{")
    assert read_results(tmp_path / "broken.json") is None


@pytest.fixture
def shape(tmp_path: Path) -> ModelShape:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_1_5B))
    return read_model_shape(tmp_path)


def test_floors_of_the_1_5b_shape_by_hand(shape: ModelShape) -> None:
    layer = 1536 * (1536 + 2 * 256) + 1536 * 1536 + 3 * 1536 * 8960  # queries, keys, values; output; MLP
    assert layer_parameters(shape) == 28 * layer
    work = floors.shared_prompt(10, [2, 3])
    assert (work.tokens, work.predicted, work.pairs) == (15, 5, 55 + 3 + 6 + 10 * 5)
    assert floors.separate_documents([12, 13], 5).pairs == 78 + 91
    expected = 6 * (28 * layer * 15 + 151936 * 1536 * 5) + 12 * 28 * 12 * 128 * work.pairs
    assert floors.training_flops(shape, work) == expected
    assert floors.cache_bytes_per_token(shape) == 28_672
    fast = Ceilings(bf16_flops=1e30, fp8_flops=None, copy_bytes=1e12, to_host_bytes=1e12)
    one = floors.GenerationWork(num_prompts=1, group_size=4, prompt=100, response=10, in_flight=4)
    per_step = weight_bytes(shape) + (100 + 4 * 5.5) * 28_672
    assert floors.generation_seconds(shape, one, fast) == pytest.approx(10 * per_step / 1e12)
    assert floors.sync_seconds(shape, fast) == 2 * weight_bytes(shape) / 1e12


def test_the_cheapest_part_runs_to_its_end_and_prints_the_table(tmp_path: Path) -> None:
    command = ["bench/gpu/run.sh", "--tiny", "--only", "ceilings", "--results", str(tmp_path)]
    done = subprocess.run(
        command, cwd=run.ROOT, env=os.environ | {"PYTHON": sys.executable}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()
    assert any("bf16 product" in line and "TFLOP/s" in line for line in last)
    assert any("throughput" in line and "not run" in line for line in last)
    content = read_results(tmp_path / "ceilings_tiny.json")
    assert content is not None and content["whole"] and content["tiny"]
