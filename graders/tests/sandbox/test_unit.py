"""The sandbox is self-contained: standard library only, one public module, and bubblewrap first where it works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from brorl_graders import sandbox as package
from brorl_graders.sandbox import Sandbox, SandboxError, SandboxLimits, SandboxProgram
from brorl_graders.sandbox.confine import may_use_bubblewrap

from graders.tests.support.places import CODE_PATH

FOLDER = Path(package.__file__).parent
NOBODY = 65534
USES_BUBBLEWRAP = """
from brorl_graders.sandbox import Sandbox, SandboxLimits, SandboxProgram
with Sandbox(SandboxLimits(seconds=60, scratch_mib=2, file_mib=2)) as sandbox:
    assert sandbox.layers.gaps() == [], sandbox.layers.gaps()
    print(str(sandbox.layers).split(",")[0])
    leaves = "import os, time\\nopen('left', 'w').close()\\nif os.fork() == 0: time.sleep(600)"
    print(sandbox.run(SandboxProgram(leaves)).ending)
    print(sandbox.run(SandboxProgram("import os\\nprint(os.listdir(), os.path.exists('/etc/passwd'))")).printed, end="")
with Sandbox(SandboxLimits(seconds=60), without=("bubblewrap",)) as sandbox:
    print("bubblewrap" in str(sandbox.layers))
"""


def test_it_imports_nothing_but_the_standard_library() -> None:
    check = (
        f"import sys; sys.path.insert(0, {CODE_PATH!r}); import brorl_graders.sandbox.fork_server; "
        "print(*(name for name in sys.modules if 'brorl' in name))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", check], capture_output=True, text=True, check=True)
    others = [name for name in done.stdout.split() if not name.startswith("brorl_graders.sandbox")]
    assert others == ["brorl_graders"]  # which is empty


def test_the_example_of_the_readme_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    environment = {**os.environ, "PYTHONPATH": CODE_PATH}
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, env=environment)
    assert done.returncode == 0


def test_a_program_finds_the_libraries_that_are_installed_beside_the_graders() -> None:
    with Sandbox(SandboxLimits(seconds=30)) as sandbox:
        assert sandbox.run(SandboxProgram("import numpy\nprint(numpy.arange(3))")).printed == "[0 1 2]\n"


def test_bubblewrap_is_the_first_choice_of_an_ordinary_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bwrap").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert may_use_bubblewrap(without=("own_uid",))
    assert not may_use_bubblewrap(without=("bubblewrap",))
    assert not may_use_bubblewrap(without=("pid",))
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert not may_use_bubblewrap(without=())


def test_bubblewrap_that_does_not_work_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(f"{Sandbox.__module__}.may_use_bubblewrap", lambda without: True)
    with Sandbox(SandboxLimits(seconds=30)) as sandbox:
        assert sandbox.run(SandboxProgram("print(1)")).printed == "1\n"
        assert not sandbox.layers.bubblewrap
    assert "bubblewrap does not work on this machine" in caplog.text


def test_a_program_in_bubblewrap_is_held() -> None:
    user = NOBODY if os.getuid() == 0 else None
    options = {"capture_output": True, "text": True, "user": user, "env": {**os.environ, "PYTHONPATH": CODE_PATH}}
    for command in (["bwrap", "--ro-bind", "/", "/", "--unshare-all", "true"], [sys.executable, "-c", ""]):
        try:
            subprocess.run(command, check=True, **options)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"an ordinary user cannot run {command[0]} here: {error}")
    done = subprocess.run([sys.executable, "-c", USES_BUBBLEWRAP], **options)
    assert done.stdout.splitlines() == ["sandbox: bubblewrap", "finished", "[] False", "False"], done.stderr


def test_a_sandbox_that_does_not_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brorl_graders.sandbox.sandbox.FORK_SERVER", "no_such_module")
    with pytest.raises(SandboxError, match="did not start .exit code 1"):
        Sandbox()
