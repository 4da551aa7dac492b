"""Check the folders of policy.model and of the teachers: all files there, none cut short, and a shape that fits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from brorl_launcher.doctor.probe import call_within
from brorl_launcher.doctor.report import FAIL, OK, WARN, Check
from nemo_brorl.commands.teachers import TEACHER, check_same_tokens, has_checkpoint
from nemo_brorl.config.model_rules import check_same_shape, misfits
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import BroRLError
from nemo_brorl.core.machine import GIB
from nemo_brorl.core.model_folder import cached_model, hub_name, local_model
from nemo_brorl.core.model_shape import ModelShape, read_model_shape
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.core.weight_files import folder_faults, joined

MODEL_DEADLINE_S = 60.0

ModelVerdict = tuple[Check, ModelShape | None]


class NamedModel(NamedTuple):
    """A folder or Hugging Face name, the row of the model's check, and the settings that name it."""

    name: str
    row: str
    settings: tuple[str, ...]


def check_model(config: BroRLConfig, num_nodes: int = 1) -> ModelVerdict:
    """Check the model that the setting policy.model names, for a job of `num_nodes` nodes.

    Returns the check, and the model's shape where it could be read.
    """
    return _judge_in_time(config, num_nodes, NamedModel(config.policy.model, "model", ("policy.model",)))


def check_teachers(config: BroRLConfig, policy: ModelShape | None, num_nodes: int = 1) -> Iterator[Check]:
    """Check the teachers of a policy of a shape, unless the run has a checkpoint, which has their weights."""
    kl = config.algorithm.kl
    if not kl.has_teacher or call_within(MODEL_DEADLINE_S, lambda: has_checkpoint(config), False):
        return
    for name in filter(None, kl.references):
        tasks = [task for task, teacher in kl.teachers.items() if teacher == name]
        row = f"teacher of {', '.join(tasks)}" if tasks else "teacher"
        settings = tuple(f"{TEACHER}s.{task}" for task in tasks) or (TEACHER,)
        yield _judge_in_time(config, num_nodes, NamedModel(name, row, settings), policy)[0]


def _judge_in_time(
    config: BroRLConfig, num_nodes: int, model: NamedModel, policy: ModelShape | None = None
) -> ModelVerdict:
    reason = f"{model.name} has not answered for {MODEL_DEADLINE_S:.0f} s"
    late = Check(model.row, FAIL, reason, "is its file server up?"), None
    verdict: ModelVerdict = call_within(MODEL_DEADLINE_S, lambda: _judge(config, num_nodes, model, policy), late)
    return verdict


def _judge(config: BroRLConfig, num_nodes: int, model: NamedModel, policy: ModelShape | None) -> ModelVerdict:
    name, row, settings = model
    try:
        folder = local_model(name, settings[0]) or cached_model(name)
        if folder is None:
            return _not_here(model, num_nodes), None
        shape = read_model_shape(folder)
        if policy is not None:
            check_same_shape(policy, folder)
        faults = [*misfits(config, shape), *folder_faults(folder, shape)]
        student = local_model(config.policy.model) or cached_model(config.policy.model)
        if policy is not None and student is not None and not faults:
            check_same_tokens(load_tokenizer(student, template=config.data.template), folder, config)
    except BroRLError as error:
        if name == config.sft.new.output and not Path(name).exists():
            advice = "`make train` makes it first, or brorl base"
            return Check(row, WARN, f"{name} has not been made yet", advice), None
        return Check(row, FAIL, str(error)), None
    if faults:
        return Check(row, FAIL, f"{folder}: {joined(faults)}", "download or export it again"), shape
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    size = sum(sizes)
    return Check(row, OK, f"{folder}: {shape.num_layers} layers, {size / GIB:,.2f} GiB, complete"), shape


def _not_here(model: NamedModel, num_nodes: int) -> Check:
    name, row, settings = model
    repository, revision = hub_name(name)
    of_revision = f" --revision {revision}" if revision else ""
    advice = (
        f"`hf download {repository}{of_revision} --local-dir FOLDER` on a machine with a network, FOLDER where all "
        f"nodes see it; then {' '.join(f'{setting}=FOLDER' for setting in settings)}"
    )
    offline = os.environ.get("HF_HUB_OFFLINE", "")
    if offline.lower() in ("1", "true", "yes", "on"):
        found = f"{name} is not in the hub's cache, and HF_HUB_OFFLINE forbids to download it"
        return Check(row, FAIL, found, advice)
    if num_nodes > 1:
        found = f"{name} is not in the hub's cache of this node, and only the first node of a job downloads it"
        # A missing model is no fault of the node that lacks it.
        return Check(row, FAIL, found, advice, is_shared=True)
    return Check(row, WARN, f"{name} is not in the hub's cache: it is downloaded at the start", advice)
