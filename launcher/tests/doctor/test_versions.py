"""Packages against lists, made up."""

from __future__ import annotations

import pytest
from brorl_launcher.doctor import versions
from brorl_launcher.doctor.report import FAIL, OK, WARN

LISTED = {"torch": "2.13.0", "vllm": "0.32.0", "ray": "2.60.0", "einops": "0.8.2", "ruff": "1.0"}


def test_an_absent_package_refuses_and_another_version_warns() -> None:
    installed = {"torch": "2.13.0+cpu", "ray": "2.59.0"}
    assert versions.compare_needed(["torch", "ray", "vllm"], installed, LISTED, "gpu").status == FAIL
    check = versions.compare_needed(["torch", "ray"], installed, LISTED, "gpu")
    assert (check.status, "ray 2.59.0 (2.60.0)" in check.found) == (WARN, True)
    assert versions.compare_needed(["torch"], installed, LISTED, "gpu").status == OK


def test_the_rest_of_the_list_is_counted_without_tools() -> None:
    check = versions.compare_rest({"torch": "2.13.0", "vllm": "0.32.0", "ray": "2.59.0"}, LISTED, "gpu")
    assert check.status == WARN
    assert (
        "of 4 in requirements/gpu.txt 1 have another version and 1 are absent: ray 2.59.0 (2.60.0), einops"
        in check.found
    )


@pytest.mark.parametrize(
    ("installed", "pin", "kind", "word"),
    [
        ({"torch": "2.12.0"}, "2.13.0", "gpu", "compiled for torch 2.13.0"),
        ({"torch": "2.13.0+cpu"}, "2.13.0", "gpu", "no CUDA"),
        ({"torch": "2.13.0+cpu", "torchvision": "0.28.0"}, None, "cpu", "uninstall it"),
        (
            {"torch": "2.13.0", "transformer-engine": "2.15.0", "nvidia-cublas": "13.1.1.3"},
            None,
            "gpu",
            "needs cuBLAS 13.2",
        ),
    ],
)
def test_combinations_that_do_not_load_are_known(
    installed: dict[str, str], pin: str | None, kind: str, word: str
) -> None:
    (found,) = versions.known_conflicts(installed, pin, kind)
    assert word in found


def test_the_tested_combination_has_no_conflict() -> None:
    installed = {"torch": "2.13.0", "transformer-engine": "2.11.0", "nvidia-cublas": "13.1.1.3"}
    assert list(versions.known_conflicts(installed, "2.13.0", "gpu")) == []


def test_a_module_that_does_not_load_is_named() -> None:
    assert versions.check_imports(["json"]).status == OK
    check = versions.check_imports(["json", "no_such_module"])
    assert (check.status, check.found[:40]) == (FAIL, "no_such_module does not load: ModuleNotF")
