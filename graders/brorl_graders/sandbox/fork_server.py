"""The process inside: it isolates itself and then forks a program process for each run.

`python -m brorl_graders.sandbox.fork_server FD SETTINGS` serves the `Sandbox` at the other end of the socket FD. It
first sends the layers that hold. A request has the seconds of a run and its files: the program, the pipes for its
prints and reports, and those by which program and judge talk. The server passes the files on to a fork of itself and
never reads them. So neither a program nor its output is ever in the memory that the next program gets a copy of.

When the program has ended, or the owner sends STOP, the server kills what is left of the run and clears the scratch
folder. Only then it answers with the wait status. It is process 1 of its pid namespace, which no signal from inside can
stop, and when it exits the kernel kills all processes there. It exits when the other end of the socket is closed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from dataclasses import asdict, replace
from typing import Any

from brorl_graders.sandbox import cleanup, confine, linux, program_process, seccomp
from brorl_graders.sandbox.limits import MAX_MESSAGE, MIB, NAMESPACES, STOP, Layers
from brorl_graders.sandbox.program_process import Confinement

COUNT_PERIOD_S = 0.02  # seconds between two counts of files
MAX_FILES = 64  # file descriptors in one request, at most
# A score of at most 1000. When memory runs out, the kernel kills sandboxes before other processes.
OUT_OF_MEMORY_SCORE = "800"


def main(arguments: list[str]) -> None:
    """Isolate the sandbox's fork server, report the isolation layers to the sandbox's owner, and serve its requests."""
    owner = socket.socket(fileno=int(arguments[0]))
    settings = json.loads(arguments[1])
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    _offer_to_out_of_memory_killer()
    for module in settings["preload"]:
        importlib.import_module(module)
    for module in settings["optional"]:
        with contextlib.suppress(Exception):  # the program that needs it gets the ImportError
            importlib.import_module(module)
    sys.path[:] = [path for path in sys.path if path and path != settings["source"]]
    processes = -1
    if os.path.isdir("/proc"):  # there is no /proc inside bubblewrap
        processes = os.open("/proc", os.O_RDONLY | os.O_CLOEXEC)
    if settings["bubblewrap"]:
        is_first = os.getpid() == 1
        spaces: dict[str, Any] = dict.fromkeys(NAMESPACES, True)
        spaces["pid"] = is_first
        layers = Layers(**spaces, bubblewrap=True)
        user = os.getuid()
    else:
        layers, user = confine.enter_namespaces(settings)
        if layers.pid:
            _become_process_1(owner)
    confinement = _confinement(layers, user, settings)
    _harden_process()
    owner.send(json.dumps(asdict(confinement.layers)).encode())
    serve(owner, confinement, processes)


def serve(owner: socket.socket, confinement: Confinement, processes: int) -> None:
    """Run programs for the owner of the sandbox until the owner closes its end of the socket."""
    gc.collect()
    gc.freeze()
    while True:
        try:
            request, files, _, _ = socket.recv_fds(owner, MAX_MESSAGE, MAX_FILES)
        except ConnectionResetError:  # the owner has left without reading the last answer
            return
        if not request:
            return
        if request == STOP:  # the run had ended by itself
            continue
        status = run(float(request), files, owner, confinement, processes)
        try:
            owner.send(str(status).encode())
        except BrokenPipeError:
            return


def run(
    seconds: float,
    files: list[int],
    owner: socket.socket,
    confinement: Confinement,
    processes: int,
) -> int:
    """Run one sandboxed program to its end, clean up after it, and return its wait status."""
    pid = os.fork()
    if pid == 0:
        program_process.run_program(files, seconds, confinement)
    for file in files:
        os.close(file)
    _wait_for_end(pid, owner, confinement)
    status = cleanup.kill_run(pid, confinement, processes)
    if not confinement.has_own_scratch:
        cleanup.run_in_copy(lambda: cleanup.empty_folder(confinement.scratch))
    return status


def _wait_for_end(pid: int, owner: socket.socket, confinement: Confinement) -> None:
    """Wait until a sandboxed program has ended or must end.

    It must end when the sandbox's owner says so or has exited. Where no mount limits the program's files, it must also
    end when they are too large together. Files are counted while the program runs. A program can make a count slow, so
    nothing waits for one.
    """
    process = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(process, select.POLLIN)
    poll.register(owner, select.POLLIN)
    count = None if confinement.has_own_scratch else _Count(confinement)
    while True:
        ready = dict(poll.poll(None if count is None else COUNT_PERIOD_S * 1000))
        if owner.fileno() in ready:
            owner.recv(MAX_MESSAGE)
        if ready or (count is not None and count.is_above_limit()):
            break
    if count is not None:
        count.close()
    os.close(process)


class _Count:
    """Repeated counts of the bytes in a program's scratch folder, each in a process of its own."""

    def __init__(self, confinement: Confinement) -> None:
        self._scratch = confinement.scratch
        self._limit = confinement.limits["scratch_mib"] * MIB
        self._begin()

    def is_above_limit(self) -> bool:
        """Return whether the last finished count of bytes in the scratch folder is above the limit.

        Then starts the next count. While a count is not finished, the answer is no.
        """
        poll = select.poll()
        poll.register(self._file, select.POLLIN)
        if not poll.poll(0):
            return False
        os.close(self._file)
        is_within = cleanup.wait_for_copy(self._copy)
        self._begin()
        return not is_within

    def close(self) -> None:
        """End the running count of the bytes in the scratch folder."""
        os.close(self._file)
        os.kill(self._copy, signal.SIGKILL)
        os.waitpid(self._copy, 0)

    def _begin(self) -> None:
        self._copy = cleanup.start_copy(lambda: cleanup.has_room_left(self._scratch, self._limit))
        self._file = os.pidfd_open(self._copy)


def _offer_to_out_of_memory_killer() -> None:
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
            score.write(OUT_OF_MEMORY_SCORE)
    except OSError:
        return  # the host lacks it or has set a higher score


def _become_process_1(owner: socket.socket) -> None:
    """Continue as process 1 of the new pid namespace.

    The calling process stays outside and waits for it. When the caller is killed, process 1 dies with it.
    """
    first = os.fork()
    if first:
        owner.close()
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)  # set again, since entering a user namespace clears it
        _, status = os.waitpid(first, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()


def _confinement(layers: Layers, user: int, settings: dict[str, Any]) -> Confinement:
    """Return the isolation for every program of the sandbox, with the Landlock and seccomp that the kernel has."""
    without = settings["without"]
    scratch = settings["mounted_scratch"] if layers.mount else settings["scratch"]
    os.environ |= {"HOME": scratch, "TMPDIR": scratch}
    if layers.own_uid and not layers.mount:
        os.chown(scratch, user, user)
    interface = 0
    rules = None
    if not layers.mount and "landlock" not in without:
        interface = linux.landlock_version()
    if interface:
        rules = linux.landlock_ruleset(settings["readable"], [scratch, "/dev/null"], interface)
    code = None
    if "seccomp" not in without and program_process.can_filter():
        code = seccomp.build_filter(
            guard_signals=not layers.pid,
            guard_files=layers.shows_own_files,
            guard_folders=not layers.mount,
        )
    layers = replace(
        layers,
        landlock=interface,
        seccomp=code is not None,
        no_new_privs=True,
    )
    null = os.open("/dev/null", os.O_RDWR)
    return Confinement(layers, user, scratch, rules, code, settings["limits"], null)


def _harden_process() -> None:
    """Prepare the sandbox's fork server for its forks, and keep programs from inspecting or signalling it."""
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)  # without a pid namespace, orphans become children of this process
    linux.drop_bounding_set()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.umask(0o022)


if __name__ == "__main__":
    main(sys.argv[1:])
