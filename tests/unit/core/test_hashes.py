"""The lists of requirements: every package has its version and its sums, and the installer has pip check them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT

pytestmark = pytest.mark.slow

REQUIREMENTS = ROOT / "requirements"
INSTALLED = ("cpu.txt", "cpu-torch.txt", "cpu-cuda.txt", "gpu.txt", "gpu-source.txt", "real_model.txt")
PIN = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+ \\")
SUM = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")

# A python that keeps what it is called with. Its index answers $ANSWER when torch without CUDA is asked for.
PYTHON = """#!/bin/sh
[ "$1" = -m ] && echo "$@" >> "$CALLS"
case "$*" in *cpu-torch.txt) [ -z "$ANSWER" ] || { echo "ERROR: $ANSWER" >&2; exit 1; } ;; esac
exit 0
"""
BEFORE_THE_LIST = ["setuptools.txt", "cpu-torch.txt"]


def entries(name: str) -> dict[str, list[str]]:
    """The lines of a list behind each package's first. Every line must be of one of both forms, or a comment."""
    found: dict[str, list[str]] = {}
    sums: list[str] = []
    for line in (REQUIREMENTS / name).read_text().splitlines():
        if PIN.fullmatch(line):
            sums = found[line.removesuffix(" \\")] = []
        elif not line.startswith("#"):
            assert SUM.fullmatch(line), line
            sums.append(line)
    return found


@pytest.mark.parametrize("name", INSTALLED)
def test_every_package_of_a_list_has_a_version_and_sums(name: str) -> None:
    packages = entries(name)
    assert packages
    for package, sums in packages.items():
        assert sums, package
        goes_on = [line.endswith("\\") for line in sums]
        assert goes_on == [True] * (len(sums) - 1) + [False], package


def test_both_lists_of_torch_have_one_version() -> None:
    [torch] = entries("cpu-torch.txt")
    assert torch.removesuffix("+cpu") in entries("cpu.txt")


def install(folder: Path, answer: str) -> tuple[int, list[str]]:
    """Exit code of the installer with the python above, and the calls of pip."""
    python = folder / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    calls = folder / "calls"
    environment = {**os.environ, "VENV": str(folder / "venv"), "CALLS": str(calls), "ANSWER": answer}
    script = ROOT / "scripts" / "install.sh"
    done = subprocess.run([script, "cpu"], env=environment, check=False, capture_output=True)
    return done.returncode, calls.read_text().splitlines()


@pytest.mark.parametrize(
    ("answer", "behind"),
    [("", ["cpu.txt"]), ("No matching distribution found for torch==2.13.0+cpu", ["cpu.txt", "cpu-cuda.txt"])],
    ids=["without_cuda", "with_cuda"],
)
def test_the_installer_has_pip_check_the_sums_of_all_but_the_project_itself(
    tmp_path: Path, answer: str, behind: list[str]
) -> None:
    code, calls = install(tmp_path, answer)
    assert code == 0
    *of_lists, project, compilation = calls
    assert project.endswith("--editable .")
    assert compilation.startswith("-m compileall ")
    lists = []
    for call in of_lists:
        assert " --no-deps --no-compile --require-hashes --no-build-isolation --requirement " in call
        lists.append(Path(call.rpartition(" ")[2]).name)
    assert lists == BEFORE_THE_LIST + behind


def test_a_build_of_torch_with_another_sum_ends_the_installation(tmp_path: Path) -> None:
    code, calls = install(tmp_path, "THESE PACKAGES DO NOT MATCH THE HASHES")
    assert code == 1
    assert calls[-1].endswith("cpu-torch.txt")
