"""Examine a job: each node checks itself, then the nodes check each other and agree on a verdict.

Whether the run folder is the same on all nodes is seen from a file: each node writes one there and looks for the files
of all nodes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from brorl_launcher.doctor import collective
from brorl_launcher.doctor.collective import LEAST, Pair, find_fault, with_blame
from brorl_launcher.doctor.probe import call_within
from brorl_launcher.doctor.rendezvous import NodeRank, NoTorchError, Rendezvous, join_rendezvous
from brorl_launcher.doctor.report import FAIL, OK, WARN, Check, NodeReport, join_names
from nemo_brorl.core.errors import ResourceError

NAME = "shared folder"
LOOK_S = 0.2
HANG_S = 30.0  # longest time of a file-system call

RENDEZVOUS = "rendezvous"
SAME = "same versions"
CLOCKS = "clock"
CLOCK_WARN_S, CLOCK_FAIL_S = 1.0, 30.0  # seconds between a node's clock and the first node's
EXCHANGE_S = 30.0
LEFT_S = 900.0  # greatest age of the report that an absent node left
SPREAD_S = 90.0  # greatest distance between nodes, beyond the longest check


def write_word(folder: Path, node: str, word: str) -> str:
    """Write `word` into this node's file in the shared folder, so that the other nodes can look for it.

    Returns an error message, or an empty text.
    """

    def put() -> str:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = _path(folder, node)
            path.write_text(word, encoding="ascii")
            return "" if path.read_text(encoding="ascii") == word else "what was written does not read back"
        except OSError as error:
            return str(error)

    return str(call_within(HANG_S, put, f"the file system has not answered for {HANG_S:.0f} s"))


def words_seen(folder: Path, words: Mapping[str, str], seconds: float) -> list[str]:
    """Return the nodes whose file in the shared folder holds the word that `words` gives for the node.

    It looks until all files do, or for `seconds`, because file servers need a while to show new files.
    """
    ends_at = time.monotonic() + seconds
    found: set[str] = set()
    while True:
        for node, word in words.items():
            if node not in found and _holds(_path(folder, node), word):
                found.add(node)
        is_late = time.monotonic() > ends_at
        if is_late or len(found) == len(words):
            return sorted(found)
        with contextlib.suppress(OSError):
            os.listdir(folder)  # makes NFS look again
        time.sleep(LOOK_S)


def is_word_fresh(folder: Path, node: str, max_age_s: float) -> bool:
    """Return whether a node wrote its file in the shared folder less than `max_age_s` seconds ago."""
    try:
        written_at = _path(folder, node).stat().st_mtime
        return time.time() - written_at < max_age_s
    except OSError:
        return False


def remove_word(folder: Path, node: str) -> None:
    """Delete this node's file in the shared folder, which other nodes look for."""
    with contextlib.suppress(OSError):
        _path(folder, node).unlink(missing_ok=True)


def judge_sights(
    nodes: Sequence[str],
    sights: Mapping[str, Sequence[str]],
    folder: Path,
) -> dict[str, Check]:
    """Decide which nodes have the right shared folder, given the nodes whose files each node sees there.

    The folder that most nodes share is the right one. Of two equal halves the one with the first node is right, because
    the job script has written there. Returns a check for each node.
    """
    advice = (
        "put the run folder (exp_manager.explicit_log_dir) on a file system that all nodes mount, and mount it in the "
        "container"
    )
    verdicts = {}
    for node in nodes:
        same = [node]  # nodes that see this node's file and whose file it sees
        lacks: list[str] = []
        for other in sights:
            if other == node:
                continue
            sees_each_other = other in sights.get(node, ()) and node in sights[other]
            (same if sees_each_other else lacks).append(other)
        is_with_most = len(same) > len(lacks)
        if len(same) == len(lacks):
            is_with_most = nodes[0] not in lacks
        if not is_with_most:
            verdicts[node] = Check(NAME, FAIL, f"{folder} is not the one of {', '.join(lacks[:4])}", advice)
        elif len(same) + len(lacks) == 1:
            verdicts[node] = Check(NAME, OK, f"{folder} can be written")
        else:
            verdicts[node] = Check(NAME, OK, f"{folder} is the same on {len(same)} nodes")
    return verdicts


def _holds(path: Path, word: str) -> bool:
    try:
        return path.read_text(encoding="ascii") == word
    except (OSError, ValueError):
        return False


def _path(folder: Path, node: str) -> Path:
    return folder / f"{node}.word"


@dataclass(frozen=True)
class JobCheckSettings:
    """Folders, GPUs and deadlines for the doctor's checks of a job."""

    shared: Path  # folder below the run folder
    reports: Path | None  # folder of `<node>.json`; None: not written
    num_gpus: int  # GPUs of each node; 0: CPU
    rendezvous_s: float  # deadline from the start of the rendezvous until all nodes have come
    all_reduce_s: float  # deadline of an all-reduce; 0: none is tried


@dataclass(frozen=True)
class DoctorVerdict:
    """The reports of a job's nodes, in the order of ranks. On the first node they include nodes that did not come."""

    reports: tuple[NodeReport, ...]
    num_nodes: int
    has_joined: bool = True  # False: this node met no other

    @property
    def is_ok(self) -> bool:
        if len(self.reports) < self.num_nodes or self.shared_failures:
            return False
        return all(report.is_ok for report in self.reports)

    @property
    def shared_failures(self) -> list[str]:
        """Return the failures between nodes that each pass all checks alone, as texts."""
        texts: dict[str, None] = {}  # distinct texts in order
        for report in self.reports:
            for check in report.checks:
                if check.status == FAIL and check.is_shared:
                    texts[f"{check.name}: {check.found}; {check.advice}"] = None
        return list(texts)


def examine_job(
    this: NodeRank,
    wanted: JobCheckSettings,
    look: Callable[[], NodeReport],
) -> DoctorVerdict:
    """Check this node and all nodes of the Slurm job together, and return the verdict.

    `look` checks this node. Each node writes `<node>.json` into `wanted.reports` before the last exchange of results.
    Then the first node writes all reports again, with what only it knows: which nodes did not come, how the clocks
    differ, on which nodes packages differ.
    """
    word = secrets.token_hex(8)
    wrong = write_word(wanted.shared, this.node, word)
    try:
        with join_rendezvous(this, wanted.rendezvous_s) as rendezvous:
            verdict = _examine_together(this, wanted, look, rendezvous, word, wrong)
    except ResourceError as error:
        return _alone(this, wanted, look(), error)
    if this.is_first:
        _write(wanted, verdict.reports)
    return verdict


def _examine_together(
    this: NodeRank,
    wanted: JobCheckSettings,
    look: Callable[[], NodeReport],
    rendezvous: Rendezvous,
    word: str,
    wrong: str,
) -> DoctorVerdict:
    """Check the nodes of a Slurm job that have met each other, and return the verdict.

    `word` is the text that this node wrote into the shared folder, `wrong` tells why it could not.
    """
    words = this.by_node(rendezvous.exchange(word, EXCHANGE_S))
    report = look()
    seen = []
    if not wrong:
        seen = words_seen(wanted.shared, words, EXCHANGE_S / 2)
    seen_by_rank = rendezvous.exchange(seen, EXCHANGE_S + SPREAD_S)
    sights = this.by_node(seen_by_rank)
    verdicts = judge_sights(this.nodes, sights, wanted.shared)
    shared = verdicts[this.node]
    if wrong:
        shared = Check(NAME, FAIL, wrong, shared.advice)
    report.checks.append(shared)
    if wanted.all_reduce_s > 0:
        report.checks += _all_reduce(this, wanted, rendezvous)
    _write(wanted, [report])
    longest = collective.longest_s(wanted.all_reduce_s) + EXCHANGE_S
    gathered = rendezvous.exchange(report.to_json(), longest)
    remove_word(wanted.shared, this.node)
    return _verdict(this, wanted, gathered, rendezvous.offsets)


def _all_reduce(
    this: NodeRank,
    wanted: JobCheckSettings,
    rendezvous: Rendezvous,
) -> list[Check]:
    """Check all-reduces on this node alone, then over the nodes that passed, then between neighbouring nodes.

    A node that failed alone is left out of the second check, because it would only make the other nodes wait. The third
    check runs only when the second one failed. Every node takes part in each exchange of results, also one that is left
    out.
    """
    longest = collective.longest_s(wanted.all_reduce_s) + EXCHANGE_S
    mine = collective.check_node(this, wanted.num_gpus, wanted.all_reduce_s)
    by_rank = rendezvous.exchange(mine.status, longest)
    alone = this.by_node(by_rank)
    if this.size == 1:
        return [mine]
    good = [node for node in this.nodes if alone.get(node) == OK]
    bad = [node for node in this.nodes if node not in good]
    if len(good) < 2 or this.nodes[0] not in good:
        not_tried = Check(collective.GLOBAL, WARN, f"not tried, for {join_names(bad)}")
        return [mine, not_tried]
    together = Check(collective.GLOBAL, WARN, "not tried here")
    if this.node in good:
        together = collective.check_job(this, good, wanted.num_gpus, wanted.all_reduce_s)
        if bad:
            found = f"{together.found} (without {join_names(bad)})"
            together = replace(together, found=found)
    statuses = rendezvous.exchange(together.status, longest)
    if FAIL in statuses.values() and len(good) >= LEAST:

        def try_pair(between: NodeRank, pair: Pair) -> Check:
            return collective.check_pair(between, pair, wanted.num_gpus, wanted.all_reduce_s)

        faults = find_fault(this, rendezvous, good, try_pair, longest)
        if together.status == FAIL:
            together = with_blame(together, this.node, faults)
    return [mine, together]


def _write(wanted: JobCheckSettings, reports: Sequence[NodeReport]) -> None:
    if wanted.reports is not None:
        for report in reports:
            report.write(wanted.reports)


def _verdict(
    this: NodeRank,
    wanted: JobCheckSettings,
    gathered: Mapping[int, Any],
    offsets: Mapping[int, float],
) -> DoctorVerdict:
    reports = {}
    for rank, data in gathered.items():
        reports[rank] = NodeReport.from_json(data)
    if this.is_first and this.size > 1:
        for rank, node in enumerate(this.nodes):
            if rank not in reports:
                reports[rank] = _absentee(node, wanted.reports)
            report = reports[rank]
            if rank in gathered:
                report.checks.append(Check(RENDEZVOUS, OK, "came"))
            if rank in offsets and rank in gathered:
                report.checks.append(check_clock(offsets[rank]))
        check_same(list(reports.values()))
    by_rank = [reports[rank] for rank in sorted(reports)]
    return DoctorVerdict(tuple(by_rank), this.size)


def check_clock(offset_s: float) -> Check:
    """Check that a node's clock is close enough to that of the first node.

    `offset_s` is how many seconds the node's clock is ahead.
    """
    if abs(offset_s) < CLOCK_WARN_S:
        return Check(CLOCKS, OK, "within a second")
    status = FAIL if abs(offset_s) >= CLOCK_FAIL_S else WARN
    advice = "set its clock (chronyc makestep): files and deadlines of several nodes are compared"
    return Check(CLOCKS, status, f"{offset_s:+.1f} s from the first node's", advice)


def check_same(reports: Sequence[NodeReport]) -> None:
    """Add a check to each node's report whether its package versions and code equal those of most nodes.

    If two values are equally frequent, the first one counts.
    """
    values: dict[str, list[str]] = {}  # values of all nodes by fact
    for report in reports:
        for name, value in report.facts.items():
            values.setdefault(name, []).append(value)
    usual = {}
    for name in sorted(values):
        found = values[name]
        usual[name] = max(dict.fromkeys(found), key=found.count)
    for report in reports:
        if not report.facts:
            continue
        others = []
        for name, value in usual.items():
            own = report.facts.get(name, "none")
            if own != value:
                others.append(f"{name} {own}, elsewhere {value}")
        if others:
            advice = "install the same packages on all nodes, or use one container image"
            check = Check(SAME, FAIL, "; ".join(others), advice)
        else:
            same = [f"{name} {value}" for name, value in usual.items()]
            check = Check(SAME, OK, ", ".join(same))
        report.checks.append(check)


def _absentee(node: str, reports: Path | None) -> NodeReport:
    """Return the report of a node that did not join the nodes of its Slurm job.

    It starts with what that node itself reported a short while ago, as a node with wrong settings does.
    """
    left = NodeReport.read(reports / f"{node}.json", LEFT_S) if reports else None
    advice = "is it up, can it reach the first node's port, does its container start? Its own output says more"
    absent = Check(RENDEZVOUS, FAIL, f"{node} did not come, or went away in the middle of the checks", advice)
    if left is None or left.is_ok:
        return NodeReport(node, [absent])
    left.checks.append(absent)
    return left


def _alone(
    this: NodeRank,
    wanted: JobCheckSettings,
    report: NodeReport,
    reason: ResourceError,
) -> DoctorVerdict:
    """Return the verdict of a node that could not meet the other nodes of its Slurm job.

    This node is taken to be at fault where torch does not load, or where the first node is up, as its file in the
    shared folder shows. Otherwise the first node is.
    """
    first_node = this.nodes[0]
    is_up = is_word_fresh(wanted.shared, first_node, LEFT_S)
    is_mine = this.is_first or is_up or isinstance(reason, NoTorchError)
    fault = this.node if is_mine else first_node
    status = FAIL if fault == this.node else WARN
    check = Check(RENDEZVOUS, status, str(reason), f"look at {fault} first")
    report.checks.append(check)
    _write(wanted, [report])
    remove_word(wanted.shared, this.node)
    if fault == this.node:
        return DoctorVerdict((report,), this.size, has_joined=False)
    first = _absentee(fault, wanted.reports)
    if wanted.reports and not (wanted.reports / f"{fault}.json").exists():
        first.write(wanted.reports)
    return DoctorVerdict((first, report), this.size, has_joined=False)
