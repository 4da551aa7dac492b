"""A run folder says which machines its digits are of."""

import json
from pathlib import Path

import pytest

from nemo_brorl.training import machine_record
from nemo_brorl.training.machine_record import MACHINES, note_machine, this_machine

CPUINFO = """processor\t: 0
model name\t: AMD EPYC 9R14
flags\t\t: fpu sse2 avx2 avx512f avx512_bf16 avx512_vnni

processor\t: 1
model name\t: another one
"""


@pytest.fixture
def on_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that describes this machine's processors; its text may be changed."""
    path = tmp_path / "cpuinfo"
    path.write_text(CPUINFO)
    monkeypatch.setattr(machine_record, "_CPUINFO", path)
    monkeypatch.setattr(machine_record, "_GPUS", tmp_path / "gpus")
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    return path


def machines(folder: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / MACHINES).read_text().splitlines()]


def test_a_machine_is_described_by_processor_instruction_sets_and_versions(
    on_processor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = tmp_path / "gpus" / "0000:01:00.0" / "information"
    gpu.parent.mkdir(parents=True)
    gpu.write_text("Model: \t\t NVIDIA H100\nIRQ:   \t\t 0\n")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    found = this_machine()
    assert found["processor"] == "AMD EPYC 9R14"
    assert found["instruction sets"] == "avx2 avx512f avx512_vnni avx512_bf16"
    assert found["gpus"] == "NVIDIA H100"
    assert found["ATEN_CPU_CAPABILITY"] == "avx2"
    assert found["torch"].startswith("2.")
    assert "ONEDNN_MAX_CPU_ISA" not in found


def test_a_run_that_goes_on_where_it_began_is_noted_once(
    on_processor: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    note_machine(tmp_path)
    note_machine(tmp_path)
    assert len(machines(tmp_path)) == 1
    assert not caplog.records


def test_a_run_that_goes_on_elsewhere_is_warned_of_with_what_is_another(
    on_processor: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    note_machine(tmp_path)
    on_processor.write_text(CPUINFO.replace("AMD EPYC 9R14", "Intel Xeon 8488C"))
    note_machine(tmp_path)
    assert [machine["processor"] for machine in machines(tmp_path)] == ["AMD EPYC 9R14", "Intel Xeon 8488C"]
    (record,) = caplog.records
    assert "processor was 'AMD EPYC 9R14', now 'Intel Xeon 8488C'" in record.getMessage()
    assert "digits will differ" in record.getMessage()


def test_a_record_that_cannot_be_read_is_kept_and_gets_a_line(on_processor: Path, tmp_path: Path) -> None:
    (tmp_path / MACHINES).write_bytes(b"\xff{\n")
    note_machine(tmp_path)
    lines = (tmp_path / MACHINES).read_text().splitlines()
    assert len(lines) == 2
    assert json.loads(lines[1]) == this_machine()


def test_a_machine_that_describes_nothing_is_no_error(on_processor: Path) -> None:
    on_processor.unlink()
    assert this_machine()["processor"]
