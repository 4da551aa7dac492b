"""The process inside: `python -m nemo_brorl.tasks.sandbox.fork_server FD SETTINGS`. It confines itself, then forks one
inmate for each job.

It serves the `Sandbox` at the other end of the socket FD. First it says which layers hold. Then for each job, a JSON
object (`harness.py` says what is in it), it answers with three messages: how the run ended, what it printed, what it
reported. Every run starts from the same warm interpreter with an empty scratch folder, and before the answer is sent
nothing of the run is alive. The warden is process 1 of its pid namespace, which no signal from inside can stop; when it
ends the kernel kills all others there. It ends when the other end of the socket does.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import sys
import time
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from typing import Any

from nemo_brorl.tasks.sandbox import cleanup, confine, landlock, linux, program_process, seccomp
from nemo_brorl.tasks.sandbox.limits import FAILED, FINISHED, KILLED, MIB, TIMED_OUT, TOO_MUCH_OUTPUT, Layers

READ_BYTES = 65536
LOOK_S = 0.02  # between two counts of files
# of 1000: when the machine runs out of memory, the kernel ends a sandbox before the training run
OUT_OF_MEMORY_SCORE = "800"


def main(arguments: list[str]) -> None:
    """Confine this process and serve."""
    connection, settings = Connection(int(arguments[0])), json.loads(arguments[1])
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    _be_expendable()
    for module in settings["preload"]:
        importlib.import_module(module)
    sys.path[:] = [path for path in sys.path if path and path != settings["source"]]
    processes = (
        os.open("/proc", os.O_RDONLY | os.O_CLOEXEC) if os.path.isdir("/proc") else -1
    )  # there, unless bubblewrap is around us
    without = settings["without"]
    if settings["bubblewrap"]:
        layers, user = (
            Layers(mount=True, pid=os.getpid() == 1, net=True, ipc=True, uts=True, user=True, bubblewrap=True),
            os.getuid(),
        )
    else:
        layers, user = confine.enter_namespaces(settings["folder"], settings["readable"], without)
    if layers.pid and not layers.bubblewrap:
        _become_first(connection)
    cell = _make_cell(layers, user, settings)
    _harden()
    connection.send_bytes(json.dumps(asdict(cell.layers)).encode())
    serve(connection, cell, processes)


def serve(connection: Connection, cell: program_process.Cell, processes: int) -> None:
    """Run jobs until the other end closes."""
    gc.collect()
    gc.freeze()
    while True:
        try:
            job = json.loads(connection.recv_bytes())
        except EOFError:
            return
        ending, printed, reported = run(job, cell, processes)
        connection.send_bytes(json.dumps(ending).encode())
        connection.send_bytes(printed)
        connection.send_bytes(reported)


def run(job: dict[str, Any], cell: program_process.Cell, processes: int) -> tuple[dict[str, Any], bytes, bytes]:
    """One inmate's life. (Ending and seconds, what it printed, what it reported)."""
    printed, their_print = os.pipe()
    reported, their_report = os.pipe()
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        program_process.live(job, their_print, their_report, cell)
    os.close(their_print)
    os.close(their_report)
    has_own_scratch = cell.layers.mount and not cell.layers.bubblewrap  # a tmpfs of its size
    watch = _Watch(pid, printed, reported, job, None if has_own_scratch else cell)
    ending = watch.until_it_ends()
    status = cleanup.end_all(pid, cell, processes)
    watch.close()
    if not has_own_scratch:
        cleanup.empty(cell.scratch)
    if ending is None:
        ending = KILLED if os.WIFSIGNALED(status) else FAILED if os.WEXITSTATUS(status) else FINISHED
    head = {"ending": ending, "seconds": time.monotonic() - started}
    return head, bytes(watch.texts[printed]), bytes(watch.texts[reported])


class _Watch:
    """Reads what one inmate writes until it ends, is late, or has written too much. `shared` is the cell whose scratch
    folder no mount limits: then its files are counted every now and then."""

    def __init__(
        self, pid: int, printed: int, reported: int, job: dict[str, Any], shared: program_process.Cell | None
    ) -> None:
        self.shared = shared
        self.texts = {printed: bytearray(), reported: bytearray()}
        self.reported, self.process = reported, os.pidfd_open(pid)
        self.part_seconds, self.limit = job["part_seconds"], job["output_bytes"]
        self.last_deadline = time.monotonic() + job["seconds"]
        self.deadline = time.monotonic() + self.part_seconds
        self.num_parts = 1 + len(job["parts"])  # each report that ends a part starts the next one's time
        self.poll = select.poll()
        for pipe in self.texts:
            os.set_blocking(pipe, False)
            self.poll.register(pipe, select.POLLIN)
        self.poll.register(self.process, select.POLLIN)

    def until_it_ends(self) -> str | None:
        """Why it must end; None when it has."""
        while (left := self.deadline - time.monotonic()) > 0:
            ready = [file for file, _ in self.poll.poll((left if self.shared is None else min(left, LOOK_S)) * 1000)]
            if self.shared and not cleanup.is_within(self.shared.scratch, self.shared.limits["scratch_mib"] * MIB):
                return KILLED
            for pipe in self.texts:
                if pipe in ready and not self._read(pipe):
                    return TOO_MUCH_OUTPUT
            if self.process in ready:
                return self._read_rest()
        return TIMED_OUT

    def close(self) -> None:
        for file in (*self.texts, self.process):
            os.close(file)

    def _read(self, pipe: int) -> bool:
        """Whether what was there is within the limit."""
        try:
            data = os.read(pipe, READ_BYTES)
        except BlockingIOError:
            return True
        if not data:
            self.poll.unregister(pipe)
        self.texts[pipe] += data
        if pipe == self.reported and self.num_parts > 0 and b"\n" in data:
            self.num_parts -= 1
            self.deadline = min(time.monotonic() + self.part_seconds, self.last_deadline)
        return len(self.texts[pipe]) <= self.limit

    def _read_rest(self) -> str | None:
        for pipe, text in self.texts.items():
            before = -1
            while len(text) > before:
                before = len(text)
                if not self._drain(pipe):
                    return TOO_MUCH_OUTPUT
        return None

    def _drain(self, pipe: int) -> bool:
        try:
            self.texts[pipe] += os.read(pipe, READ_BYTES)
        except BlockingIOError:
            return True
        return len(self.texts[pipe]) <= self.limit


def _be_expendable() -> None:
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
            score.write(OUT_OF_MEMORY_SCORE)
    except OSError:
        return  # a host without it, or one that has set a higher score


def _become_first(connection: Connection) -> None:
    """Go on as process 1 of the new pid namespace; this one stays outside, waits for it, and takes it along when it is
    killed."""
    first = os.fork()
    if first:
        connection.close()
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)  # entering a user namespace has cleared it
        os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) & 0xFF)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()


def _make_cell(layers: Layers, user: int, settings: dict[str, Any]) -> program_process.Cell:
    """What every inmate is put under; finds out what the kernel has of Landlock and seccomp."""
    without, scratch = settings["without"], confine.SCRATCH if layers.mount else settings["scratch"]
    interface = 0 if layers.mount or "landlock" in without else landlock.version()
    rules = landlock.ruleset(settings["readable"], [scratch, "/dev/null"], interface) if interface else None
    code = None if "seccomp" in without else seccomp.build(guard_signals=not layers.pid)
    layers = replace(
        layers,
        landlock=interface,
        seccomp=code is not None and program_process.can_filter(),
        no_new_privs=True,
        process_limit=layers.own_uid or not settings["is_root"],
    )
    if layers.own_uid and not layers.mount:
        os.chown(scratch, user, user)
    return program_process.Cell(
        layers,
        user,
        scratch,
        rules,
        code if layers.seccomp else None,
        settings["limits"],
        os.open("/dev/null", os.O_RDWR),
    )


def _harden() -> None:
    """What an program_process, a copy of this process, must find when it is born; and that none can look into or signal
    this one."""
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)  # without a pid namespace, orphans come here
    linux.drop_bounding_set()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.umask(0o022)


if __name__ == "__main__":
    main(sys.argv[1:])
