"""`brorl render` makes a job script of a configuration, with its settings and its code frozen in the run folder."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from nemo_brorl.config.load import load_config
from nemo_brorl.launcher.cloud import KINDS, cloud_job, rendered
from nemo_brorl.launcher.code_snapshot import CodeSnapshot, code_root
from nemo_brorl.launcher.command_line import JobRequest, job_parser, read_request
from nemo_brorl.launcher.frozen import freeze, shell_command
from nemo_brorl.launcher.live import refuse_live
from nemo_brorl.launcher.prepare import Prepared, check_job, check_plan, read_job
from nemo_brorl.launcher.site import load_site

EXAMPLES = """examples:
  brorl render --config-name brorl_64gpu --site mine --dry-run
  brorl render --config-name brorl_7b --partition gpu --account me --time 24:00:00 --run /shared/runs/first
  brorl render --to rayjob --config-name brorl_64gpu --container ghcr.io/me/brorl:gpu --volume runs:/shared \\
      --run /shared/runs/first | kubectl apply -f -
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
    parser.add_argument("--to", choices=KINDS, default="slurm", help="print a job for KubeRay or SkyPilot instead")
    parser.add_argument(
        "--volume", metavar="NAME:/FOLDER", help="what all nodes share there, with the run folder on it"
    )
    options = parser.parse_intermixed_args(list(argv))
    request = read_request("render", argv, options)
    if options.to != "slurm":
        sys.stdout.write(render_for_cloud(request, options.to, options.volume))
        return 0
    prepared = make_job(request, is_dry=options.dry_run)
    if options.dry_run:
        sys.stdout.write(prepared.script)
    else:
        folders = prepared.job.folders
        sys.stdout.write(f"{folders.script}\n")
        sys.stderr.write(f"submit it: brorl submit --again {folders.run}\n")
    return 0


def render_for_cloud(request: JobRequest, kind: str, volume: str | None) -> str:
    """The file for KubeRay or SkyPilot, its settings checked and its memory planned. Raises BroRLError."""
    config = load_config(request.config_name, request.overrides, request.config_path)
    site = load_site(request.site_name, request.site_settings)
    job = cloud_job(config, site, volume)
    if request.with_plan:
        for note in check_plan(config, site, request):
            sys.stderr.write(f"note: {note}\n")
    return rendered(job, kind)


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
