"""The nodes of a job look at themselves, then at each other, and agree on a verdict."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nemo_brorl.cluster.doctor import collective, pairs, shared_folder
from nemo_brorl.cluster.doctor.node_rank import Place
from nemo_brorl.cluster.doctor.rendezvous import Meeting, meet
from nemo_brorl.cluster.doctor.report import FAIL, OK, WARN, Check, NodeReport, named
from nemo_brorl.core.errors import ResourceError

MEETING = "meeting"
SAME = "same versions"
CLOCKS = "clock"
CLOCK_WARN_S, CLOCK_FAIL_S = 1.0, 30.0  # between a node's clock and the first one's
EXCHANGE_S = 30.0
LEFT_S = 900.0  # that a report of a node that did not come may be old
SPREAD_S = 90.0  # that nodes may be apart, beyond what a check may take


@dataclass(frozen=True)
class Wanted:
    """What the job's checks need to know."""

    canaries: Path  # a folder below the run folder
    reports: Path | None  # the folder of `<node>.json`; None: they are not written
    num_gpus: int  # on each node; 0: CPU
    meet_s: float  # from this process' start of the meeting until everyone has come
    all_reduce_s: float  # 0: none is tried


@dataclass(frozen=True)
class Verdict:
    """What the nodes of a job have found, in the order of ranks; on the first node also of those that did not come."""

    reports: tuple[NodeReport, ...]
    num_nodes: int
    has_met: bool = True  # False: this node knows of no other

    @property
    def is_ok(self) -> bool:
        return (
            len(self.reports) == self.num_nodes
            and all(report.is_ok for report in self.reports)
            and not self.shared_failures
        )

    @property
    def shared_failures(self) -> list[str]:
        """What failed between nodes that are in order by themselves."""
        shared = [
            check for report in self.reports for check in report.checks if check.status == FAIL and check.is_shared
        ]
        return list(dict.fromkeys(f"{check.name}: {check.found}; {check.advice}" for check in shared))


def examine_job(place: Place, wanted: Wanted, look: Callable[[], NodeReport]) -> Verdict:
    """Meet, `look` at this node, then at the others, and write `<node>.json` into `wanted.reports`.

    A node writes its own before the last exchange; then the first one writes all, with what it alone knows: who did not
    come, how the clocks differ, whose packages are other ones.
    """
    word = secrets.token_hex(8)
    wrong = shared_folder.write(wanted.canaries, place.node, word)
    try:
        with meet(place, wanted.meet_s) as meeting:
            verdict = _examine_together(place, wanted, look, meeting, (word, wrong))
    except ResourceError as error:
        return _alone(place, wanted, look(), str(error))
    if place.is_first:
        _write(wanted, verdict.reports)
    return verdict


def _examine_together(
    place: Place, wanted: Wanted, look: Callable[[], NodeReport], meeting: Meeting, written: tuple[str, str]
) -> Verdict:
    """`written`: this node's shared_folder, and what went wrong when it was written."""
    word, wrong = written
    words = {place.nodes[rank]: said for rank, said in meeting.exchange(word, EXCHANGE_S).items()}
    report = look()
    sights = meeting.exchange(
        [] if wrong else shared_folder.seen(wanted.canaries, words, EXCHANGE_S / 2), EXCHANGE_S + SPREAD_S
    )
    names = {place.nodes[rank]: seen for rank, seen in sights.items()}
    shared = shared_folder.judge(place.nodes, names, wanted.canaries)[place.node]
    report.checks.append(Check(shared_folder.NAME, FAIL, wrong, shared.advice) if wrong else shared)
    if wanted.all_reduce_s > 0:
        report.checks += _all_reduce(place, wanted, meeting)
    _write(wanted, [report])
    gathered = meeting.exchange(report.to_json(), collective.longest_s(wanted.all_reduce_s) + EXCHANGE_S)
    shared_folder.remove(wanted.canaries, place.node)
    return _verdict(place, wanted, gathered, meeting.offsets)


def _all_reduce(place: Place, wanted: Wanted, meeting: Meeting) -> list[Check]:
    """On the node alone; then over all nodes on which that went well, since another one would only make them wait; and
    if that fails, between neighbours. Every node comes to each exchange, whether it takes part in what is tried or
    not."""
    longest = collective.longest_s(wanted.all_reduce_s) + EXCHANGE_S
    mine = collective.check_node(place, wanted.num_gpus, wanted.all_reduce_s)
    alone = meeting.exchange(mine.status, longest)
    if place.size == 1:
        return [mine]
    good = [node for rank, node in enumerate(place.nodes) if alone.get(rank) == OK]
    bad = [node for node in place.nodes if node not in good]
    if len(good) < 2 or place.nodes[0] not in good:
        return [mine, Check(collective.GLOBAL, WARN, f"not tried, for {named(bad)}")]
    together = Check(collective.GLOBAL, WARN, "not tried here")
    if place.node in good:
        together = collective.check_job(place, good, wanted.num_gpus, wanted.all_reduce_s)
        together = replace(together, found=f"{together.found} (without {named(bad)})") if bad else together
    statuses = meeting.exchange(together.status, longest)
    if FAIL in statuses.values() and len(good) >= pairs.LEAST:

        def try_pair(between: Place, pair: pairs.Pair) -> Check:
            return collective.check_pair(between, pair, wanted.num_gpus, wanted.all_reduce_s)

        faults = pairs.find_fault(place, meeting, good, try_pair, longest)
        together = pairs.blamed(together, place.node, faults) if together.status == FAIL else together
    return [mine, together]


def _write(wanted: Wanted, reports: Sequence[NodeReport]) -> None:
    for report in reports if wanted.reports else ():
        assert wanted.reports is not None, "looked at above"
        report.write(wanted.reports)


def _verdict(place: Place, wanted: Wanted, gathered: Mapping[int, Any], offsets: Mapping[int, float]) -> Verdict:
    reports = {rank: NodeReport.from_json(data) for rank, data in gathered.items()}
    if place.is_first and place.size > 1:
        for rank, node in enumerate(place.nodes):
            report = reports.setdefault(rank, _absentee(node, wanted.reports))
            if rank in gathered:
                report.checks.append(Check(MEETING, OK, "came"))
            if rank in offsets and rank in gathered:
                report.checks.append(check_clock(offsets[rank]))
        check_same(list(reports.values()))
    return Verdict(tuple(reports[rank] for rank in sorted(reports)), place.size)


def check_clock(offset_s: float) -> Check:
    """A node's clock against the first one's."""
    if abs(offset_s) < CLOCK_WARN_S:
        return Check(CLOCKS, OK, "within a second")
    advice = "set its clock (chronyc makestep): files and deadlines of several nodes are compared"
    return Check(
        CLOCKS, FAIL if abs(offset_s) >= CLOCK_FAIL_S else WARN, f"{offset_s:+.1f} s from the first node's", advice
    )


def check_same(reports: Sequence[NodeReport]) -> None:
    """Add to each report whether its facts are those of most nodes; of equally many, those of the first."""
    facts = sorted({name for report in reports for name in report.facts})
    usual = {}
    for name in facts:
        values = [report.facts[name] for report in reports if name in report.facts]
        usual[name] = max(dict.fromkeys(values), key=values.count)
    for report in reports:
        if not report.facts:
            continue
        others = [
            f"{name} {report.facts.get(name, 'none')}, elsewhere {usual[name]}"
            for name in facts
            if report.facts.get(name) != usual[name]
        ]
        if others:
            report.checks.append(
                Check(
                    SAME, FAIL, "; ".join(others), "install the same packages on all nodes, or use one container image"
                )
            )
        else:
            report.checks.append(Check(SAME, OK, ", ".join(f"{name} {value}" for name, value in usual.items())))


def _absentee(node: str, reports: Path | None) -> NodeReport:
    """Of a node that did not come: what it left itself a short while ago, as one with wrong settings does, and that it
    did not come."""
    left = NodeReport.read(reports / f"{node}.json", LEFT_S) if reports else None
    advice = "is it up, can it reach the first node's port, does its container start? Its own output says more"
    absent = Check(MEETING, FAIL, f"{node} did not come, or went away in the middle of the checks", advice)
    return (
        NodeReport(node, [absent])
        if left is None or left.is_ok
        else NodeReport(node, [*left.checks, absent], left.facts)
    )


def _alone(place: Place, wanted: Wanted, report: NodeReport, reason: str) -> Verdict:
    """Nobody could be met. Where the first node's canary is there it is up, and the fault is taken to be this node's;
    else the first's."""
    is_up = shared_folder.is_fresh(wanted.canaries, place.nodes[0], LEFT_S)
    fault = place.node if place.is_first or is_up else place.nodes[0]
    report.checks.append(Check(MEETING, FAIL if fault == place.node else WARN, reason, f"look at {fault} first"))
    _write(wanted, [report])
    shared_folder.remove(wanted.canaries, place.node)
    if fault == place.node:
        return Verdict((report,), place.size, has_met=False)
    first = _absentee(fault, wanted.reports)
    if wanted.reports and not (wanted.reports / f"{fault}.json").exists():
        first.write(wanted.reports)
    return Verdict((first, report), place.size, has_met=False)
