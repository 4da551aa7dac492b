"""`brorl doctor` from its command line to its exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nemo_brorl.cluster.doctor.examination import examine_node
from nemo_brorl.cluster.doctor.job import Verdict, Wanted, examine_job
from nemo_brorl.cluster.doctor.node_rank import Place, here, in_job, own_name
from nemo_brorl.cluster.doctor.report import FAIL, WARN, Check, NodeReport, advices, table, write_json
from nemo_brorl.config.derived import num_gpus
from nemo_brorl.config.load import CommandLine, load_config, parse_command_line
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import BroRLError, ConfigError

REFUSED = 2
FOLDER = "doctor"  # in the run folder


def run(argv: Sequence[str], description: str) -> int:
    """Check, print, write. 0: nothing refuses (there may be warnings), 2: refused, or a mistake in the input."""
    options, rest = _parser().parse_known_args(argv)
    line = parse_command_line(rest, "doctor", description)
    try:
        place = in_job(os.environ, options.address) if options.job else here()
        ports = read_ports(options.ports)
        verdict = _examine(line, options, place, ports)
    except BroRLError as error:
        sys.stderr.write(f"error: {error}\n")
        if options.job and options.report:  # so that the first node can tell why this one did not come
            NodeReport(own_name(os.environ), [Check("settings", FAIL, str(error))]).write(options.report)
        return REFUSED
    if options.json:
        write_json(options.json, to_json(verdict))
    if place.is_first or not verdict.has_met:
        show(verdict, place)
    return 0 if verdict.is_ok else REFUSED


def read_ports(text: str) -> list[int]:
    """`6379,20000-20010`, number by number. Raises ConfigError."""
    ports: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit() or not 0 < int(first) <= int(last or first) < 65536:
            raise ConfigError(
                f"--ports {text}: {part} is no port or range of ports; write for example 6379,20000-20010"
            )
        ports += range(int(first), int(last or first) + 1)
    return ports


def to_json(verdict: Verdict) -> dict[str, object]:
    """For `--json`: `ok`, the `nodes`, and what is wrong `between` them."""
    return {
        "ok": verdict.is_ok,
        "nodes": [report.to_json() for report in verdict.reports],
        "between": verdict.shared_failures,
    }


def show(verdict: Verdict, place: Place) -> None:
    """The table, what to do, and the verdict in one line."""
    console, reports = Console(), verdict.reports
    for text in table(reports):
        console.line(text)
    if found := advices(reports):
        console.line("\nwhat to do:")
        for text in found:
            console.line(f"  {text}")
    console.line(f"\n{_last_line(verdict, place)}")


def _last_line(verdict: Verdict, place: Place) -> str:
    names = {
        status: {check.name for report in verdict.reports for check in report.checks if check.status == status}
        for status in (WARN, FAIL)
    }
    whole = f"{place.size} nodes" if place.size > 1 else "this machine"
    if verdict.is_ok:
        warnings = f", {len(names[WARN])} warnings" if names[WARN] else ""
        return f"ok: {whole} can run this{warnings}"
    bad = [report.node for report in verdict.reports if not report.is_ok]
    who = f": {', '.join(bad)}" if bad and place.size > 1 else ""
    return (
        f"refused: {len(bad) or place.size} of {whole} cannot run this{who}"
        if place.size > 1
        else f"refused: {len(names[FAIL])} checks failed"
    )


def _examine(line: CommandLine, options: argparse.Namespace, place: Place, ports: Sequence[int]) -> Verdict:
    config = load_config(*line)
    folder = Path(config.exp_manager.explicit_log_dir).absolute() / FOLDER
    reports = options.report or (folder if options.job else None)
    wanted = Wanted(
        folder, reports, num_gpus(config) and config.trainer.gpus_per_node, options.deadline, options.all_reduce
    )
    return examine_job(place, wanted, lambda: examine_node(config, place, ports))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--job", action="store_true")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--address")
    parser.add_argument("--ports", default="")
    parser.add_argument("--deadline", type=float, default=120.0)
    parser.add_argument("--all-reduce", type=float, default=60.0)
    return parser
