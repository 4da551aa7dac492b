"""Settings that stand in for other processors: which mean something here, and what is counted of their tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.test_numbers import counted, nearest
from tests.support.processors import SETTINGS, Processor, environment_of

BY_NAME = {setting.name: setting for setting in SETTINGS}
AMD = Processor("AuthenticAMD", frozenset({"avx2", "fma"}))
XEON = Processor("GenuineIntel", frozenset({"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"}))


def test_a_setting_is_left_out_with_the_first_thing_that_the_processor_lacks() -> None:
    assert AMD.lacks(BY_NAME["avx2"]) == ""
    assert AMD.lacks(BY_NAME["avx512"]) == "this processor has no avx512f"
    assert XEON.lacks(BY_NAME["avx512-bf16"]) == "this processor has no avx512_bf16"
    assert XEON.lacks(BY_NAME["amx"]) == "this processor has no amx_bf16"


def test_intels_code_is_preloaded_on_processors_that_are_not_intels() -> None:
    assert XEON.lacks(BY_NAME["intel"]) == "this processor is Intel's own"
    assert AMD.lacks(BY_NAME["intel"]) in ("", "there is no C compiler")


def test_a_setting_is_added_to_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert environment_of(BY_NAME["own-two-threads"], tmp_path)["OMP_NUM_THREADS"] == "2"
    assert environment_of(BY_NAME["avx2"], tmp_path)["ATEN_CPU_CAPABILITY"] == "avx2"
    assert "LD_PRELOAD" not in environment_of(BY_NAME["avx2"], tmp_path)


def test_a_test_that_failed_is_named_and_one_that_was_skipped_is_not_counted(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase name="good"/><testcase name="left out"><skipped/></testcase>'
        '<testcase name="bad"><failure/></testcase><testcase name="ugly"><error/></testcase></testsuite></testsuites>'
    )
    assert counted(report) == (1, ["bad", "ugly"])
    assert counted(tmp_path / "none") == (0, [])


def test_assertions_near_their_bound_are_listed(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.write_text(
        '{"test": "a", "place": "one", "observed": 2.0, "bound": 5.0}\n'
        '{"test": "b", "place": "two", "observed": 1.0, "bound": 5.0}\n'
    )
    assert nearest(notes, 3.0) == ["2.0e+00 of 5.0e+00 at one in a"]
