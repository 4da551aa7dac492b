"""The process of a policy rank as Ray starts it under Nsight Systems, with a stand-in for `nsys`."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import stat
import sys
from pathlib import Path

import pytest
from ray._private.runtime_env.context import RuntimeEnvContext
from ray._private.runtime_env.nsight import NsightPlugin
from ray.core.generated.common_pb2 import Language
from ray.runtime_env import RuntimeEnv

from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.config.records import ProfileConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.policy.process.rank_process import rank_process

# Runs the program behind its options as a child and leaves a report, as nsys does.
NSYS = f"""#!{sys.executable}
import json, pathlib, subprocess, sys
arguments = sys.argv[1:]
assert arguments.pop(0) == "profile"
options = {{}}
while arguments[0].startswith("-"):
    name, equals, value = arguments.pop(0).lstrip("-").partition("=")
    options[name] = value if equals else arguments.pop(0)
program = subprocess.Popen(arguments)
report = options["o"].replace("%p", str(program.pid)) + ".nsys-rep"
pathlib.Path(report).write_text(json.dumps(options))
sys.exit(program.wait())
"""
# Stands for Ray's default_worker.py.
WORKER = """
import os, pathlib, sys
above = pathlib.Path(f"/proc/{os.getppid()}/cmdline").read_text().split(chr(0))
pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()} {sys.executable} {any(one.endswith('/nsys') for one in above)}")
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the PATH: nsys, and another python before ours."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("nsys", NSYS), ("python", "#!/bin/sh\nexit 1\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def started(tmp_path: Path, rank: int) -> list[str]:
    """What the worker of a rank says of itself: process, python, whether nsys is above it."""
    config = BroRLConfig()
    config.exp_manager.explicit_log_dir = str(tmp_path / "a run")
    config.profile = ProfileConfig(kind="nsys", ranks=[1])
    asked = RuntimeEnv(**rank_process(RankSettings.from_config(config), tmp_path, rank))
    context = RuntimeEnvContext(env_vars=asked.env_vars())
    plugin = NsightPlugin(str(tmp_path / "session" / "runtime_resources"))
    asyncio.run(plugin.create(None, asked, context))
    if asked.nsight():
        plugin.modify_context([], asked, context)
    worker, said = tmp_path / "worker.py", tmp_path / "said"
    worker.write_text(WORKER)
    process = multiprocessing.get_context("fork").Process(
        target=context.exec_worker, args=([str(worker), str(said)], Language.PYTHON)
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    return said.read_text().split()


def test_the_chosen_rank_runs_under_nsys_with_our_python_and_leaves_its_report_in_the_run_folder(
    programs: None, tmp_path: Path
) -> None:
    pid, python, is_below = started(tmp_path, rank=1)
    assert is_below == "True"
    assert python == str(Path(sys.executable).parent / "python")
    (report,) = (tmp_path / "a run" / "profiles").iterdir()
    assert report.name == f"nsys_rank_1_{pid}.nsys-rep"
    options = json.loads(report.read_text())
    assert options["capture-range"] == "cudaProfilerApi"
    assert options["capture-range-end"] == "repeat"
    assert options["t"] == "cuda,nvtx,cublas,cudnn"


def test_another_rank_does_not(programs: None, tmp_path: Path) -> None:
    _, _, is_below = started(tmp_path, rank=0)
    assert is_below == "False"
    assert not (tmp_path / "a run").exists()
