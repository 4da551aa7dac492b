"""Report what the checks of a node found, as JSON and as rows of a table."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from brorl_graders.base.foreign import SMALL, record_object

from nemo_brorl.core.files import write_atomically

OK, WARN, FAIL = "ok", "warn", "fail"
_WORST_FIRST = (FAIL, WARN, OK)
STYLES = {OK: "green", WARN: "yellow", FAIL: "bold red"}  # colours on a terminal
MAX_NAMED = 6  # node names in a row


@dataclass(frozen=True)
class Check:
    """The result of one check of a machine."""

    name: str
    status: str  # ok, warn or fail; only fail refuses
    found: str
    advice: str = ""  # what to do, or ""
    is_shared: bool = False  # found by several nodes together, so that no single node is blamed


@dataclass
class NodeReport:
    """The checks and the facts of one node, stored as `<node>.json` in the folder of reports."""

    node: str
    checks: list[Check] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)  # versions and code that must agree on all nodes

    @property
    def problems(self) -> list[str]:
        """Return the failures that keep the run from starting on this node, one sentence each."""
        sentences = []
        for check in self.checks:
            if check.status == FAIL and not check.is_shared:
                advice = f"; {check.advice}" if check.advice else ""
                sentences.append(f"{check.name}: {check.found}{advice}")
        return sentences

    @property
    def is_ok(self) -> bool:
        """Return whether all checks of this node allow the run to start.

        The Slurm job may fail for another reason.
        """
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the node's report as a JSON object with `node`, `ok`, `problems`, `checks` and `facts`."""
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
        """Return the report of checks that a node wrote less than `max_age_s` seconds ago, or None."""
        try:
            age_s = time.time() - path.stat().st_mtime
            if age_s >= max_age_s:
                return None
            return cls.from_json(record_object(path, SMALL))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, folder: Path) -> Path:
        """Write the node's report as `<node>.json` into a folder, atomically, and return the path."""
        folder.mkdir(parents=True, exist_ok=True)
        return write_json(folder / f"{self.node}.json", self.to_json())


def write_json(path: Path, data: object) -> Path:
    """Write data as a JSON file, atomically, and return the path."""
    text = json.dumps(data, indent=1, ensure_ascii=False)
    return write_atomically(path, f"{text}\n")


def table_header(reports: Sequence[NodeReport]) -> tuple[str, ...]:
    """Return the column names of the table that `brorl doctor` prints, with one for nodes if there are several."""
    if len(reports) > 1:
        return ("check", "status", "nodes", "found")
    return ("check", "status", "found")


def table_rows(reports: Sequence[NodeReport]) -> list[list[str]]:
    """Return the rows of the table of checks, sorted so that for each check the worst status comes first.

    Nodes with the same result share a row. A passed check shows the text of the first node that passed.
    """
    groups: dict[str, dict[tuple[str, str], list[str]]] = {}  # node names by check, then by status and text
    found_ok: dict[str, list[str]] = {}  # texts of passed checks by check
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
    """Return the advice on the nodes' failed checks, then on their warnings, without repetitions."""
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
    """Yield every check in the reports of the nodes, with the name of the checked node."""
    for report in reports:
        for check in report.checks:
            yield report.node, check


def join_names(nodes: Sequence[str]) -> str:
    """Return a text with the first few node names, and the number of further nodes."""
    more = f" and {len(nodes) - MAX_NAMED} more" if len(nodes) > MAX_NAMED else ""
    return ", ".join(nodes[:MAX_NAMED]) + more
