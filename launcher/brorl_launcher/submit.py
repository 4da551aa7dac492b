"""Render a job and submit it to Slurm, alone or as a chain, or resubmit a frozen one: `brorl submit`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from brorl_launcher import slurm
from brorl_launcher.command_line import job_parser, read_request
from brorl_launcher.find_run import refuse_live
from brorl_launcher.job_script import CHAIN_VARIABLE
from brorl_launcher.launch_folder import Folders, record_job
from brorl_launcher.render import make_job
from brorl_launcher.run_state import read_run
from nemo_brorl.core.console import write_out
from nemo_brorl.core.errors import ConfigError, ResourceError

MAX_CHAIN = 100
EXAMPLES = """examples:
  brorl submit --config-name brorl_64gpu --site mine
  brorl submit --config-name brorl_7b --partition gpu --time 24:00:00 --run /shared/runs/first --chain 5
  brorl submit --again /shared/runs/first               with the settings and the code that are frozen there
  brorl submit --again /shared/runs/first trainer.max_steps=3000

A chain is K jobs, each of which starts when the one before it has ended in any way. Each resumes from the last
checkpoint. Once the run has its last step, the remaining jobs end at once.
"""


def main(argv: Sequence[str]) -> int:
    """Submit one or more jobs to Slurm, print how to follow them, and return the exit code.

    Raises BroRLError when a check or Slurm refuses a job.
    """
    parser = job_parser("submit", "Render a job as `render` does, and submit it to Slurm.", EXAMPLES)
    parser.add_argument(
        "--chain",
        type=int,
        default=1,
        metavar="K",
        help="submit K jobs, each of which resumes the run after the one before (default: 1)",
    )
    parser.add_argument(
        "--again",
        type=Path,
        metavar="RUN",
        help="submit RUN/launch/job.sbatch as it is; KEY=VALUE goes to it as arguments",
    )
    options = parser.parse_intermixed_args(list(argv))
    if not 1 <= options.chain <= MAX_CHAIN:
        raise ConfigError(f"--chain {options.chain}: pass a number of jobs from 1 to {MAX_CHAIN}")
    if not slurm.has_slurm():
        raise ResourceError(
            "sbatch is not there: submit from a login node of the cluster; `brorl render` writes the job without it"
        )
    if options.again is None:
        folders, arguments = make_job(read_request("submit", argv, options), is_dry=False).job.folders, ()
    else:
        folders, arguments = _written_job(options, parser), tuple(options.overrides)
    ids = submit_chain(folders, options.chain, arguments)
    write_out(next_commands(folders, ids))
    return 0


def _written_job(options: argparse.Namespace, parser: argparse.ArgumentParser) -> Folders:
    """Return the folders of the run whose existing job script `brorl submit --again RUN` submits.

    Raises ConfigError when there is no job script, when another option would have no effect, or when the run is
    finished. Raises CheckpointError when a job of the run is queued or running.
    """
    folders = Folders(options.again.expanduser().absolute())
    refuse_live(folders)
    if not folders.script.is_file():
        raise ConfigError(
            f"--again {options.again}: there is no {folders.script}; `brorl submit --config-name NAME --run RUN` makes "
            "one"
        )
    rendering = ("again", "chain", "overrides", "no_test")
    given = [
        name for name, value in vars(options).items() if name not in rendering and value != parser.get_default(name)
    ]
    if given:
        listed = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigError(
            f"--again submits {folders.script} as it is, so {listed} would change nothing: leave it out, or edit the "
            "script"
        )
    if read_run(folders.run).is_finished and not options.overrides:
        raise ConfigError(
            f"the run in {folders.run} has its last checkpoint: to continue, set trainer.max_steps=N with a larger N"
        )
    return folders


def submit_chain(folders: Folders, number: int, arguments: Sequence[str]) -> list[str]:
    """Submit `number` jobs, each to start after the one before, and return their ids.

    Raises ResourceError when Slurm refuses one. The jobs before it stay submitted and recorded, and the message names
    them.
    """
    ids: list[str] = []
    for _ in range(number):
        after = ids[-1] if ids else None
        try:
            job = slurm.submit(folders.script, after, arguments, {CHAIN_VARIABLE: after or ""})
        except ResourceError as error:
            kept = f" {', '.join(ids)} are submitted and stay: `scancel {' '.join(ids)}` takes them back" if ids else ""
            raise ResourceError(f"{error}{kept}") from error
        record_job(folders, job, after, arguments)
        ids.append(job)
    return ids


def next_commands(folders: Folders, ids: Sequence[str]) -> str:
    """Return the lines that tell how to follow or cancel the submitted jobs."""
    run = folders.run
    rows = [
        ("job", ids[0] if len(ids) == 1 else f"{ids[0]}, then {', '.join(ids[1:])}"),
        ("run folder", str(run)),
        ("log", f"{run}/logs/slurm-{ids[0]}.log"),
        ("status", f"brorl status {run}"),
        ("attach", f"brorl attach {run}"),
        ("cancel", f"scancel {' '.join(ids)}"),
    ]
    return "".join(f"{name:<11}{value}\n" for name, value in rows)
