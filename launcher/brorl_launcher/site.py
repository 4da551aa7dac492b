"""Read and check site settings, which describe a cluster: a small YAML with the command line over it.

`conf/site/example.yaml` shows all of them. The values go into `#SBATCH` lines and shell text, so each one is checked
first.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from brorl_graders.base.environment_values import literal
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_brorl.config.declare import declaration, setting
from nemo_brorl.config.load import shipped_folder
from nemo_brorl.core.errors import ConfigError

SITE_VARIABLE = "BRORL_SITE"  # name of the site, where --site is absent
GPU_REQUESTS = ("gres", "gpus_per_node", "none")

MAX_SIGNAL_S = 65535  # Slurm's limit


@dataclass
class Site:
    """One cluster as its users may use it. A setting that is None keeps the cluster's default."""

    partition: str | None = setting(
        None, "as `sinfo` lists them; several, with commas between: whichever is free first"
    )
    account: str | None = setting(None, "whom the hours are charged to")
    qos: str | None = setting(None, "quality of service")
    constraint: str | None = setting(None, "node features, for example h100")
    reservation: str | None = setting(None, "nodes that were set aside")
    exclude: str | None = setting(None, "nodes that are not wanted: node[3,7-9]")
    time: str = setting("04:00:00", "length of one job: HH:MM:SS or D-HH:MM:SS")
    gpu_request: str = setting(
        "gres",
        "how GPUs are asked for: gres (--gres=gpu:8), gpus_per_node (--gpus-per-node=8), none (whole nodes)",
    )
    gpu_type: str | None = setting(None, "type in the request: h100 makes it gpu:h100:8")
    exclusive: bool = setting(True, "whole nodes")
    cpus_per_node: int | None = setting(None, "cores; else all of an exclusive node", at_least=1)
    memory: str | None = setting("0", "memory of a node: 0 is all of it; 512G")
    container: str | None = setting(
        None, "image for pyxis: a .sqsh file or registry#image:tag; without one the job runs on the host"
    )
    mounts: list[str] = setting(
        [], "folders inside the container: /shared or /outside:/inside; the run folder always is"
    )
    python: str | None = setting(None, "interpreter of the job; else the one that renders, in a container python3")
    spares: int = setting(
        0, "nodes asked for beside those that train, to stand in for ones that the doctor refuses", at_least=0
    )
    requeue: bool = setting(
        True, "the job goes back into the queue on preemption, before its time limit, and when a node dies"
    )
    max_restarts: int | None = setting(
        None,
        "restarts after failures in a row, without a newer checkpoint in between; else as job/job.sh says",
        at_least=0,
    )
    signal_s: int = setting(
        300,
        "seconds before its end that the job is told to save: a minute for Ray, and twice what a checkpoint takes",
        at_least=10,
    )
    setup: list[str] = setting([], "shell lines before anything else: module load cuda/13.0")
    environment: dict[str, str] = setting({}, "variables of the job, those of job/job.sh too: BRORL_INTERFACE: eth0")
    options: list[str] = setting([], "further options of sbatch, as they are: --switches=1")
    mail_user: str | None = setting(None, "address that Slurm writes to")
    mail_type: str = setting("FAIL,REQUEUE,END", "events that Slurm writes on")
    gpu_kind: str = setting("h100", "GPU for the planner: h100, h200, a100")
    gpu_memory_gib: float | None = setting(None, "GiB of one GPU, for the planner; else as gpu_kind has it", at_least=1)
    host_memory_gib: float | None = setting(None, "GiB of one node, for the planner", at_least=1)


class _SiteLoader(yaml.SafeLoader):
    """A YAML loader that reads 24:00:00 as text, not as 86,400."""


_SiteLoader.yaml_implicit_resolvers = {}
for _letter, _resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items():
    _kept = [pair for pair in _resolvers if pair[0] not in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:timestamp")]
    _SiteLoader.yaml_implicit_resolvers[_letter] = _kept
_SiteLoader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0|[1-9]\d*)$"), list("-+0123456789"))
_SiteLoader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+\.\d*$"), list("-+0123456789"))


def load_site(name: str | None, given: Mapping[str, Any]) -> Site:
    """Return the settings of a cluster site from a YAML file, with those `given` on the command line over them.

    `name` is a file, or NAME for conf/site/NAME.yaml. None means $BRORL_SITE, or no file where that is unset. Raises
    ConfigError for a missing file, an unknown key or a wrong value.
    """
    name = name or os.environ.get(SITE_VARIABLE)
    settings = _read(name) if name else {}
    origin = name or "site settings"
    unknown = settings.keys() - {field.name for field in dataclasses.fields(Site)}
    if unknown:
        known = ", ".join(field.name for field in dataclasses.fields(Site))
        raise ConfigError(f"{origin}: there is no site setting {', '.join(sorted(unknown))}; there are {known}")
    try:
        # Interpolation is off: `${HOME}` in a shell line is for the shell.
        merged = OmegaConf.merge(OmegaConf.structured(Site), literal(settings), literal(given))
        site = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{origin}: {error.full_key}={error.value!r}: {str(error).splitlines()[0]}") from error
    assert isinstance(site, Site), f"merged to {type(site)}"
    found = list(wrong_values(site))
    if found:
        raise ConfigError(f"{origin}: " + "; ".join(found))
    return site


def site_file(name: str) -> Path:
    """Return the path of a cluster site's YAML file, from a path or from a name in conf/site.

    Raises ConfigError, which lists the sites in conf/site, when there is no such file.
    """
    shipped = shipped_folder() / "site"
    for path in (Path(name).expanduser(), shipped / f"{name.removesuffix('.yaml')}.yaml"):
        if path.is_file():
            return path
    names = ", ".join(sorted(path.stem for path in shipped.glob("*.yaml")))
    raise ConfigError(
        f"--site {name}: there is no such file, and conf/site/ has {names}: pass the path of a YAML, or one of these"
    )


def _read(name: str) -> dict[str, Any]:
    path = site_file(name)
    try:
        settings = yaml.load(path.read_text(encoding="utf-8"), _SiteLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    if not isinstance(settings, dict | None):
        raise ConfigError(
            f"{path}: a site is a mapping of settings, as conf/site/example.yaml shows; this is a "
            f"{type(settings).__name__}"
        )
    return settings or {}


TIME = re.compile(r"(\d+-)?\d{1,3}:[0-5]\d:[0-5]\d|\d+-\d{1,2}(:[0-5]\d)?")
MEMORY = re.compile(r"0|\d+[KMGT]")
WORD = re.compile(r"[\w.@+-]+")
WORDS = re.compile(r"[\w.@+-]+(,[\w.@+-]+)*")
NODES = re.compile(r"[\w.,\[\]-]+")
CONSTRAINT = re.compile(r"[\w.&|*,\[\]()!-]+")
VARIABLE = re.compile(r"[A-Za-z_]\w*")
OPTION = re.compile(r"--[a-z][\w-]*(=[^\n]+)?")

# setting: the pattern of its text, and what to set instead
TEXTS: dict[str, tuple[re.Pattern[str], str]] = {
    "partition": (WORDS, "a partition of `sinfo -s`, or several separated by commas"),
    "account": (WORD, "an account of `sacctmgr show associations user=$USER`"),
    "qos": (WORD, "a quality of service of `sacctmgr show qos`"),
    "constraint": (CONSTRAINT, "node features of `sinfo -o %f`, for example h100 or 'h100&ib'"),
    "reservation": (WORD, "a reservation of `scontrol show reservation`"),
    "exclude": (NODES, "names of nodes, for example node[3,7-9]"),
    "time": (TIME, "24:00:00 for a day, 3-00:00:00 for three (a bare number would be minutes, and 4:00 four minutes)"),
    "memory": (MEMORY, "0 for all of a node's memory, or a number with its unit: 512G"),
    "gpu_type": (WORD, "the type as `sinfo -o %G` shows it: h100"),
    "mail_user": (re.compile(r"[^\s,;]+"), "one address"),
    "mail_type": (re.compile(r"[A-Z_0-9]+(,[A-Z_0-9]+)*"), "kinds of events: FAIL,REQUEUE,END"),
    "gpu_request": (re.compile("|".join(GPU_REQUESTS)), " or ".join(GPU_REQUESTS)),
}


def wrong_values(site: Site) -> Iterator[str]:
    """Yield an error text for each setting of a cluster site that Slurm or the shell would refuse.

    The text says what to set instead.
    """
    for name, (pattern, instead) in TEXTS.items():
        value = getattr(site, name)
        if value is not None and not pattern.fullmatch(value):
            yield f"{name}={value!r}: set {instead}"
    for field in dataclasses.fields(site):
        value, numbers = getattr(site, field.name), declaration(field).range
        if value is not None and numbers is not None and not numbers.holds(value):
            yield f"{field.name}={value}: set {numbers.low:g} or more"
    yield from _wrong_signal(site)
    yield from _wrong_container(site)
    for name, value in site.environment.items():
        if not VARIABLE.fullmatch(name) or "\n" in str(value):
            yield f"environment.{name}={value!r}: set a name of letters, digits and _, and a value on one line"
    for option in site.options:
        if not OPTION.fullmatch(option):
            yield f"options: {option!r} is not an option of sbatch: set for example --switches=1"


def _wrong_signal(site: Site) -> Iterator[str]:
    if site.signal_s > MAX_SIGNAL_S:
        yield f"signal_s={site.signal_s}: Slurm takes at most {MAX_SIGNAL_S}"
    elif TIME.fullmatch(site.time) and site.signal_s >= seconds_of(site.time):
        yield (
            f"time={site.time} is not longer than signal_s={site.signal_s}, the time to save before it ends: set a "
            "longer time"
        )


def _wrong_container(site: Site) -> Iterator[str]:
    if site.container is not None and (not site.container or re.search(r"\s", site.container)):
        yield f"container={site.container!r}: set the path of a .sqsh file, or registry#image:tag"
    for mount in site.mounts:
        parts = mount.split(":")
        if len(parts) > 3 or not all(part.startswith("/") for part in parts[:2]) or re.search(r"[\s,]", mount):
            yield f"mounts: {mount!r}: set /folder or /outside:/inside, absolute and without spaces"
    if site.mounts and site.container is None:
        yield (
            f"mounts={','.join(site.mounts)} has no container to be mounted in: set container=IMAGE, or leave mounts "
            "out"
        )


def seconds_of(time: str) -> int:
    """Return the seconds of a time limit in Slurm's form, such as 4:00:00. It must match the pattern `TIME`."""
    days, _, rest = time.rpartition("-")
    numbers = [int(part) for part in rest.split(":")] + [0, 0]
    return int(days or 0) * 86_400 + numbers[0] * 3_600 + numbers[1] * 60 + numbers[2]
