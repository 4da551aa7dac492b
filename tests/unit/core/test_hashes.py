"""The lists of requirements: every package has its version and its sums, and the installer has pip check them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.source_tree import ROOT

pytestmark = pytest.mark.slow

REQUIREMENTS = ROOT / "requirements"
INSTALLED = ("cpu.txt", "cpu-torch.txt", "cpu-cuda.txt", "gpu.txt", "gpu-source.txt", "real_model.txt")
PIN = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+ \\")
SUM = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")

# A python that keeps what it is called with. It says that it is $VERSION, asks the real pip which wheels there are, and
# answers $ANSWER when the list $FAILS is installed.
PYTHON = f"""#!/bin/sh
case "$*" in
    "-c "*format*) echo "$VERSION"; exit 0 ;;
    "-m pip index "*) exec {sys.executable} "$@" ;;
esac
[ "$1" = -m ] && echo "$@" >> "$CALLS"
case "$*" in */"$FAILS") echo "ERROR: $ANSWER" >&2; exit 1 ;; esac
exit 0
"""
WHEEL_OF_THIS_PYTHON = "torch-2.13.0+cpu-py3-none-any.whl"
WHEEL_OF_ANOTHER = "torch-2.13.0+cpu-cp39-cp39-linux_x86_64.whl"


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


class Installation(NamedTuple):
    """What the installer printed, its exit code, and pip's calls."""

    code: int
    output: str
    calls: list[str]

    @property
    def lists(self) -> list[str]:
        return [Path(call.rpartition(" ")[2]).name for call in self.calls if "--requirement" in call]


def install(
    folder: Path, wheel: str = "", version: str = "3.11", fails: str = "none", answer: str = ""
) -> Installation:
    """Run the installer with the python above, where pip finds one wheel of torch, or none."""
    python = folder / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    wheels = folder / "wheels"
    wheels.mkdir()
    if wheel:
        (wheels / wheel).touch()
    calls = folder / "calls"
    pip = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    answers = {"CALLS": str(calls), "VERSION": version, "FAILS": fails, "ANSWER": answer}
    environment = {**os.environ, **pip, **answers, "VENV": str(folder / "venv")}
    script = ROOT / "scripts" / "install.sh"
    done = subprocess.run([script, "cpu"], env=environment, check=False, capture_output=True, text=True)
    return Installation(done.returncode, done.stdout + done.stderr, calls.read_text().splitlines())


WITHOUT_CUDA = ["setuptools.txt", "cpu-torch.txt", "cpu.txt"]
WITH_CUDA = ["setuptools.txt", "cpu.txt", "cpu-cuda.txt"]


def test_the_installer_has_pip_check_the_sums_of_all_but_the_project_itself(tmp_path: Path) -> None:
    done = install(tmp_path, WHEEL_OF_THIS_PYTHON)
    assert done.code == 0
    *of_lists, project, compilation = done.calls
    assert project.endswith("--editable .")
    assert compilation.startswith("-m compileall ")
    for call in of_lists:
        assert " --no-deps --no-compile --require-hashes --no-build-isolation --requirement " in call
    assert done.lists == WITHOUT_CUDA
    assert "2.6 GB" not in done.output


@pytest.mark.parametrize(
    ("wheel", "version", "reason"),
    [
        (
            "",
            "3.11",
            "no index of pip's offers torch without CUDA for Python 3.11 (PIP_EXTRA_INDEX_URL names an index)",
        ),
        (WHEEL_OF_ANOTHER, "3.12", "no index of pip's offers torch without CUDA for Python 3.12"),
        (WHEEL_OF_THIS_PYTHON, "3.13", "requirements/cpu-torch.txt has no sum of torch without CUDA for Python 3.13"),
    ],
    ids=["no_wheel", "wheel_of_another_python", "wheel_without_a_sum_in_the_list"],
)
def test_without_a_wheel_for_this_python_the_installer_says_so_in_a_line_and_takes_torch_with_cuda(
    tmp_path: Path, wheel: str, version: str, reason: str
) -> None:
    done = install(tmp_path, wheel, version, fails="cpu-torch.txt", answer="ResolutionImpossible: for help visit …")
    assert done.code == 0, done.output
    assert done.lists == WITH_CUDA
    [said] = [line for line in done.output.splitlines() if "2.6 GB more" in line]
    assert reason in said
    assert "ERROR" not in done.output


@pytest.mark.parametrize("answer", ["THESE PACKAGES DO NOT MATCH THE HASHES", "[Errno 28] No space left on device"])
def test_an_offered_wheel_that_cannot_be_installed_ends_the_installation(tmp_path: Path, answer: str) -> None:
    done = install(tmp_path, WHEEL_OF_THIS_PYTHON, fails="cpu-torch.txt", answer=answer)
    assert done.code == 1
    assert done.calls[-1].endswith("cpu-torch.txt")
    assert answer in done.output


def test_a_broken_network_is_reported_by_the_next_step(tmp_path: Path) -> None:
    done = install(
        tmp_path, fails="cpu.txt", answer="Could not install packages due to an OSError: Network is unreachable"
    )
    assert done.code == 1
    assert "Network is unreachable" in done.output
