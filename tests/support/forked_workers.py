"""Actors of the tests' Ray clusters are forked from processes that have imported the large libraries once: vLLM for
engines, verifiers and stores, Megatron for policy ranks. A started one imports for ten seconds of a core.

Ray starts a worker by `setup_worker.py`. `ask_for_worker.py` stands in for it, sends what it was given to such a
process and stays until the worker ends. Only with BRORL_TESTS_FORK=1, as `make test` has it unless FORK=0 is given.
Processes of pytest-xdist share those that the one that started them has.
Ray itself starts the actors of commands with an interpreter of their own (`python -m nemo_brorl`), so those of the
campaign and of jobs on the cluster.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import psutil

from nemo_brorl.core.quick_imports import quick_imports
from tests.support.source_tree import CODE_PATH, PACKAGE, tree

KINDS = ("engines", "ranks")
SWITCH = "BRORL_TESTS_FORK"  # variable
PATIENCE = "RAY_worker_register_timeout_seconds"  # of Ray
FOLDER = "BRORL_TESTS_FORKED_WORKERS"  # variable: where the sockets lie
ASK = Path(__file__).with_name("ask_for_worker.py")
# Beside what is named by the package: what an engine and the parity gate come to when they start.
ENGINE_MODULES = (
    "vllm.v1.engine.llm_engine",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.model_executor.model_loader.reload",
    "vllm.model_executor.models.qwen2",
)
RANK_MODULES = ("transformers.models.auto.modeling_auto", "transformers.models.qwen2.modeling_qwen2")
_servers: dict[str, subprocess.Popen[bytes]] = {}


def use_forked_workers() -> str | None:
    """Where it is asked for, clusters that this process starts from now on fork their actors. Returns the folder of the
    sockets, for `enter_command`."""
    if os.environ.get(SWITCH) != "1":
        return None
    if FOLDER not in os.environ:
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="brorl_workers_")
        for kind in KINDS:
            _servers[kind] = _start_server(kind, Path(os.environ[FOLDER]))
        atexit.register(_end_servers, os.getpid())
    enter_command(os.environ[FOLDER])
    return os.environ[FOLDER]


def enter_command(folder: str | None) -> None:
    """The same for a process that was forked by a test process whose sockets lie there, if any."""
    if folder is None:
        return
    from ray._private import ray_constants

    os.environ[FOLDER] = folder
    os.environ[PATIENCE] = "600"  # the first ones wait for the imports
    ray_constants.SETUP_WORKER_FILENAME = str(ASK)


def _start_server(kind: str, folder: Path) -> subprocess.Popen[bytes]:
    """A process that ends with this one: its standard input does."""
    environment = {**os.environ, "PYTHONPATH": CODE_PATH, "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if kind == "ranks":
        # As `policy/process/rank_process.py` starts them.
        environment |= {"MALLOC_ARENA_MAX": "1", "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, "-m", __name__, kind, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)


def _end_servers(owner: int) -> None:
    if os.getpid() != owner:
        return
    for server in _servers.values():
        server.kill()
        server.wait()
    shutil.rmtree(os.environ[FOLDER], ignore_errors=True)


def with_forked(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """These processes, and the workers that those among them have asked for."""
    found = list(processes)
    for process in processes:
        note = Path(os.environ.get(FOLDER, "/nowhere")) / str(process.pid)
        if not note.exists():
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            worker = psutil.Process(int(note.read_text()))
            if worker.create_time() >= process.create_time():  # not an old note's number, given anew
                found.append(worker)
    return found


def serve(kind: str, folder: Path) -> None:
    """Import the kind's libraries and fork a worker for whoever connects, until standard input ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / kind))
        listener.listen(64)
        with warnings.catch_warnings(action="ignore"):
            _import_libraries(kind)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended workers leave no zombies
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _be_worker_to_the_end(connection, folder)
            connection.close()


def _be_worker_to_the_end(connection: socket.socket, folder: Path) -> NoReturn:
    """Whatever happens, this process does not come back to the loop of the one that it was forked from."""
    code = 1
    try:
        code = _be_worker(connection, folder)
    finally:
        os._exit(code)


def _import_libraries(kind: str) -> None:
    """All but Ray, which reads its variables while it is imported, and each worker has its own."""
    sys.modules["ray"] = None  # type: ignore[assignment]
    if kind == "engines":
        from nemo_brorl.generation.device import prepare_process

        prepare_process(on_cpu=True)
        names, left_out = ENGINE_MODULES, ["sklearn"]  # as `generation/engine_actor.py` has it
    else:
        from nemo_brorl.policy.process.device import open_device

        open_device(on_gpu=False, num_threads=1)  # before the first import of megatron
        names, left_out = (*sorted(_imported_by(PACKAGE / "policy")), *RANK_MODULES), []
    with quick_imports(*left_out):
        for name in names:
            importlib.import_module(name)
    del sys.modules["ray"]


def _imported_by(folder: Path) -> set[str]:
    """Modules of torch and Megatron that files of this folder import when they are imported."""
    names: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in tree(path).body:
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith(("megatron.", "torch.")):
                names.add(str(node.module))
    return names


def _be_worker(connection: socket.socket, folder: Path) -> int:
    """What `setup_worker.py` would have started, in this process, whose end closes the connection. Returns the exit
    code."""
    message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 2)
    asked: dict[str, Any] = json.loads(message)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    (folder / str(asked["process_id"])).write_text(str(os.getpid()))
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    for number, descriptor in enumerate(descriptors, start=1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    paths = asked["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path and path not in sys.path]
    sys.argv = asked["arguments"]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))
