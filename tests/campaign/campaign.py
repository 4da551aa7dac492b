"""One disturbed run after another, each resumed until it is done and held against the undisturbed one."""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from nemo_brorl.core.processes import is_running
from tests.campaign import machine
from tests.campaign.faults import KINDS, ON_OWN_DISK, ON_OWN_MACHINE, Fault, Scene
from tests.campaign.jobs import JOBS, Row
from tests.support.commands import FOLDER_PREFIX, Command, run

MAX_TRIES = 6  # drivers of one run
GONE_S = 60.0  # until what a driver started is gone, however that ended
SLOWER = 3.0  # times its undisturbed run that a driver may take,
LATER_S = 300.0  # and so much on top, before it is said to stand still
SHARED_MEMORY = Path("/dev/shm")
TEMPORARY_FILES = Path(tempfile.gettempdir())
DAMAGED_CONFIG = "config.yaml is damaged"  # in the message of a driver that cannot read it, or reads other settings


@dataclass
class Outcome:
    """What became of a run with a fault."""

    fault: Fault
    limit_s: float  # for each of its drivers
    done_to: str = ""
    exits: list[int] = field(default_factory=list)  # of its drivers, in order
    seconds: float = 0.0
    last_errors: str = ""  # of the newest driver
    wrong: list[str] = field(default_factory=list)  # nothing: it holds

    def __str__(self) -> str:
        verdict = "; ".join(self.wrong) or "holds"
        return f"{self.fault} ({self.done_to}): exits {self.exits}, {self.seconds:.0f} s: {verdict}"


def undisturbed(command: str, folder: Path) -> float:
    """The run that others of that command are compared with. Returns its seconds."""
    start = time.monotonic()
    run(*JOBS[command].arguments(folder))
    return time.monotonic() - start


def disturbed(folder: Path, fault: Fault, whole: Path, whole_s: float) -> Outcome:
    """A run with one fault, resumed until it is done."""
    job = JOBS[fault.command]
    outcome = Outcome(fault, SLOWER * whole_s + LATER_S)
    memory_before = names_in(SHARED_MEMORY)
    files_before = names_in(TEMPORARY_FILES)
    start = time.monotonic()
    with ExitStack() as surroundings:
        variables = prepare(fault, folder, surroundings)
        with ExitStack() as undo:
            first_driver(fault, folder, variables, whole_s, outcome, undo)
        while outcome.exits[-1] != 0 and len(outcome.exits) < MAX_TRIES:
            if DAMAGED_CONFIG in outcome.last_errors:
                (folder / "config.yaml").unlink()  # as the message says
            end(Command(*job.arguments(folder), variables=variables), outcome)
        outcome.seconds = time.monotonic() - start
        outcome.wrong += differences(job.results(folder), job.results(whole))
        is_frozen = fault.kind == "folder read-only" and len(outcome.exits) == 1  # to the end of the last driver
        if (folder / "driver.lock").exists() and not is_frozen:
            outcome.wrong.append("driver.lock is left")
    for place, before in ((SHARED_MEMORY, memory_before), (TEMPORARY_FILES, files_before)):
        left = names_in(place) - before
        if left:
            outcome.wrong.append(f"left in {place}: {sorted(left)}")
    return outcome


def prepare(fault: Fault, folder: Path, surroundings: ExitStack) -> Mapping[str, str]:
    """The disk or the machine that a kind of fault needs. Returns variables of the drivers."""
    if fault.kind in ON_OWN_DISK:
        with suppress(*machine.NOT_ALLOWED):  # then nobody fills it
            surroundings.enter_context(machine.own_disk(folder))
    if fault.kind not in ON_OWN_MACHINE:
        return {}
    settings = machine.settings_of(folder)
    machine.write_settings(settings)
    return machine.variables(machine.build(folder.parent), settings)


def first_driver(
    fault: Fault,
    folder: Path,
    variables: Mapping[str, str],
    whole_s: float,
    outcome: Outcome,
    undo: ExitStack,
) -> None:
    """Start a run, strike it at its moment, and wait for its end."""
    arguments = JOBS[fault.command].arguments(folder)
    generator = random.Random(fault.seed)
    start = time.monotonic()
    command = Command(*arguments, variables=variables)
    wait_until(command, start + fault.at * whole_s)
    outcome.done_to = "nobody: it had ended"
    if command.is_alive():
        scene = Scene(command, folder, generator, arguments, undo)
        try:
            outcome.done_to = KINDS[fault.kind](scene)
        except machine.NOT_ALLOWED as error:
            outcome.done_to = f"nobody: not allowed here ({error})"
        outcome.wrong += scene.wrong
    end(command, outcome)


def wait_until(command: Command, moment: float) -> None:
    """Until then, or until the command has ended."""
    while time.monotonic() < moment and command.is_alive():
        time.sleep(0.05)


def end(command: Command, outcome: Outcome) -> None:
    """Wait for a driver and for all that it started; note its exit, what it said, what is left."""
    started = command.processes() if command.is_alive() else []
    seen = {process.pid: process for process in started}
    deadline = time.monotonic() + outcome.limit_s
    while command.is_alive() and time.monotonic() < deadline:
        for process in command.processes():
            seen[process.pid] = process
        time.sleep(0.5)
    if command.is_alive():
        outcome.wrong.append(f"goes on after {outcome.limit_s:.0f} s: {command.output[-500:]}")
        command.send(signal.SIGKILL)
    exit_code = command.wait()
    outcome.exits.append(exit_code)
    outcome.last_errors = command.errors
    num_messages = sum(text.startswith("error: ") for text in command.errors.splitlines())
    if exit_code > 0 and num_messages != 1:
        outcome.wrong.append(f"{num_messages} messages for exit code {exit_code}: {command.errors[-1000:]}")
    before, traceback, after = command.errors.partition("Traceback")
    if traceback:
        outcome.wrong.append(f"a traceback: {before[-200:]}{traceback}{after[:3000]}")
    deadline = time.monotonic() + GONE_S
    while any(is_running(process) for process in seen.values()) and time.monotonic() < deadline:
        time.sleep(0.1)
    for process in filter(is_running, seen.values()):
        outcome.wrong.append(f"left behind: {process}")
        process.kill()


def differences(found: Sequence[Row], expected: Sequence[Row]) -> list[str]:
    """What is not as in the undisturbed run: number of rows, names of values."""
    if len(found) != len(expected):
        return [f"{len(found)} rows, not {len(expected)}"]
    names: set[str] = set()
    for row, other in zip(found, expected, strict=True):
        names |= {name for name in row.keys() | other.keys() if row.get(name) != other.get(name)}
    return [f"other values: {', '.join(sorted(names))}"] if names else []


def names_in(place: Path) -> set[str]:
    """Files and folders of a place, but for those that commands print to, which are there while they are read."""
    return {path.name for path in place.iterdir() if not path.name.startswith(FOLDER_PREFIX)}
