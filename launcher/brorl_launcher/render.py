"""Render a job script from a configuration, with its settings and its code frozen in the run folder.

All checks pass before anything is written. The cheapest ones come first.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from brorl_launcher import slurm
from brorl_launcher.cloud import KINDS, cloud_job, render_cloud_job
from brorl_launcher.code_snapshot import CodeSnapshot, Revision, join_names
from brorl_launcher.command_line import JobRequest, job_parser, read_request
from brorl_launcher.find_run import refuse_live
from brorl_launcher.frozen import absolute_paths, check_yaml, freeze, shell_command
from brorl_launcher.job_script import JobPlan, check_name, job_script
from brorl_launcher.launch_folder import Folders
from brorl_launcher.packages import code_root
from brorl_launcher.planner.hardware import gpu_hardware
from brorl_launcher.planner.plan import make_plan
from brorl_launcher.planner.proposals import advice_to_fit
from brorl_launcher.site import Site, load_site, seconds_of
from nemo_brorl.config.load import load_config
from nemo_brorl.config.model_rules import check_model_rules
from nemo_brorl.config.named_code import check_names
from nemo_brorl.config.same_run import check_same_run
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import write_error, write_out
from nemo_brorl.core.errors import ConfigError, ModelError, ResourceError

EXAMPLES = """examples:
  brorl render --config-name brorl_64gpu --site mine --dry-run
  brorl render --config-name brorl_7b --partition gpu --account me --time 24:00:00 --run /shared/runs/first
  brorl render --to rayjob --config-name brorl_64gpu --container ghcr.io/me/brorl:gpu --volume runs:/shared \\
      --run /shared/runs/first | kubectl apply -f -
  brorl render --to skypilot --config-name brorl_64gpu --container ghcr.io/me/brorl:gpu --volume runs:/shared \\
      --run /shared/runs/first > task.yaml && sky launch task.yaml
  brorl render --config-name brorl --nodes 4 policy.model=/shared/models/mine rollouts.num_per_prompt=256 --site mine

Writes RUN/launch/: job.sbatch, config.yaml (all settings), code/ (as it is now), revision.txt, command.txt. Then
  sbatch RUN/launch/job.sbatch                   or
  brorl submit --again RUN          which remembers the job for status and attach.
"""


def main(argv: Sequence[str]) -> int:
    """Run `brorl render`, which writes a Slurm job or prints it with --dry-run, and return the exit code.

    Raises BroRLError when a check refuses the job.
    """
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
        write_out(render_for_cloud(request, options.to, options.volume))
        return 0
    prepared = make_job(request, is_dry=options.dry_run)
    if options.dry_run:
        write_out(prepared.script)
    else:
        folders = prepared.job.folders
        write_out(f"{folders.script}\n")
        write_error(f"submit it: brorl submit --again {folders.run}\n")
    return 0


def render_for_cloud(request: JobRequest, kind: str, volume: str | None) -> str:
    """Return the job file for KubeRay or SkyPilot, after checking the settings and planning the memory of the run.

    Raises BroRLError when a setting is wrong or the run does not fit.
    """
    config = load_config(request.config_name, request.overrides, request.config_path)
    site = load_site(request.site_name, request.site_settings)
    check_names(config, is_elsewhere=True)
    job = cloud_job(config, site, volume)
    if request.with_plan:
        for note in check_plan(config, site, request):
            write_error(f"note: {note}\n")
    return render_cloud_job(job, kind)


def make_job(request: JobRequest, is_dry: bool) -> PreparedJob:
    """Check a training job, print notes about it to standard error, and return it with its job script.

    Unless `is_dry`, also writes the launch folder of the run. Raises BroRLError when a check refuses the job.
    """
    job = read_job(request)
    if not is_dry:
        refuse_live(job.folders)
    with CodeSnapshot(code_root(), leave_out=job.folders.run) as code:
        prepared = check_job(job, code, request)
        for note in prepared.notes:
            write_error(f"note: {note}\n")
        if not is_dry:
            command = shell_command(request.arguments, Path.cwd())
            freeze(job.folders, job.config, code, prepared.script, command)
    return prepared


@dataclass(frozen=True)
class PreparedJob:
    """A job that has passed all checks of this machine, with its script."""

    job: JobPlan
    script: str
    notes: tuple[str, ...]  # messages for the user


def read_job(request: JobRequest) -> JobPlan:
    """Return the requested training job after checking its settings.

    Raises ConfigError for a wrong setting, ModelError for a missing or broken model folder, and CheckpointError when
    the run folder holds a run that these settings may not resume.
    """
    config = absolute_paths(load_config(request.config_name, request.overrides, request.config_path), Path.cwd())
    site = load_site(request.site_name, request.site_settings)
    folders = Folders(Path(config.exp_manager.explicit_log_dir))
    check_name(folders.run)
    check_yaml(config)
    if not config.exp_manager.resume_if_exists:
        raise ConfigError(
            "exp_manager.resume_if_exists=false would keep a requeued job from going on with its own run: leave it "
            "true, and choose a new exp_manager.explicit_log_dir for a new run"
        )
    if site.container is None or Path(config.policy.model).is_dir():
        check_model_rules(config)
    check_same_run(config)
    interpreter = site.python or (None if site.container else sys.executable)
    folders_of_job = [str(code_root()), *site.environment.get("PYTHONPATH", "").split(os.pathsep)]
    check_names(config, is_elsewhere=interpreter != sys.executable, folders=folders_of_job)
    return JobPlan(folders, config, site, interpreter, Revision(None))


def check_job(job: JobPlan, code: CodeSnapshot, request: JobRequest) -> PreparedJob:
    """Check a job against the memory planner, git and Slurm, and return it with its job script and notes.

    Raises ConfigError for code that is not committed under --require-clean, and ResourceError for a job that cannot
    run.
    """
    notes = list(_unseen_paths(job.config, job.site))
    if request.needs_clean and (code.revision.changed or code.revision.commit is None):
        raise ConfigError(
            f"--require-clean: the code is {code.revision}: commit it, or leave the option out to freeze it as it is"
        )
    if code.revision.changed:
        notes.append(f"the code differs from its commit and is frozen as it is: {code.revision}")
    if code.revision.left_out:
        notes.append(
            f"new to git and not frozen, because only new files of packages and conf/ are: "
            f"{join_names(code.revision.left_out)}. `git add` what the job needs, or put it on PYTHONPATH of every node"
        )
    limit_s = job.config.trainer.time_limit_s
    if limit_s is not None and limit_s < seconds_of(job.site.time) - job.site.signal_s:
        notes.append(
            f"trainer.time_limit={job.config.trainer.time_limit} ends each job before its time of {job.site.time}:"
            " set trainer.time_limit=null to use all of it"
        )
    if request.with_plan:
        notes += check_plan(job.config, job.site, request)
    job = replace(job, revision=code.revision)
    script = job_script(job)
    if request.with_test and slurm.has_slurm():
        notes.append(_ask_slurm(job.site, script))
    return PreparedJob(job, script, tuple(notes))


def check_plan(config: BroRLConfig, site: Site, request: JobRequest) -> list[str]:
    """Return the memory planner's summary of a run on GPUs, as a list of notes.

    The list is empty for a run on CPU. Raises ResourceError when the run does not fit. The message names changes that
    would make it fit.
    """
    if config.trainer.num_gpus == 0:
        return []  # `check_memory` looks at the machine when the run starts
    hardware = gpu_hardware(
        site.gpu_kind, config.trainer.num_nodes, config.trainer.gpus_per_node, site.gpu_memory_gib, site.host_memory_gib
    )
    try:
        plan = make_plan(config, hardware)
    except ModelError as error:
        return [f"not planned: {error}"]
    if not plan.fits:
        path = [] if request.config_path is None else ["--config-path", str(request.config_path)]
        command = shlex.join(["plan", "--config-name", request.config_name, *path, *request.overrides])
        raise ResourceError(
            f"this run does not fit: {plan.refusal}; {advice_to_fit(plan)}. `brorl {command}` has the terms; "
            "`--no-plan` renders it anyway"
        )
    return [plan.summary()]


def _unseen_paths(config: BroRLConfig, site: Site) -> Iterator[str]:
    """Yield a note for each path in the settings that no mount of the container covers."""
    if site.container is None:
        return
    kl = config.algorithm.kl
    paths = {"policy.model": config.policy.model, "algorithm.kl.teacher": kl.teacher or ""}
    paths |= {f"algorithm.kl.teachers.{task}": name for task, name in kl.teachers.items()}
    paths["data.path"] = config.data.path or ""
    paths["data.held_out_path"] = config.data.held_out_path or ""
    for index, domain in enumerate(config.data.domains):
        paths[f"data.domains.{index}.path"] = domain.path or ""
        paths[f"data.domains.{index}.held_out_path"] = domain.held_out_path or ""
    mounted = []  # paths inside the container
    for mount in site.mounts:
        outside, _, rest = mount.partition(":")
        mounted.append(rest.partition(":")[0] or outside)
    for name, value in paths.items():
        if value.startswith("/") and not any(Path(value).is_relative_to(folder) for folder in mounted):
            yield (
                f"{name}={value} is under none of the mounts: the job sees it only if the image has it (--mount "
                f"{Path(value).parent})"
            )


def _ask_slurm(site: Site, script: str) -> str:
    """Return Slurm's reply to a test submission of the job.

    Raises ConfigError for an unknown partition, ResourceError when Slurm would refuse the job.
    """
    try:
        known = slurm.partition_names()
        wanted = filter(None, (site.partition or "").split(","))
        unknown = [name for name in wanted if name not in known]
        if known and unknown:
            raise ConfigError(f"partition={','.join(unknown)}: this cluster has {', '.join(known)}")
        return f"Slurm would take it: {slurm.test_only(script)}"
    except slurm.UnreachableError as error:
        return f"Slurm could not be asked whether it takes the job: {error}"
