"""Write the text of a job script: requests to Slurm, variables for `job.sh`, an early exit for a finished chain."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from brorl_launcher.code_snapshot import Revision, join_names
from brorl_launcher.launch_folder import Folders
from brorl_launcher.site import Site
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError

MARGIN_S = 60  # margin after the driver's grace: Slurm counts in minutes, and Ray has to end
CHAIN_VARIABLE = "BRORL_CHAIN_AFTER"  # variable with the previous job of the chain
WRITABLE = re.compile(r"[\w./+@-]+", re.ASCII)  # Slurm, the shell, pyxis and Hydra take these as they are


@dataclass(frozen=True)
class JobPlan:
    """The contents of a job script: the run's folders, settings, site, interpreter and code revision."""

    folders: Folders
    config: BroRLConfig
    site: Site
    python: str | None  # None: the container's python3
    revision: Revision


def job_script(job: JobPlan) -> str:
    """Return the text of the Slurm job script of a training run.

    Raises ConfigError for a run folder whose name Slurm would misread.
    """
    check_name(job.folders.run)
    lines = ["#!/bin/bash", *_head(job), *(f"#SBATCH {option}" for option in _options(job)), ""]
    lines += job.site.setup
    lines += [f"export {name}={_quoted(value)}" for name, value in _environment(job)]
    lines += ['export BRORL_JOB_FOLDER="$BRORL_RUN/jobs/$SLURM_JOB_ID" # logs and reports of this job', ""]
    return "\n".join([*lines, *_ends_of_chain(job), 'source "$BRORL_ROOT/launcher/brorl_launcher/job/job.sh" "$@"', ""])


def _head(job: JobPlan) -> Iterator[str]:
    run = job.folders.run
    yield (
        f"# Rendered by `brorl render` on {time.strftime('%Y-%m-%d %H:%M %Z')}; docs/howto/cluster.md tells "
        "what happens in it."
    )
    yield f"# Code:     {job.revision}"
    if job.revision.left_out:
        yield f"# Left out: new files {join_names(job.revision.left_out)}"
    yield f"# Settings: {job.folders.config}; arguments of this script are Hydra overrides"
    yield f"# Again:    sbatch {_quoted(str(job.folders.script))}, or brorl submit --again {_quoted(str(run))}"


def _options(job: JobPlan) -> Iterator[str]:
    """Yield the sbatch options of a training job, in the order in which a person would write them."""
    config, site = job.config, job.site
    yield f"--job-name={_job_name(job.folders.run)}"
    for name in ("partition", "account", "qos", "constraint", "reservation", "exclude"):
        value = getattr(site, name)
        if value is not None:
            yield f'--{name}="{value}"' if name == "constraint" else f"--{name}={value}"
    yield f"--nodes={config.trainer.num_nodes + site.spares}"
    yield "--ntasks-per-node=1"
    if site.cpus_per_node is not None:
        yield f"--cpus-per-task={site.cpus_per_node}"
    yield from _gpus(config.trainer.gpus_per_node, site)
    if site.memory is not None:
        yield f"--mem={site.memory}"
    if site.exclusive:
        yield "--exclusive"
    yield f"--time={site.time}"
    yield f"--signal=B:USR1@{site.signal_s}"
    yield "--requeue" if site.requeue else "--no-requeue"
    # No --no-kill: with it a job whose first node dies would stay, without its script, until the time limit.
    yield "--open-mode=append"  # otherwise a requeue would empty the log
    yield f"--output={job.folders.run}/logs/slurm-%j.log"
    if site.mail_user is not None:
        yield f"--mail-user={site.mail_user}"
        yield f"--mail-type={site.mail_type}"
    yield from site.options


def _gpus(number: int, site: Site) -> Iterator[str]:
    counted = f"{site.gpu_type}:{number}" if site.gpu_type else str(number)
    if number and site.gpu_request == "gres":
        yield f"--gres=gpu:{counted}"
    elif number and site.gpu_request == "gpus_per_node":
        yield f"--gpus-per-node={counted}"


def _environment(job: JobPlan) -> Iterator[tuple[str, str]]:
    """Yield the environment variables that `launcher/brorl_launcher/job/job.sh` reads, then the cluster site's own."""
    folders, site = job.folders, job.site
    yield "BRORL_ROOT", str(folders.code)
    yield "BRORL_CONFIG", str(folders.config)
    yield "BRORL_RUN", str(folders.run)
    if job.python is not None:
        yield "BRORL_PYTHON", job.python
    if site.container is not None:
        yield "BRORL_CONTAINER", site.container
        yield "BRORL_MOUNTS", ",".join(mount if ":" in mount else f"{mount}:{mount}" for mount in site.mounts)
    yield "BRORL_SPARES", str(site.spares)
    if site.max_restarts is not None:
        yield "BRORL_MAX_RESTARTS", str(site.max_restarts)
    yield "BRORL_GRACE_S", str(max(site.signal_s - MARGIN_S, site.signal_s // 2))
    yield from site.environment.items()


def _ends_of_chain(job: JobPlan) -> Iterator[str]:
    """Yield the shell lines by which a job in a chain of Slurm jobs ends early.

    It ends when the run has its last checkpoint (job arguments still continue the run), or when the job before it found
    a mistake in the input.
    """
    last = job.config.trainer.max_steps
    yield f'if (($# == 0)) && [[ -e "$BRORL_RUN/checkpoints/step_{last}/COMPLETE" ]]; then'
    yield f'  echo "the run has its last checkpoint, step {last}: nothing to do"'
    yield "  exit 0"
    yield "fi"
    yield 'mkdir -p "$BRORL_JOB_FOLDER"'
    yield """trap '[[ $? != 2 ]] || touch "$BRORL_JOB_FOLDER/refused"' EXIT # 2: a mistake in the input"""
    yield f'if [[ -n ${{{CHAIN_VARIABLE}:-}} && -e "$BRORL_RUN/jobs/${CHAIN_VARIABLE}/refused" ]]; then'
    yield (
        f'  echo "job ${CHAIN_VARIABLE}, before this one, found a mistake in its input: see '
        f'$BRORL_RUN/logs/slurm-${CHAIN_VARIABLE}.log"'
    )
    yield "  exit 2"
    yield "fi"
    yield ""


def check_name(run: Path) -> None:
    """Raise ConfigError for a run folder whose path Slurm, the shell, pyxis or Hydra would not take as it is."""
    if not WRITABLE.fullmatch(str(run)):
        wrong = " ".join(sorted({repr(character) for character in str(run) if not WRITABLE.fullmatch(character)}))
        raise ConfigError(
            f"exp_manager.explicit_log_dir={run} has {wrong} in it: set a folder of letters, digits and . _ + @ -"
        )


def _job_name(run: Path) -> str:
    """Return the run folder's name in characters that `squeue` prints unchanged."""
    return re.sub(r"[+@]", "_", run.name) or "brorl"


def _quoted(text: str) -> str:
    return shlex.quote(text)
