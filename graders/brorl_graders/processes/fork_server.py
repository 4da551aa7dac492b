"""Fork server of verifier children: it imports a verifier's libraries once, so a new child starts in milliseconds.

`ForkServer` is the owner's end, and `main` runs in the process `python -m brorl_graders.processes.fork_server FD`. That
process runs no verifier itself, so no response can hang it. Over the socket FD it sends READY and then serves one
request at a time:

- `("load", (verifier, settings))` → None, or why it cannot be loaded;
- `("call", (import path, argument))` → (result of that function, None), or (None, error);
- `("fork", (is closed, import path))`, followed by a file descriptor → process id of a new child, which serves that
  descriptor with that function, isolated when `is closed`;
- `("gaps", None)` → what the isolation does not prevent;
- `("end", process id)` → None, after the child, its process group and its other descendants have exited.

It exits with its children when its owner exits, also after kill -9. Python's `multiprocessing.forkserver` imports a
fixed list only, and its children hold the pipe open by which it notices that the owner has exited. A child that hangs
in C code would survive both.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Collection
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

from brorl_graders.base.components import import_function
from brorl_graders.base.errors import BroRLError, ConfigError, ResourceError
from brorl_graders.base.extras import to_install
from brorl_graders.base.names import allowed, child_environment
from brorl_graders.base.private_folder import scratch_home
from brorl_graders.processes import child
from brorl_graders.processes.child import VERIFIER_ERRORS, die_with_parent, run_child
from brorl_graders.sandbox import linux
from brorl_graders.sandbox.cleanup import find_children
from brorl_graders.verifiers.registry import Template, prepare

READY = "ready"
SCORE = "brorl_graders.processes.child:serve"  # default function that a child runs
ANSWER_LIMIT_S = 120.0  # time for one request, which may import large libraries
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class ForkServer:
    """The owner's end of one fork-server process, which is started when it is first needed. Not thread-safe.

    Linux kills the process when the thread that started it ends.
    """

    def __init__(self) -> None:
        # One thread each, since a process with threads cannot be forked.
        self._environment = child_environment(**ONE_THREAD)
        if "HOME" not in allowed().variables:
            self._environment["HOME"] = str(scratch_home())
        self.loaded: set[Template] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Connection | None = None

    def load(self, template: Template) -> BroRLError | None:
        """Import a verifier and its libraries in the fork-server process, and return why this failed, or None.

        Raises ResourceError when the process has exited or does not start.
        """
        message = self._request("load", tuple(template))
        if message is not None:
            return ConfigError(message)
        self.loaded.add(template)
        return None

    def has_library_of(self, verifier: str) -> bool:
        """Return whether a verifier's library is loaded in the fork-server process, with any settings."""
        return any(template.verifier == verifier for template in self.loaded)

    def call_function(self, function: str, argument: Any) -> Any:
        """Call the function at an import path in the fork-server process, and return its result.

        Raises ConfigError when the function raises a BroRLError, and ResourceError when the process has exited.
        """
        value, message = self._request("call", (function, argument))
        if message is not None:
            raise ConfigError(message)
        return value

    def fork(self, descriptor: int, is_closed: bool, serve: str = SCORE) -> int:
        """Fork a child process that serves requests on the socket `descriptor`, and return its process id.

        `serve` is the import path of the function that serves them. With `is_closed` the child is isolated. Raises
        ResourceError when the fork-server process has exited or does not start.
        """
        return int(self._request("fork", (is_closed, serve), descriptor))

    def gaps(self) -> list[str]:
        """Return what an isolated verifier process could still do on this machine, one text each.

        Raises ResourceError when the fork-server process has exited.
        """
        return list(self._request("gaps", None))

    def end(self, process: int) -> None:
        """Kill a child process with its process group, and wait until it has exited.

        Raises ResourceError when the fork-server process has exited.
        """
        self._request("end", process)

    def close(self) -> None:
        """Kill the fork-server process and with it all its children."""
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
        if (given := allowed().given) is not None:
            self.call_function("brorl_graders.given:keep_reward", given)

    def _receive_reply(self, control: Connection) -> Any:
        if not control.poll(ANSWER_LIMIT_S):
            raise ResourceError(
                f"the verifier process did not answer within {ANSWER_LIMIT_S:.0f} s; is the machine out of memory?"
            )
        return control.recv()

    def _describe_exit(self) -> str:
        """Wait for the fork-server process, and say with which code it exited."""
        assert self._process is not None, "asked about a process that was started"
        return f"exit code {self._process.wait()}; see the log"


def main(arguments: list[str]) -> None:
    """Run the fork server: serve requests of the process that started it, until that process closes the socket."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    control = Connection(int(arguments[0]))
    isolation = child.measure_isolation()
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)  # processes that left a child's group become children of this process
    children: dict[int, bool] = {}  # by process id: whether it may have started processes
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
            process = _fork(control, isolation if is_closed else None, serve)
            children[process] = not (is_closed and isolation.can_filter)
            control.send(process)
        elif request == "gaps":
            control.send(isolation.gaps())
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
        reason = f"{type(error).__name__}: {error}{to_install(error)}"
        return f"verifier {template.verifier!r} cannot be loaded: {reason}"
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
    """Freeze all loaded objects for the garbage collector, so that children do not copy their memory pages."""
    gc.collect()
    gc.freeze()


def _fork(control: Connection, isolation: child.KernelIsolation | None, serve: str) -> int:
    descriptor = recv_handle(control)
    os.set_inheritable(descriptor, False)  # else programs of a verifier keep the socket open
    server = os.getpid()
    process = os.fork()
    if process:
        os.close(descriptor)
        return process
    status = 1
    try:
        control.close()
        run_child(socket.socket(fileno=descriptor), server, isolation, import_function("function", serve))
        status = 0
    except SystemExit:  # the child has told why it ends
        status = 1
    except BaseException:  # noqa: BLE001 nothing else catches it
        traceback.print_exc()
    finally:  # a child must never continue as a second fork server
        os._exit(status)


def _kill(process: int) -> None:
    try:
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # it had exited before, and its id may belong to another process
        return
    for kill in (os.killpg, os.kill):  # a new child has no process group yet
        try:
            kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
    os.waitpid(process, 0)


def _kill_strays(children: Collection[int]) -> None:
    """Kill the orphans of children that have ended: processes that had left their process group."""
    processes = os.open("/proc", os.O_RDONLY | os.O_CLOEXEC)
    try:
        while strays := set(find_children(processes)).difference(children):
            for process in strays:
                _kill(process)  # its children become children of this process
    finally:
        os.close(processes)


if __name__ == "__main__":
    main(sys.argv[1:])
