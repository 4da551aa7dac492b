"""Report of a node: what each check found, as JSON and as rows of a table."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nemo_brorl.core.files import write_atomically

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
    return write_atomically(path, f"{text}\n")


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
                row.append(join_names(nodes))
            elif len(reports) > 1:
                row.append("all")
            row.append(text)
            rows.append(row)
    return rows


def advice_lines(reports: Sequence[NodeReport]) -> list[str]:
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


def join_names(nodes: Sequence[str]) -> str:
    """The first few names, and how many more."""
    more = f" and {len(nodes) - MAX_NAMED} more" if len(nodes) > MAX_NAMED else ""
    return ", ".join(nodes[:MAX_NAMED]) + more
