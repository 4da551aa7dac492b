"""Check the folder of policy.model: all files there, none cut short, and settings that fit the model."""

from __future__ import annotations

import os
from pathlib import Path

from brorl_launcher.doctor.probe import call_within
from brorl_launcher.doctor.report import FAIL, OK, WARN, Check
from nemo_brorl.config.model_rules import misfits
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import BroRLError
from nemo_brorl.core.machine import GIB
from nemo_brorl.core.model_folder import cached_model, hub_name, local_model
from nemo_brorl.core.model_shape import ModelShape, read_model_shape
from nemo_brorl.core.weight_files import folder_faults, joined

MODEL_DEADLINE_S = 60.0

ModelVerdict = tuple[Check, ModelShape | None]


def check_model(config: BroRLConfig, num_nodes: int = 1) -> ModelVerdict:
    """Check the model that the setting policy.model names, for a job of `num_nodes` nodes.

    Returns the check, and the model's shape where it could be read.
    """
    reason = f"{config.policy.model} has not answered for {MODEL_DEADLINE_S:.0f} s"
    late = Check("model", FAIL, reason, "is its file server up?")
    verdict: ModelVerdict = call_within(MODEL_DEADLINE_S, lambda: _judge_model(config, num_nodes), (late, None))
    return verdict


def _judge_model(config: BroRLConfig, num_nodes: int) -> ModelVerdict:
    name = config.policy.model
    try:
        folder = local_model(name) or cached_model(name)
        if folder is None:
            return _not_here(name, num_nodes), None
        shape = read_model_shape(folder)
    except BroRLError as error:
        if name == config.sft.new.output and not Path(name).exists():
            advice = "`make train` makes it first, or brorl base"
            return Check("model", WARN, f"{name} has not been made yet", advice), None
        return Check("model", FAIL, str(error)), None
    faults = list(misfits(config, shape))
    faults += folder_faults(folder, shape)
    if faults:
        return Check("model", FAIL, f"{folder}: {joined(faults)}", "download or export it again"), shape
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    size = sum(sizes)
    return Check("model", OK, f"{folder}: {shape.num_layers} layers, {size / GIB:,.2f} GiB, complete"), shape


def _not_here(name: str, num_nodes: int) -> Check:
    repository, revision = hub_name(name)
    of_revision = f" --revision {revision}" if revision else ""
    advice = (
        f"`hf download {repository}{of_revision} --local-dir FOLDER` on a machine with a network, FOLDER where all "
        "nodes see it; then policy.model=FOLDER"
    )
    offline = os.environ.get("HF_HUB_OFFLINE", "")
    if offline.lower() in ("1", "true", "yes", "on"):
        found = f"{name} is not in the hub's cache, and HF_HUB_OFFLINE forbids to download it"
        return Check("model", FAIL, found, advice)
    if num_nodes > 1:
        found = f"{name} is not in the hub's cache of this node, and only the first node of a job downloads it"
        # A missing model is no fault of the node that lacks it.
        return Check("model", FAIL, found, advice, is_shared=True)
    return Check("model", WARN, f"{name} is not in the hub's cache: it is downloaded at the start", advice)
