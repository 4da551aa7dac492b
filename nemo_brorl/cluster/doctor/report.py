"""What a check found, what is known of a node, and how a person sees it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nemo_brorl.core.console import format_table
from nemo_brorl.core.files import write_whole

OK, WARN, FAIL = "ok", "warn", "fail"
_ORDER = (OK, WARN, FAIL)
MAX_NAMED = 6  # nodes
RULE = 5  # characters under the last column's head


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
        own = [check for check in self.checks if check.status == FAIL and not check.is_shared]
        return [f"{check.name}: {check.found}" + (f"; {check.advice}" if check.advice else "") for check in own]

    @property
    def is_ok(self) -> bool:
        """Whether nothing speaks against this node; the job may fail all the same."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """`node`, `ok`, `problems`, `checks`, `facts`."""
        checks = [asdict(check) for check in self.checks]
        return {"node": self.node, "ok": self.is_ok, "problems": self.problems, "checks": checks, "facts": self.facts}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> NodeReport:
        return cls(data["node"], [Check(**check) for check in data["checks"]], dict(data["facts"]))

    @classmethod
    def read(cls, path: Path, max_age_s: float) -> NodeReport | None:
        """What a node has written not longer ago than that; None where there is nothing of the kind."""
        try:
            is_fresh = time.time() - path.stat().st_mtime < max_age_s
            return cls.from_json(json.loads(path.read_text(encoding="utf-8"))) if is_fresh else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, folder: Path) -> Path:
        """Leave `<node>.json` there, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        return write_json(folder / f"{self.node}.json", self.to_json())


def write_json(path: Path, data: object) -> Path:
    """Whole or not at all."""
    return write_whole(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def table(reports: Sequence[NodeReport]) -> list[str]:
    """Lines for a person: a row for each check. Nodes of which a check says the same share a row."""
    names = list(dict.fromkeys(check.name for report in reports for check in report.checks))
    rows = [row for name in names for row in _rows(name, reports)]
    has_nodes = len(reports) > 1
    header = ("check", "status", "nodes") if has_nodes else ("check", "status")
    lines = format_table(header, [row[: len(header)] for row in rows])
    found = ["found", "-" * RULE, *(row[-1] for row in rows)]
    return [f"{line}  {text}" for line, text in zip(lines, found, strict=True)]


def advices(reports: Sequence[NodeReport]) -> list[str]:
    """What to do, a line each, the same advice once."""
    open_checks = [
        check for status in (FAIL, WARN) for report in reports for check in report.checks if check.status == status
    ]
    return list(dict.fromkeys(f"{check.name}: {check.advice}" for check in open_checks if check.advice))


def worst(checks: Iterable[Check]) -> str:
    """The worst status among checks."""
    return max((check.status for check in checks), key=_ORDER.index, default=OK)


def _rows(name: str, reports: Sequence[NodeReport]) -> list[tuple[str, str, str, str]]:
    """(check, status, nodes, found) of one check, the worst first. What is in order is shown as the first of its nodes
    says it."""
    said: dict[tuple[str, str], list[str]] = {}
    for report in reports:
        for check in report.checks:
            if check.name == name:
                said.setdefault((check.status, "" if check.status == OK else check.found), []).append(report.node)
    rows = []
    for (status, found), nodes in sorted(said.items(), key=lambda item: -_ORDER.index(item[0][0])):
        texts = list(
            dict.fromkeys(
                check.found for report in reports for check in report.checks if (check.name, check.status) == (name, OK)
            )
        )
        text = found or texts[0] + (f" ({nodes[0]}; the others alike)" if len(texts) > 1 else "")
        rows.append((name, status, "all" if len(nodes) == len(reports) else named(nodes), text))
    return rows


def named(nodes: Sequence[str]) -> str:
    """The first few names, and how many more."""
    return ", ".join(nodes[:MAX_NAMED]) + (f" and {len(nodes) - MAX_NAMED} more" if len(nodes) > MAX_NAMED else "")
