"""`brorl render` makes a job script of a configuration, with its settings and its code frozen in the run folder."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from nemo_brorl.launcher.code_snapshot import CodeSnapshot, code_root
from nemo_brorl.launcher.command_line import JobRequest, job_parser, read_request
from nemo_brorl.launcher.frozen import freeze, shell_command
from nemo_brorl.launcher.live import refuse_live
from nemo_brorl.launcher.prepare import Prepared, check_job, read_job

EXAMPLES = """examples:
  brorl render --config-name brorl_64gpu --site mine --dry-run
  brorl render --config-name brorl_7b --partition gpu --account me --time 24:00:00 --run /shared/runs/first
  brorl render --config-name brorl --nodes 4 policy.model=/shared/models/mine rollouts.num_per_prompt=256 --site mine

Writes RUN/launch/: job.sbatch, config.yaml (all settings), code/ (as it is now), revision.txt, command.txt. Then
  sbatch RUN/launch/job.sbatch                   or
  brorl submit --again RUN          which remembers the job for status and attach.
"""


def main(argv: Sequence[str]) -> int:
    """Write a job, or with --dry-run print it. Returns the exit code. Raises BroRLError."""
    parser = job_parser(
        "render", "Write a job for Slurm: the script, and the settings and the code it runs with.", EXAMPLES
    )
    parser.add_argument("--dry-run", action="store_true", help="print the script and write nothing")
    options = parser.parse_intermixed_args(list(argv))
    request = read_request("render", argv, options)
    prepared = make_job(request, is_dry=options.dry_run)
    if options.dry_run:
        sys.stdout.write(prepared.script)
    else:
        folders = prepared.job.folders
        sys.stdout.write(f"{folders.script}\n")
        sys.stderr.write(f"submit it: brorl submit --again {folders.run}\n")
    return 0


def make_job(request: JobRequest, is_dry: bool) -> Prepared:
    """Check a job, say what is to be said of it on standard error, and unless `is_dry` write it. Raises BroRLError."""
    job = read_job(request)
    if not is_dry:
        refuse_live(job.folders)
    with CodeSnapshot(code_root(), leave_out=job.folders.run) as code:
        prepared = check_job(job, code, request)
        for note in prepared.notes:
            sys.stderr.write(f"note: {note}\n")
        if not is_dry:
            command = shell_command(request.arguments, Path.cwd())
            freeze(job.folders, job.config, code, prepared.script, command)
    return prepared
