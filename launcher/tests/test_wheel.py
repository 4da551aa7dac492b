"""The two wheels: four names of ours among the installed packages, and commands that work without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from nemo_brorl.__main__ import COMMANDS
from tests.support.source_tree import ROOT

pytestmark = pytest.mark.slow

PARTS = ("nemo_brorl", "launcher", "lab", "graders", "conf", "models", "requirements")
FILES = ("pyproject.toml", "README.md", "LICENSE")
BUILD = "import setuptools.build_meta, sys; setuptools.build_meta.build_wheel(sys.argv[1])"


def run(*command: str | Path, folder: Path) -> str:
    """Standard output of a command that must succeed, in a folder from which no checkout is seen."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "BRORL_"))}
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def brorl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program `brorl` of an environment that has the wheel, and this environment's libraries behind it."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in PARTS:
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, source)
    for distribution in (source, source / "graders"):
        run(sys.executable, "-P", "-c", BUILD, folder, folder=distribution)
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    packages = next(environment.glob("lib/python3*/site-packages"))
    libraries = Path(pytest.__file__).parents[1]
    (packages / "libraries.pth").write_text(
        f"{libraries}\n"
    )  # a .pth file of that folder, so an editable install, is not read
    python = environment / "bin" / "python"
    wheels = sorted(folder.glob("*.whl"))
    assert [wheel.name.split("-")[0] for wheel in wheels] == ["brorl_graders", "nemo_brorl"]
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--ignore-installed"]
    run(*install, *wheels, folder=folder)
    return environment / "bin" / "brorl"


def requirements_of(line: str) -> set[str]:
    """All distributions that a requirement needs, itself included, with the extras that it names."""
    found: set[tuple[str, str]] = set()
    waiting = [Requirement(line)]
    while waiting:
        wanted = waiting.pop()
        for extra in {"", *wanted.extras}:
            if (wanted.name, extra) in found:
                continue
            found.add((wanted.name, extra))
            needed = map(Requirement, metadata.requires(wanted.name) or [])
            waiting += [one for one in needed if one.marker is None or one.marker.evaluate({"extra": extra})]
    return {name for name, _ in found}


@pytest.fixture(scope="module")
def login_node(brorl: Path) -> Path:
    """The program `brorl` of the same environment, with the libraries alone that pip installs with the wheel."""
    environment = brorl.parents[1]
    packages = next(environment.glob("lib/python3*/site-packages"))
    needed = packages.parent / "needed"
    needed.mkdir()
    ours = {"nemo_brorl", "brorl-graders"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for name in set().union(*map(requirements_of, project)) - ours:
        for file in metadata.files(name) or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (needed / top).exists():
                (needed / top).symlink_to(Path(str(metadata.distribution(name).locate_file(top))))
    alone = environment.with_name("alone")
    shutil.copytree(environment, alone, symlinks=True)
    (next(alone.glob("lib/python3*/site-packages")) / "libraries.pth").write_text(f"{needed}\n")
    program = alone / "bin" / "brorl"
    program.write_text(program.read_text().replace(str(environment), str(alone)))
    return program


def test_every_command_answers_help_on_a_login_node(login_node: Path) -> None:
    for command in COMMANDS:
        assert "usage" in run(login_node, command, "--help", folder=login_node.parent).lower()


def test_a_command_that_lacks_a_library_says_how_to_install_it(login_node: Path, tmp_path: Path) -> None:
    for words, library, advice in (
        (("train", "--config-name", "sums_cpu"), "", "run scripts/install.sh cpu"),
        (("simulate", "--steps", "1"), "matplotlib", "pip install 'nemo_brorl[figures]'"),
    ):
        done = subprocess.run([login_node, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stderr
        assert f"`brorl {words[0]}` needs {library}" in done.stderr and advice in done.stderr
        assert "Traceback" not in done.stderr


def test_the_first_recipe_finds_its_base_model_beside_the_wheel(brorl: Path, tmp_path: Path) -> None:
    look = "from nemo_brorl.core.model_folder import local_model; print(local_model('models/sums'))"
    folder = Path(run(brorl.parent / "python", "-c", look, folder=tmp_path).strip())
    assert folder == brorl.parents[1] / "share" / "nemo_brorl" / "models" / "sums"
    assert (folder / "model.safetensors").is_file()


def test_four_names_of_ours_are_installed(brorl: Path) -> None:
    packages = next(brorl.parents[1].glob("lib/python3*/site-packages"))
    names = {path.name for path in packages.iterdir() if not path.name.endswith((".dist-info", ".pth"))}
    assert names == {"nemo_brorl", "brorl_launcher", "brorl_lab", "brorl_graders"}


def test_every_command_answers_help(brorl: Path) -> None:
    for command in COMMANDS:
        assert "usage" in run(brorl, command, "--help", folder=brorl.parent).lower()


def test_the_planner_plans_a_shipped_recipe(brorl: Path) -> None:
    said = run(brorl, "plan", "--config-name", "brorl_64gpu", "--propose", "0", folder=brorl.parent)
    assert "8 × 8 h100" in said


def test_a_job_is_rendered_with_a_copy_of_the_installed_package(brorl: Path, tmp_path: Path) -> None:
    job = Path(run(brorl, "render", "--config-name", "brorl_64gpu", "--run", tmp_path / "run", folder=tmp_path).strip())
    folder = job.parent / "code" / "launcher" / "brorl_launcher" / "job"
    names = {path.name for path in folder.glob("*.sh")}
    assert names == {"job.sh", "environment.sh", "job_events.sh", "job_steps.sh", "job_requeue.sh"}
    assert 'source "$BRORL_ROOT/launcher/brorl_launcher/job/job.sh"' in job.read_text()
    code = job.parent / "code"
    assert (code / "conf" / "brorl_64gpu.yaml").is_file()
    look = "import brorl_launcher.slurm as module; print(module.__file__)"
    program = f"import sys; sys.path[:0] = [{str(code)!r}, {str(code / 'launcher')!r}]; {look}"
    assert (
        run(brorl.parent / "python", "-c", program, folder=tmp_path).strip()
        == f"{code}/launcher/brorl_launcher/slurm.py"
    )


def test_the_doctor_knows_the_lists_of_tested_packages(brorl: Path) -> None:
    assert "usage: brorl doctor" in run(brorl, "doctor", "--help", folder=brorl.parent)
    look = "from brorl_launcher.doctor.versions import find_list; print(find_list('cpu'))"
    path = Path(run(brorl.parent / "python", "-c", look, folder=brorl.parent).strip())
    assert path == brorl.parents[1] / "share" / "nemo_brorl" / "requirements" / "cpu.txt"
