"""The owner's side of a sandbox: it starts a fork server, sends it programs, and says how each of them ended.

The owner holds both ends of all data that crosses the sandbox. A program goes in as a file in memory, and its output
comes back by two pipes, made for this run. The fork server hands all three on to the program's process and reads none
of them.

When a sandbox starts, a trial program tries what programs must not do.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import site
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from brorl_graders.sandbox.cleanup import HeldFolder
from brorl_graders.sandbox.clock import Clock
from brorl_graders.sandbox.confine import NO_USERS, bubblewrap_command, may_use_bubblewrap, readable_paths, scratch_path
from brorl_graders.sandbox.limits import (
    FAILED,
    FINISHED,
    KILLED,
    LOST,
    MAX_MESSAGE,
    MIB,
    STOP,
    TOO_MUCH_OUTPUT,
    Layers,
    OutputPipe,
    SandboxLimits,
    TimeLimits,
    watch_output,
)

TRIAL_PROGRAM = Path(__file__).with_name("trial_program.py")
TRIAL_LIMIT_S = 30.0

log = logging.getLogger(__name__)

_FOLDER = str(Path(__file__).resolve().parents[2])
# The folder of this package, on the import path of the fork server and not of programs. It is empty for an installed
# package, whose folder also holds the programs' libraries.
SOURCE = "" if _FOLDER in map(os.path.realpath, site.getsitepackages()) else _FOLDER
PACKAGE = str(Path(__file__).resolve().parents[1])
FORK_SERVER = "brorl_graders.sandbox.fork_server"
START_LIMIT_S = 60.0
GRACE_S = 15.0  # seconds to end a run, after which the fork server counts as lost
# Modules that the fork server imports, so that programs import them in no time.
PRELOADED_MODULES = """
bisect cmath collections copy dataclasses datetime decimal fractions functools heapq itertools json math operator queue
random re statistics string struct textwrap threading time typing
"""
# Environment variables of the fork server and the programs. None comes from the owner's environment.
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONPATH": SOURCE,
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def find_gaps(run: Callable[[str, str], str], processes: int) -> tuple[str, ...]:
    """Run a trial program in the sandbox, and return which forbidden things it could do, as names in `limits.GAPS`.

    `run` gets a program's source and standard input, and returns what the program prints. `processes` is the number of
    processes that a program may have. Raises ValueError when the trial program prints no result.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="brorl-trial-"))
        os.chmod(folder, 0o777)
        file = os.path.join(folder, "file")
        Path(file).touch()
        os.chmod(file, 0o666)
        victim = stack.enter_context(subprocess.Popen(["sleep", "60"]))
        stack.callback(victim.kill)
        abstract = f"\0brorl-{secrets.token_hex(8)}"
        stack.enter_context(_listener(socket.AF_UNIX, abstract))
        listener = stack.enter_context(_listener(socket.AF_INET, ("127.0.0.1", 0)))
        targets = {
            "file": file,
            "process": victim.pid,
            "processes": processes,
            "port": listener.getsockname()[1],
            "socket": abstract,
        }
        source = TRIAL_PROGRAM.read_text(encoding="utf-8")
        gaps = set(json.loads(run(source, json.dumps(targets))))
        if victim.poll() is not None:
            gaps.add("signals")
        return tuple(sorted(gaps))


def _listener(family: int, address: str | tuple[str, int]) -> socket.socket:
    listener = socket.socket(family)
    listener.bind(address)
    listener.listen()
    return listener


class SandboxError(RuntimeError):
    """An error for a machine that has no sandbox, or whose sandbox leaves a gap."""


class _UsersRefusedError(SandboxError):
    """An error for a kernel that gives a user namespace and allows no users in it."""


@dataclass(frozen=True)
class SandboxProgram:
    """A program for the sandbox, with its tests. `harness.py` describes the kinds."""

    source: str
    kind: str = "main"  # main, call, serve or judge
    setup: str = ""  # source that runs before the program
    stdin: str = ""
    name: str = ""  # name of the function to call
    tests: Sequence[Any] = ()  # argument lists of kind call, scripts of kind judge


@dataclass(frozen=True)
class SandboxResult:
    """The result of one program. The program wrote all of it, so it is untrusted."""

    ending: str  # FINISHED or another ending of limits.py
    seconds: float
    printed: str
    reports: list[list[Any]]  # entries [what, encoded value, index]


class Sandbox:
    """A fork server that runs programs in isolation, from the constructor to `close` or the end of its process.

    It is a context manager. bubblewrap makes the namespaces where it is installed and works, otherwise this package
    does.
    """

    layers: Layers  # layers that isolate programs

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        readable: Sequence[str] = (),
        preload: Sequence[str] = (),
        without: Sequence[str] = (),
        is_bare_allowed: bool = False,
        optional: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        """Start the sandbox's fork server, and try with a trial program whether the sandbox isolates programs.

        `readable` lists more folders that programs may read. `preload` lists modules that are imported for all
        programs, and `optional` modules whose import may fail. `without` lists layers (fields of `Layers`) that are
        left out, for kernels in which one is broken and for tests. `clock` measures programs, None for a new one.
        Raises SandboxError when the fork server does not start, or when a program could do what it must not, unless
        `is_bare_allowed`. The message lists these gaps.
        """
        self.limits = limits or SandboxLimits()
        self.readable = tuple(readable)
        self.preload = tuple(preload)
        self.without = tuple(without)
        self.is_bare_allowed = is_bare_allowed
        self.optional = tuple(optional)
        self.clock = clock or Clock(os.getpid())
        self.num_lost = 0
        self._start()
        log.info("%s", self.layers)
        gaps = self.layers.gaps()
        if not gaps:
            return
        message = f"programs could {'; '.join(gaps)}"
        if not is_bare_allowed:
            self.close()
            raise SandboxError(f"there is no sandbox on this machine: {message}")
        log.warning("running without a sandbox, as is allowed here: %s", message)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def with_modules(self, preload: Sequence[str], optional: Sequence[str]) -> Sandbox:
        """Start another sandbox with the settings of this one, which also imports these modules."""
        modules = [*self.preload, *preload]
        return Sandbox(
            self.limits,
            self.readable,
            modules,
            self.without,
            self.is_bare_allowed,
            optional,
            self.clock,
        )

    def run(self, program: SandboxProgram, seconds: float | None = None) -> SandboxResult:
        """Run a program within the sandbox's limits, all of it within `seconds`, and return its result.

        The time limit holds for the program's own code and again for each test. A lost fork server is replaced, and the
        result is LOST.
        """
        num_periods = 1 + len(program.tests)
        total = seconds or self.limits.seconds * num_periods
        started_at = time.monotonic()
        with self._pipes() as (printed, reported):
            try:
                self._send(program, total, [printed.their_file, reported.their_file])
                printed.close_their_end()
                reported.close_their_end()
                ending = self.follow(printed, reported, total, num_periods)
                if ending is not None:
                    self._control.send(STOP)
                status = self._receive_status()
                printed.read_rest()
                reported.read_rest()
            except (EOFError, OSError) as error:
                self._replace(error)
                return SandboxResult(LOST, total, "", [])
            except BaseException as error:
                # This program still runs, and its status must not be taken for that of the next one.
                self._replace(error)
                raise
        if ending is None and not (printed.is_within_limit and reported.is_within_limit):
            ending = TOO_MUCH_OUTPUT
        return SandboxResult(
            ending=ending or _ending_of(status),
            seconds=time.monotonic() - started_at,
            printed=printed.text.decode(errors="replace"),
            reports=parse_reports(bytes(reported.text)),
        )

    def start(self, program: SandboxProgram, seconds: float, files: Sequence[int]) -> None:
        """Start a program in the sandbox and return at once, before it has ended.

        `files` are the descriptors that the program prints to, reports to and talks to other processes by. `stop` ends
        the program. Raises OSError when the fork server is lost, after replacing it.
        """
        try:
            self._send(program, seconds, files)
        except OSError as error:
            self._replace(error)
            raise

    def _send(self, program: SandboxProgram, seconds: float, files: Sequence[int]) -> None:
        program_file = os.memfd_create("program")
        try:
            with open(program_file, "wb", closefd=False) as writer:
                writer.write(json.dumps(vars(program)).encode())
            os.lseek(program_file, 0, os.SEEK_SET)
            socket.send_fds(self._control, [str(seconds).encode()], [program_file, *files])
        finally:
            os.close(program_file)

    def follow(
        self,
        printed: OutputPipe,
        reported: OutputPipe,
        seconds: float,
        num_periods: int,
        last_report: bytes = b"",
    ) -> str | None:
        """Read a program's output until the program ends, must end, or has written the line `last_report`.

        Returns why the program must end, or None when it need not be ended.
        """
        period = min(self.limits.seconds, seconds)
        times = TimeLimits(self.clock, period, seconds, num_periods)
        return watch_output(printed, reported, self._control, times, last_report)

    def stop(self) -> None:
        """End the program that runs in the sandbox. A lost fork server is replaced."""
        try:
            self._control.send(STOP)
            self._receive_status()
        except (EOFError, OSError) as error:
            self._replace(error)

    @property
    def process_id(self) -> int:
        """Process id of the fork server, from which all processes of the sandbox descend."""
        return self._process.pid

    def close(self) -> None:
        """Kill the fork server and all processes of the sandbox, and remove its folder."""
        self._process.kill()  # the kernel then kills process 1 of the pid namespace, and with it all others
        self._process.wait()
        self._control.close()
        self._folder.remove()

    @contextmanager
    def _pipes(self) -> Iterator[tuple[OutputPipe, OutputPipe]]:
        """Yield the pipes for a sandboxed program's prints and reports, and close them afterwards."""
        printed = self.pipe()
        reported = self.pipe()
        try:
            yield printed, reported
        finally:
            printed.close()
            reported.close()

    def pipe(self) -> OutputPipe:
        """Return a new pipe for a program's output, with the sandbox's limit on the output."""
        return OutputPipe(self.limits.output_kib * 1024)

    def _replace(self, error: BaseException) -> None:
        """Start another fork server of the sandbox in place of a lost one."""
        self.num_lost += 1
        log.warning("a sandbox was lost with its program (%s); a new one takes its place", error)
        self.close()
        reached = self.layers.reached
        self._start_once(self._started_without, self.layers.bubblewrap)
        self.layers = replace(self.layers, reached=reached)

    def _receive_status(self) -> int:
        """Wait until no process of the sandboxed program is alive, and return the program's wait status.

        Raises OSError or EOFError when the fork server is lost.
        """
        self._control.settimeout(GRACE_S)
        answer = self._control.recv(MAX_MESSAGE)
        if not answer:
            raise EOFError("its end was closed")
        return int(answer)

    def _start(self) -> None:
        """Start the sandbox's fork server, in bubblewrap where that works and leaves no gap in the isolation."""
        if may_use_bubblewrap(self.without):
            try:
                self._start_once(self.without, is_wrapped=True)
            except SandboxError as error:
                log.warning("bubblewrap does not work on this machine (%s); going on without it", error)
            else:
                self._run_trial()
                if not self.layers.gaps():
                    return
                self.close()
        try:
            self._start_once(self.without)
        except _UsersRefusedError:
            self._start_once((*self.without, "user"))
        self._run_trial()

    def _run_trial(self) -> None:
        """Run a trial program in the sandbox, and store the gaps in the isolation that it finds.

        Raises SandboxError when the trial program does not finish.
        """

        def run(source: str, stdin: str) -> str:
            limits = self.limits
            self.limits = replace(limits, seconds=max(limits.seconds, TRIAL_LIMIT_S))
            try:
                return self.run(SandboxProgram(source, stdin=stdin)).printed
            finally:
                self.limits = limits

        try:
            reached = find_gaps(run, self.limits.processes)
        except (ValueError, OSError) as error:
            self.close()
            raise SandboxError(f"no program runs in the sandbox: {error}") from error
        self.layers = replace(self.layers, reached=reached)

    def _start_once(self, without: Sequence[str], is_wrapped: bool = False) -> None:
        self._started_without = without
        self._folder = HeldFolder()
        readable = readable_paths((*self.readable, PACKAGE) if is_wrapped else self.readable)
        mounted_scratch = scratch_path(readable)
        settings = {
            "folder": os.path.join(self._folder.path, "root"),
            "scratch": os.path.join(self._folder.path, "scratch"),
            "mounted_scratch": mounted_scratch,
            "readable": readable,
            "preload": [*PRELOADED_MODULES.split(), *self.preload],
            "optional": list(self.optional),
            "source": SOURCE,
            "without": list(without),
            "limits": asdict(self.limits),
            "bubblewrap": is_wrapped,
        }
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-s", "-P", "-m", FORK_SERVER, str(theirs.fileno()), json.dumps(settings)]
        if is_wrapped:
            command = bubblewrap_command(command, readable, mounted_scratch, self.limits.scratch_mib * MIB)
        with theirs:
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=ENVIRONMENT,
                cwd="/",
            )
        self.layers = self._receive_layers()
        if self.layers.mount:  # the root is mounted elsewhere, so a kill -9 of this process leaves no folder
            self._folder.remove()

    def _receive_layers(self) -> Layers:
        """Return the layers that isolate programs, as the sandbox's fork server reports at its start.

        Raises SandboxError when the fork server does not start.
        """
        self._control.settimeout(START_LIMIT_S)
        try:
            first_message = self._control.recv(MAX_MESSAGE)
        except TimeoutError as error:
            self.close()
            raise SandboxError(f"the sandbox did not start within {START_LIMIT_S:.0f} s") from error
        if first_message:
            return Layers(**json.loads(first_message))
        code = self._process.wait()
        self.close()
        kind = _UsersRefusedError if code == NO_USERS else SandboxError
        raise kind(f"the sandbox did not start (exit code {code}); see the log")


def run(
    source: str, stdin: str = "", tests: Sequence[Any] = (), function: str = "", limits: SandboxLimits | None = None
) -> SandboxResult:
    """Run one Python program in a sandbox of its own, which takes about 0.2 s to start.

    Without `tests` the program reads `stdin` and prints. `tests` are argument lists for `function`, which may be a
    method of the class `Solution`. Raises SandboxError where no sandbox can isolate the program.
    """
    with Sandbox(limits) as sandbox:
        return sandbox.run(SandboxProgram(source, "call" if tests else "main", "", stdin, function, tests))


def _ending_of(status: int) -> str:
    """Return how a program ended that the sandbox did not have to stop, from the program's wait status."""
    if os.WIFSIGNALED(status):
        return KILLED
    return FAILED if os.WEXITSTATUS(status) else FINISHED


def parse_reports(reported: bytes) -> list[list[Any]]:
    """Return the reports that a sandboxed program has written, up to the first malformed one.

    A report is `[what, value, index]` with a text and an integer around the encoded value.
    """
    reports: list[list[Any]] = []
    for line in reported.split(b"\n"):
        try:
            report = json.loads(line)
        except (ValueError, RecursionError):
            return reports
        if not isinstance(report, list) or len(report) != 3:
            return reports
        what, _, index = report
        if type(what) is not str or type(index) is not int:
            return reports
        reports.append(report)
    return reports
