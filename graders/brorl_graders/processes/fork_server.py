"""Fork server of verifier children: imports a verifier's libraries once, so that a new child scores after milliseconds.

`ForkServer` is the owner's end; `main` is the process, `python -m brorl_graders.processes.fork_server FD`. That
process runs no verifier itself, so nothing that a response does can hang it. It serves its owner over the socket FD,
one request at a time, after it has said READY:

- `("load", (verifier, settings))` → None, or why it cannot be loaded;
- `("call", (import path, argument))` → (what that function returns, None), or (None, why it does not);
- `("fork", (is closed, import path))`, followed by a file descriptor → process id of a new child, which serves that
  descriptor by that function, behind walls or not;
- `("gaps", None)` → what those walls leave open;
- `("end", process id)` → None, once the child, its process group and what has left that group are gone.

It ends, and its children with it, when its owner goes away, also by kill -9. Python's own `multiprocessing.forkserver`
imports a fixed list only, and its children hold open the pipe by which it notices the owner's end: one that hangs in C
code would outlive both.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Collection
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

from brorl_graders.base.components import import_function
from brorl_graders.base.errors import BroRLError, ConfigError, ResourceError
from brorl_graders.base.names import allowed, child_environment
from brorl_graders.base.private_folder import scratch_home
from brorl_graders.processes import child
from brorl_graders.processes.child import VERIFIER_ERRORS, die_with_parent, run_child
from brorl_graders.sandbox import linux
from brorl_graders.sandbox.cleanup import find_children
from brorl_graders.verifiers.registry import Template, prepare

READY = "ready"
SCORE = "brorl_graders.processes.child:serve"  # what a child does unless it is asked for something else
ANSWER_LIMIT_S = 120.0  # it imports libraries, which is not the fault of a response
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class ForkServer:
    """One fork-server process at a time, started when it is first needed. Not thread-safe; Linux ends the process with
    the thread that started it."""

    def __init__(self) -> None:
        # A process with threads cannot be forked.
        self._environment = child_environment(**ONE_THREAD)
        if "HOME" not in allowed().variables:
            self._environment["HOME"] = str(scratch_home())
        self.loaded: set[Template] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Connection | None = None

    def load(self, template: Template) -> BroRLError | None:
        """Import a verifier and its libraries; why it cannot be. Raises ResourceError when the process is gone or does
        not start."""
        message = self._request("load", tuple(template))
        if message is not None:
            return ConfigError(message)
        self.loaded.add(template)
        return None

    def has_library_of(self, verifier: str) -> bool:
        """Whether a verifier's library is loaded, whatever the settings."""
        return any(template.verifier == verifier for template in self.loaded)

    def call_function(self, function: str, argument: Any) -> Any:
        """What the function at an import path returns there. Raises ConfigError when it does not, ResourceError."""
        value, message = self._request("call", (function, argument))
        if message is not None:
            raise ConfigError(message)
        return value

    def fork(self, descriptor: int, is_closed: bool, serve: str = SCORE) -> int:
        """Process id of a new child that serves the descriptor, by the function at the import path `serve`, behind
        walls if `is_closed`. Raises ResourceError."""
        return int(self._request("fork", (is_closed, serve), descriptor))

    def gaps(self) -> list[str]:
        """What a child behind walls could do all the same, on this machine. Raises ResourceError."""
        return list(self._request("gaps", None))

    def end(self, process: int) -> None:
        """Kill a child, and all in its process group, and wait until it is gone. Raises ResourceError."""
        self._request("end", process)

    def close(self) -> None:
        """Kill the process; its children go with it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._control is not None:
            self._control.close()
            self._control = None
        self.loaded.clear()

    def _request(
        self,
        request: str,
        argument: Any,
        descriptor: int | None = None,
    ) -> Any:
        if self._control is None:
            self._start()
        assert self._control is not None and self._process is not None, "it has just been started"
        try:
            self._control.send((request, argument))
            if descriptor is not None:
                send_handle(self._control, descriptor, self._process.pid)
            return self._receive_reply(self._control)
        except (EOFError, OSError) as error:
            raise ResourceError(
                f"the verifier process ended while it served {request} {argument}: {self._describe_exit()}"
            ) from error

    def _start(self) -> None:
        self._control, theirs = Pipe()
        command = [sys.executable, "-m", "brorl_graders.processes.fork_server", str(theirs.fileno())]
        import_path = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**self._environment, "PYTHONPATH": import_path},
        )
        theirs.close()
        try:
            first_message = self._receive_reply(self._control)
        except EOFError as error:
            raise ResourceError(f"the verifier process did not start: {self._describe_exit()}") from error
        assert first_message == READY, "the first word of a fork server"

    def _receive_reply(self, control: Connection) -> Any:
        if not control.poll(ANSWER_LIMIT_S):
            raise ResourceError(
                f"the verifier process did not answer within {ANSWER_LIMIT_S:.0f} s; is the machine out of memory?"
            )
        return control.recv()

    def _describe_exit(self) -> str:
        """How the process ended."""
        assert self._process is not None, "asked about a process that was started"
        return f"exit code {self._process.wait()}; see the log"


def main(arguments: list[str]) -> None:
    """Serve until the owner closes its end."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    control = Connection(int(arguments[0]))
    walls = child.measure_walls()
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)  # what leaves a child's process group comes here when the child ends
    children: dict[int, bool] = {}  # whether each may have started processes
    control.send(READY)
    while True:
        try:
            request, argument = control.recv()
        except EOFError:
            return
        if request == "load":
            control.send(_load(Template(*argument)))
        elif request == "call":
            control.send(_call_function(*argument))
        elif request == "fork":
            is_closed, serve = argument
            process = _fork(control, walls if is_closed else None, serve)
            children[process] = not (is_closed and walls.can_filter)
            control.send(process)
        elif request == "gaps":
            control.send(walls.gaps())
        else:
            _kill(argument)
            if children.pop(argument, False):
                _kill_strays(children)
            control.send(None)


def _load(template: Template) -> str | None:
    try:
        prepare(template)
    except BroRLError as error:
        return str(error)
    except VERIFIER_ERRORS as error:
        return f"verifier {template.verifier!r} cannot be loaded: {type(error).__name__}: {error}"
    _freeze_loaded()
    return None


def _call_function(function: str, argument: Any) -> tuple[Any, str | None]:
    try:
        value = import_function("function", function)(argument)
    except BroRLError as error:
        return None, str(error)
    _freeze_loaded()
    return value, None


def _freeze_loaded() -> None:
    """Let no child's garbage collector touch it, so that it stays shared memory."""
    gc.collect()
    gc.freeze()


def _fork(control: Connection, walls: child.Walls | None, serve: str) -> int:
    descriptor = recv_handle(control)
    os.set_inheritable(descriptor, False)  # a program that a verifier starts would hide the child's end from the owner
    server = os.getpid()
    process = os.fork()
    if process:
        os.close(descriptor)
        return process
    status = 1
    try:
        control.close()
        run_child(Connection(descriptor), server, walls, import_function("function", serve))
        status = 0
    finally:  # a child never goes on as a second fork server, whatever it dies of
        if status:
            traceback.print_exc()
        os._exit(status)


def _kill(process: int) -> None:
    try:
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # ended before: its number may be another process's by now
        return
    for kill in (os.killpg, os.kill):  # the group does not exist yet in a child's first moment
        try:
            kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
    os.waitpid(process, 0)


def _kill_strays(children: Collection[int]) -> None:
    """Kill what is left of children that have ended: processes that left their group, orphans now."""
    processes = os.open("/proc", os.O_RDONLY | os.O_CLOEXEC)
    try:
        while strays := set(find_children(processes)).difference(children):
            for process in strays:
                _kill(process)  # whose own children come here in turn
    finally:
        os.close(processes)


if __name__ == "__main__":
    main(sys.argv[1:])
