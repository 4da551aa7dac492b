"""The public interface of the graders: every name is there, and listing them costs nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import brorl_graders

from graders.tests.support.places import CODE_PATH


def test_every_public_name_can_be_imported() -> None:
    for name in brorl_graders.__all__:
        assert getattr(brorl_graders, name) is not None
    assert set(brorl_graders.__all__) <= set(dir(brorl_graders))
    assert set(brorl_graders.__all__) == set(brorl_graders._MODULE_OF)
    for name in brorl_graders._MODULE_FOR_TRAINING:
        assert getattr(brorl_graders, name) is not None and name not in brorl_graders.__all__


def test_what_a_pool_takes_is_public() -> None:
    taken = ("Deadlines", "ServiceLimits", "Processes", "Verdicts", "Names", "Endpoint", "use_names")
    assert set(taken) <= set(brorl_graders.__all__)


def test_importing_the_graders_imports_none_of_their_modules() -> None:
    code = "import sys, brorl_graders; print([name for name in sys.modules if name.startswith('brorl_graders.')])"
    environment = {**os.environ, "PYTHONPATH": CODE_PATH}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_version_is_that_of_the_package_whose_types_are_shown_and_whose_command_grades() -> None:
    package = Path(brorl_graders.__file__).parent
    declared = Path(__file__).parents[1] / "pyproject.toml"
    project = tomllib.loads(declared.read_text(encoding="utf-8"))
    assert brorl_graders.__version__ == project["project"]["version"]
    assert (package / "py.typed").exists()
    assert project["project"]["scripts"] == {"brorl-grade": "brorl_graders.__main__:main"}
