"""Jobs for clusters without Slurm: a RayJob for KubeRay, a task for SkyPilot.

Both run an image that holds the package (the Dockerfile of this repository), with all settings in the file itself.
`brorl render --to rayjob …` prints what `kubectl apply -f -` takes, `--to skypilot` what `sky launch` takes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from brorl_launcher.site import Site
from nemo_brorl.config.load import to_yaml
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError

KINDS = ("slurm", "rayjob", "skypilot")
PYTHON = "/opt/nemo_brorl/.venv/bin/python"  # path in the image
RAY_VERSION = "2.60.0"
RAY_PORT = 6379  # not the port of SkyPilot's own Ray
SETTINGS = "/etc/brorl"  # the pod's folder with config.yaml
MAX_NAME = 40  # Kubernetes appends to the name
ACCELERATORS = {"h100": "H100", "h200": "H200", "a100": "A100-80GB"}  # SkyPilot's names
VOLUME = re.compile(r"([a-z0-9][a-z0-9-]*):(/[\w./-]+)")


@dataclass(frozen=True)
class CloudJob:
    """A job for KubeRay or SkyPilot: the run's settings, the site, the image and the shared volume."""

    config: BroRLConfig
    site: Site
    image: str
    volume: str  # name of a persistent volume claim, or of a SkyPilot volume
    mounted_at: str  # the volume's path in the pods, above the run folder

    @property
    def name(self) -> str:
        """Return the run folder's name in a form that Kubernetes accepts: lower-case letters, digits and hyphens."""
        folder = Path(self.config.exp_manager.explicit_log_dir).name
        letters = re.sub(r"[^a-z0-9]+", "-", folder.lower())
        return letters[:MAX_NAME].strip("-") or "brorl"

    @property
    def train_command(self) -> str:
        """Return the shell command that trains with the settings in the pod's folder `SETTINGS`."""
        python = self.site.python or PYTHON
        return f"{python} -m nemo_brorl train --config-path {SETTINGS} --config-name config"


def cloud_job(config: BroRLConfig, site: Site, volume: str | None) -> CloudJob:
    """Check the container image, the shared volume and the run folder, and return the job for KubeRay or SkyPilot.

    `volume` is NAME:/FOLDER. Raises ConfigError when the image or the volume is missing, or when the run folder is not
    on the volume.
    """
    if site.container is None:
        raise ConfigError(
            "--to rayjob and --to skypilot need an image: pass --container REGISTRY/brorl:TAG (Dockerfile)"
        )
    found = VOLUME.fullmatch(volume or "")
    if found is None:
        raise ConfigError(
            f"--volume {volume}: pass NAME:/FOLDER, a volume that all nodes share, for example runs:/shared"
        )
    run = config.exp_manager.explicit_log_dir
    if not Path(run).is_relative_to(found[2]):
        raise ConfigError(f"--run {run} is not on the volume: pass a folder below {found[2]}")
    return CloudJob(config, site, site.container.replace("#", "/"), found[1], found[2])


def render_cloud_job(job: CloudJob, kind: str) -> str:
    """Return the YAML text of a job, as `kubectl apply` (kind "rayjob") or `sky launch` takes it."""
    documents = ray_job(job) if kind == "rayjob" else [sky_task(job)]
    texts = [yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120) for document in documents]
    return "---\n".join(texts)


def ray_job(job: CloudJob) -> list[dict[str, Any]]:
    """Return a ConfigMap with a run's settings, and a KubeRay RayJob whose Ray head is the first training node."""
    settings = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{job.name}-settings"},
        "data": {"config.yaml": to_yaml(job.config)},
    }
    cluster: dict[str, Any] = {
        "rayVersion": RAY_VERSION,
        "headGroupSpec": {
            "rayStartParams": {"dashboard-host": "0.0.0.0"},
            "template": {"spec": _pod(job, "ray-head")},
        },
    }
    num_workers = job.config.trainer.num_nodes - 1
    if num_workers:
        group = {
            "groupName": "nodes",
            "replicas": num_workers,
            "minReplicas": num_workers,
            "maxReplicas": num_workers,
            "rayStartParams": {},
            "template": {"spec": _pod(job, "ray-worker")},
        }
        cluster["workerGroupSpecs"] = [group]
    spec: dict[str, Any] = {
        "entrypoint": job.train_command,
        "shutdownAfterJobFinishes": True,
        "rayClusterSpec": cluster,
    }
    if job.site.requeue:
        spec["backoffLimit"] = job.site.max_restarts or 3  # a new cluster resumes from the last checkpoint
    made = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": job.name},
        "spec": spec,
    }
    return [settings, made]


def sky_task(job: CloudJob) -> dict[str, Any]:
    """Return a SkyPilot task that starts Ray on its nodes and trains on the first one."""
    trainer = job.config.trainer
    resources: dict[str, Any] = {"image_id": f"docker:{job.image}"}
    if trainer.gpus_per_node:
        kind = ACCELERATORS.get(job.site.gpu_kind, job.site.gpu_kind)
        resources["accelerators"] = f"{kind}:{trainer.gpus_per_node}"
    if job.site.cpus_per_node is not None:
        resources["cpus"] = job.site.cpus_per_node
    task: dict[str, Any] = {
        "name": job.name,
        "num_nodes": trainer.num_nodes,
        "resources": resources,
        "volumes": {job.mounted_at: job.volume},
    }
    if job.site.environment:
        task["envs"] = dict(job.site.environment)
    task["run"] = _sky_script(job)
    return task


def _pod(job: CloudJob, name: str) -> dict[str, Any]:
    """Return the Kubernetes pod of one node: a container with GPUs, shared volume, settings and room in /dev/shm."""
    site = job.site
    limits: dict[str, Any] = {}
    if job.config.trainer.gpus_per_node:
        limits["nvidia.com/gpu"] = job.config.trainer.gpus_per_node
    if site.cpus_per_node is not None:
        limits["cpu"] = site.cpus_per_node
    if site.memory not in (None, "0"):
        limits["memory"] = f"{site.memory}i"
    container = {
        "name": name,
        "image": job.image,
        "env": _variables(site.environment),
        "resources": {"limits": limits, "requests": dict(limits)},
        "volumeMounts": [
            {"name": "shared", "mountPath": job.mounted_at},
            {"name": "settings", "mountPath": SETTINGS},
            {"name": "memory", "mountPath": "/dev/shm"},
        ],
    }
    return {
        "containers": [container],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": job.volume}},
            {"name": "settings", "configMap": {"name": f"{job.name}-settings"}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
        ],
    }


def _variables(environment: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": str(value)} for name, value in environment.items()]


def _sky_script(job: CloudJob) -> str:
    """Return the shell script of a SkyPilot task: it starts Ray on every node and trains on the first one."""
    python = job.site.python or PYTHON
    ray = shlex.quote(str(Path(python).with_name("ray")))
    return f"""set -e
sudo mkdir -p {SETTINGS} && sudo chown "$(id -u)" {SETTINGS}
cat > {SETTINGS}/config.yaml <<'BRORL_SETTINGS'
{to_yaml(job.config)}BRORL_SETTINGS
head=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)
if [ "$SKYPILOT_NODE_RANK" != 0 ]; then
  until {ray} start --address "$head:{RAY_PORT}"; do sleep 2; done
  while {ray} status --address "$head:{RAY_PORT}" > /dev/null 2>&1; do sleep 10; done # until the first node ends it
  exit 0
fi
{ray} start --head --port {RAY_PORT}
export RAY_ADDRESS="$head:{RAY_PORT}"
until [ "$({python} -c 'import ray; ray.init(log_to_driver=False); print(len(ray.nodes()))')" = "$SKYPILOT_NUM_NODES" ]
do sleep 2; done
status=0
{job.train_command} || status=$?
{ray} stop
exit $status
"""


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that writes texts of several lines as blocks."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _block)
