"""`brorl doctor [--job] [--json FILE] [--config-name NAME] [KEY=VALUE ...]` checks whether a run has all that it needs.

  --json FILE           write the results to FILE
  --ports LIST          ports that must be free: 6379,20000-20010
  --all-reduce SECONDS  longest time of an all-reduce (60); 0: try none
  --job                 check all nodes of a Slurm job, one task each: srun --ntasks-per-node=1 brorl doctor --job …
  --report FOLDER       with --job: folder in which each node writes NODE.json (default: doctor/ in the run folder)
  --address HOST[:PORT] with --job: meeting point of the nodes (default: the first node's name, port 12377; the next
                        three ports are for all-reduces)
  --deadline SECONDS    with --job: longest wait until all nodes have come (120)

Exit code: 0 nothing refuses the run, though there may be warnings; 2 refused, or a mistake in the input.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from brorl_launcher.doctor import data_files, gpus, machine, model_files, sandbox, versions
from brorl_launcher.doctor.job import DoctorVerdict, JobCheckSettings, examine_job
from brorl_launcher.doctor.rendezvous import NodeRank, own_name, rank_in_job, single_node
from brorl_launcher.doctor.report import (
    FAIL,
    STYLES,
    WARN,
    Check,
    NodeReport,
    advice_lines,
    table_header,
    table_rows,
    write_json,
)
from nemo_brorl.config.load import CommandLine, load_config, parse_command_line
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console, write_error
from nemo_brorl.core.errors import BroRLError, ConfigError
from nemo_brorl.scoring.grader_settings import configure

REFUSED = 2
MAX_PORT = 65535
FOLDER = "doctor"  # folder name in the run folder


def main(argv: Sequence[str]) -> int:
    """Check this node or Slurm job for a training run, print and write the results, and return the exit code.

    0: no check refuses the run, though there may be warnings. 2: refused, or a mistake in the input. 1: a bug.
    """
    options, rest = parse(argv)
    line = parse_command_line(rest, "doctor", (__doc__ or "").strip())
    try:
        this = single_node()
        if options.job:
            this = rank_in_job(os.environ, options.address)
        verdict = examine(line, options, this)
    except BroRLError as error:
        write_error(f"error: {error}\n")
        if options.job and options.report:  # the first node reads from it why this node did not come
            check = Check("settings", FAIL, str(error))
            report = NodeReport(own_name(os.environ), [check])
            report.write(options.report)
        return REFUSED
    if options.json:
        write_json(options.json, to_json(verdict))
    if this.is_first or not verdict.has_joined:
        show(verdict, this.size)
    return 0 if verdict.is_ok else REFUSED


def examine_node(
    config: BroRLConfig,
    line: CommandLine,
    this: NodeRank,
    ports: Sequence[int],
) -> NodeReport:
    """Check this node's hardware, software, data and models, and return the report.

    It takes about ten seconds where nothing is wrong, and every check has a deadline.
    """
    model, shape = model_files.check_model(config, this.size)
    checks = [machine.check_python()]
    checks += machine.check_nodes(config, this.size)
    checks += versions.check_packages(config)
    if config.trainer.num_gpus > 0:
        checks += gpus.check_gpus(config)
        checks.append(machine.check_compiler())
    checks.append(machine.check_memory(config, shape))
    checks += machine.check_disks(config, shape)
    checks.append(machine.check_private())
    checks += machine.check_limits(config)
    if config.trainer.num_nodes > 1 and config.trainer.num_gpus > 0:
        checks += machine.check_infiniband()
    if ports:
        checks.append(machine.check_ports(ports))
    checks.append(model)
    checks += model_files.check_teachers(config, shape, this.size)
    checks += data_files.check_own_code(config)
    has_questions = not data_files.is_fine_tuning(line)
    checks += data_files.check_data(config) if has_questions else ()
    checks += data_files.check_inputs(line)
    checks += data_files.check_constants(config) if has_questions else ()
    checks += sandbox.check_sandbox(config)
    return NodeReport(this.node, checks, versions.version_facts())


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options of `brorl doctor`, and the remaining arguments, which are settings of the run."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--job", action="store_true")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--address")
    parser.add_argument("--ports", default="")
    parser.add_argument("--deadline", type=float, default=120.0)
    parser.add_argument("--all-reduce", type=float, default=60.0)
    return parser.parse_known_args(argv)


def read_ports(text: str) -> list[int]:
    """Return the port numbers in a list such as `6379,20000-20010`.

    Raises ConfigError for a list of another form.
    """
    ports: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        last = last or first
        found = range(0)
        if first.isdecimal() and last.isdecimal():
            found = range(int(first), int(last) + 1)
        if not found or found[0] == 0 or found[-1] > MAX_PORT:
            raise ConfigError(f"--ports {text}: {part} is no port or range of ports; pass for example 6379,20000-20010")
        ports += found
    return ports


def examine(
    line: CommandLine,
    options: argparse.Namespace,
    this: NodeRank,
) -> DoctorVerdict:
    """Check this node, or all nodes of the Slurm job that it belongs to, and return the verdict.

    Raises ConfigError for wrong input.
    """
    ports = read_ports(options.ports)
    config = load_config(*line)
    configure(config)
    folder = Path(config.exp_manager.explicit_log_dir).absolute() / FOLDER
    reports = options.report
    if reports is None and options.job:
        reports = folder
    gpus = config.trainer.gpus_per_node if config.trainer.num_gpus else 0
    wanted = JobCheckSettings(folder, reports, gpus, options.deadline, options.all_reduce)
    return examine_job(this, wanted, lambda: examine_node(config, line, this, ports))


def to_json(verdict: DoctorVerdict) -> dict[str, object]:
    """Return the results of all checks as the JSON object for `--json`.

    It has `ok`, the reports of the `nodes`, and the failures `between` them.
    """
    return {
        "ok": verdict.is_ok,
        "nodes": [report.to_json() for report in verdict.reports],
        "between": verdict.shared_failures,
    }


def show(verdict: DoctorVerdict, num_nodes: int) -> None:
    """Print the checks of all nodes as a table, advice on failures and warnings, and the verdict in one line."""
    console, reports = Console(), verdict.reports
    header = table_header(reports)
    rows = table_rows(reports)
    console.table(header, rows, text_columns=range(len(header)), styles=STYLES)
    found = advice_lines(reports)
    if found:
        console.line("\nwhat to do:")
        for text in found:
            console.line(f"  {text}")
    console.line(f"\n{conclusion(verdict, num_nodes)}")


def conclusion(verdict: DoctorVerdict, num_nodes: int) -> str:
    """Return one line that says whether the checks of all nodes allow the run to start."""
    names: dict[str, set[str]] = {WARN: set(), FAIL: set()}
    for report in verdict.reports:
        for check in report.checks:
            names.setdefault(check.status, set()).add(check.name)
    whole = f"{num_nodes} nodes" if num_nodes > 1 else "this machine"
    if verdict.is_ok:
        warnings = f", {len(names[WARN])} warnings" if names[WARN] else ""
        return f"ok: {whole} can run this{warnings}"
    if num_nodes == 1:
        return f"refused: {len(names[FAIL])} checks failed"
    bad = [report.node for report in verdict.reports if not report.is_ok]
    who = f": {', '.join(bad)}" if bad else ""
    return f"refused: {len(bad) or num_nodes} of {whole} cannot run this{who}"
