"""Report of a node: what each check found, as JSON and as rows of a table; and probes, by which questions that a
library or a broken disk could hang on are asked in a child process with a deadline.

A probe is `python -m brorl_launcher.doctor.MODULE NAME JSON`: it prints its answer as the last line of its standard
output, one JSON object.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nemo_brorl.core.files import write_whole

OK, WARN, FAIL = "ok", "warn", "fail"
_WORST_FIRST = (FAIL, WARN, OK)
STYLES = {OK: "green", WARN: "yellow", FAIL: "bold red"}  # on a terminal
MAX_NAMED = 6  # nodes that a row names


@dataclass(frozen=True)
class Check:
    """One question about a machine, answered."""

    name: str
    status: str  # ok, warn, fail; only fail refuses
    found: str
    advice: str = ""  # what to do; "" where there is nothing
    is_shared: bool = False  # several nodes found it together, and it is not said whose fault it is


@dataclass
class NodeReport:
    """What is known of one node, as `<node>.json` in the folder of reports."""

    node: str
    checks: list[Check] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)  # what must be the same on all nodes

    @property
    def problems(self) -> list[str]:
        """What refuses this node, a sentence each."""
        sentences = []
        for check in self.checks:
            if check.status == FAIL and not check.is_shared:
                advice = f"; {check.advice}" if check.advice else ""
                sentences.append(f"{check.name}: {check.found}{advice}")
        return sentences

    @property
    def is_ok(self) -> bool:
        """Whether nothing speaks against this node; the job may fail all the same."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """`node`, `ok`, `problems`, `checks`, `facts`."""
        return {
            "node": self.node,
            "ok": self.is_ok,
            "problems": self.problems,
            "checks": [asdict(check) for check in self.checks],
            "facts": self.facts,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> NodeReport:
        checks = [Check(**check) for check in data["checks"]]
        return cls(data["node"], checks, dict(data["facts"]))

    @classmethod
    def read(cls, path: Path, max_age_s: float) -> NodeReport | None:
        """What a node has written not longer ago than that; None where there is nothing of the kind."""
        try:
            age_s = time.time() - path.stat().st_mtime
            if age_s >= max_age_s:
                return None
            data = json.loads(path.read_text(encoding="utf-8"))
            return cls.from_json(data)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, folder: Path) -> Path:
        """Leave `<node>.json` there, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        return write_json(folder / f"{self.node}.json", self.to_json())


def write_json(path: Path, data: object) -> Path:
    """Write JSON, whole or not at all."""
    text = json.dumps(data, indent=1, ensure_ascii=False)
    return write_whole(path, f"{text}\n")


def table_header(reports: Sequence[NodeReport]) -> tuple[str, ...]:
    """Names of the table's columns; nodes have one where there are several."""
    if len(reports) > 1:
        return ("check", "status", "nodes", "found")
    return ("check", "status", "found")


def table_rows(reports: Sequence[NodeReport]) -> list[list[str]]:
    """A row for each check, the worst verdict first. Nodes of which a check says the same share a row; what is in order
    is shown as the first of its nodes says it."""
    groups: dict[str, dict[tuple[str, str], list[str]]] = {}  # nodes by check, and by status with what was found
    found_ok: dict[str, list[str]] = {}  # what was found in order, by check
    for node, check in _all_checks(reports):
        found = check.found
        if check.status == OK:
            found_ok.setdefault(check.name, []).append(check.found)
            found = ""
        group = groups.setdefault(check.name, {})
        group.setdefault((check.status, found), []).append(node)
    rows = []
    for name, group in groups.items():
        worst_first = sorted(group, key=lambda key: _WORST_FIRST.index(key[0]))
        for status, found in worst_first:
            nodes = group[status, found]
            text = found_ok[name][0] if status == OK else found
            if status == OK and len(set(found_ok[name])) > 1:
                text += f" ({nodes[0]}; the others alike)"
            row = [name, status]
            if len(nodes) < len(reports):
                row.append(named(nodes))
            elif len(reports) > 1:
                row.append("all")
            row.append(text)
            rows.append(row)
    return rows


def advices(reports: Sequence[NodeReport]) -> list[str]:
    """What to do, a line each, failures first, the same advice once."""
    failures: dict[str, None] = {}
    warnings: dict[str, None] = {}
    for _, check in _all_checks(reports):
        text = f"{check.name}: {check.advice}"
        if check.advice and check.status == FAIL:
            failures[text] = None
        elif check.advice and check.status == WARN:
            warnings[text] = None
    return list(failures | warnings)


def _all_checks(reports: Sequence[NodeReport]) -> Iterator[tuple[str, Check]]:
    """Node and check, one after the other."""
    for report in reports:
        for check in report.checks:
            yield report.node, check


def named(nodes: Sequence[str]) -> str:
    """The first few names, and how many more."""
    more = f" and {len(nodes) - MAX_NAMED} more" if len(nodes) > MAX_NAMED else ""
    return ", ".join(nodes[:MAX_NAMED]) + more


MAX_REASON = 300  # characters of what a failed probe said last

Question = Callable[[dict[str, Any]], dict[str, Any]]  # from arguments to an answer, both JSON objects


@dataclass(frozen=True)
class Answer:
    """What a probe said, or why it said nothing."""

    data: dict[str, Any] | None
    reason: str = ""  # "" when there is data

    def __bool__(self) -> bool:
        return self.data is not None


class Probe:
    """A question that was put; `wait` for its answer. What it started is gone after `wait`."""

    def __init__(
        self,
        module: str,
        name: str,
        arguments: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        command = [sys.executable, "-m", f"brorl_launcher.doctor.{module}", name, json.dumps(arguments)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )

    def wait(self, seconds: float) -> Answer:
        """The answer, or that there is none within `seconds`."""
        try:
            output, errors = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.end()
            return Answer(None, f"no answer within {round(seconds, 1):g} s")
        finally:
            self.end()
        return _read(output, errors, self._process.returncode)

    def end(self) -> None:
        """Kill it and all it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def ask(
    module: str,
    name: str,
    arguments: Mapping[str, Any],
    seconds: float,
) -> Answer:
    """Put a question and wait for the answer."""
    return Probe(module, name, arguments).wait(seconds)


def answer(probes: Mapping[str, Question]) -> None:
    """Answer the command line's question, as the last thing on standard output: what a probe's process does."""
    name, arguments = sys.argv[1:]
    data = probes[name](json.loads(arguments))
    sys.stdout.write("\n" + json.dumps(data) + "\n")
    sys.stdout.flush()
    os._exit(0)  # what a library does at the end of a process is not asked for, and may hang


def within(seconds: float, question: Callable[[], Any], late: Any) -> Any:
    """Answer of `question`, or `late` after `seconds`: for a call into the kernel that a dead file server holds. The
    thread is left to it; it does not keep the process."""
    found: list[Any] = []

    def run() -> None:
        found.append(question())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else late


def _read(output: str, errors: str, code: int) -> Answer:
    lines = output.strip().splitlines() or [""]
    try:
        data = json.loads(lines[-1])
    except ValueError:
        data = None
    if code == 0 and isinstance(data, dict):
        return Answer(data)
    said = errors.strip() or output.strip() or "nothing said"
    last_line = said.splitlines()[-1]
    return Answer(None, f"exit code {code}: {last_line[-MAX_REASON:]}")
