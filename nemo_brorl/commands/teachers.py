"""Find the teachers of a run, and check that the policy can learn from them, before anything expensive starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from nemo_brorl.commands.run import resolve_model
from nemo_brorl.config.data import FILE_WORDS
from nemo_brorl.config.model_rules import check_same_shape
from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError, ModelError
from nemo_brorl.core.model_folder import local_model
from nemo_brorl.core.model_shape import read_model_shape
from nemo_brorl.core.tokenizer import ChatTokenizer, load_tokenizer
from nemo_brorl.core.weight_files import check_model_files
from nemo_brorl.prompts.reasoning_gym import expanded
from nemo_brorl.training.finished_run import saved_step
from nemo_brorl.types import Prompt

TEACHER = "algorithm.kl.teacher"


def rank_settings(config: BroRLConfig, is_loaded: bool) -> RankSettings:
    """Return the settings of policy ranks, which read no teacher if a checkpoint is loaded next. Raises ModelError."""
    names = config.algorithm.kl.references
    folders = [None if name is None or is_loaded else resolve_model(config, name, TEACHER) for name in names]
    return replace(RankSettings.from_config(config), references=folders)


def has_checkpoint(config: BroRLConfig) -> bool:
    """Return whether the run folder has a checkpoint with teachers, from which the run continues."""
    folder = Path(config.exp_manager.explicit_log_dir) / "checkpoints"
    return config.algorithm.kl.has_teacher and saved_step(folder) > 0


def check_teachers(config: BroRLConfig, folder: Path, tokenizer: ChatTokenizer, prompts: Iterable[Prompt]) -> None:
    """Check that a policy in `folder` can learn from the run's teachers, unless a checkpoint has their weights.

    They must have its shape, tokens, chat template and end tokens, and tasks of the run, some of whose prompts are
    given. Raises ModelError and ConfigError.
    """
    _check_tasks(config, {prompt.task for prompt in prompts})
    for teacher in filter(None, rank_settings(config, has_checkpoint(config)).references):
        check_model_files(teacher, TEACHER)
        check_same_shape(read_model_shape(folder), teacher)
        check_same_tokens(tokenizer, teacher, config)


def check_local_teachers(config: BroRLConfig) -> None:
    """Check what settings and folders of this machine say of a run's teachers: tasks of generated questions, shapes.

    Raises ModelError and ConfigError.
    """
    if not config.algorithm.kl.has_teacher or has_checkpoint(config):
        return
    if all(source.source == "reasoning_gym" for _, source in config.data.sources()):
        _check_tasks(config, set())
    policy = local_model(config.policy.model)
    kl = config.algorithm.kl
    named = {f"{TEACHER}s.{task}": name for task, name in kl.teachers.items()} or {TEACHER: str(kl.teacher)}
    for setting, name in named.items():
        teacher = local_model(name, setting)
        if policy is not None and teacher is not None:
            check_same_shape(read_model_shape(policy), teacher)


def _check_tasks(config: BroRLConfig, known: set[str]) -> None:
    teachers = config.algorithm.kl.teachers
    sources = [source for _, source in config.data.sources()]
    for source in sources:
        known |= {task.name for task in expanded(source.tasks)}
    unknown = sorted(teachers.keys() - known)
    # Rows of files further on may have other tasks.
    if unknown and (known.isdisjoint(teachers) or all(source.source not in FILE_WORDS for source in sources)):
        raise ConfigError(f"{TEACHER}s: no question has the task {unknown[0]}. Set some of {', '.join(sorted(known))}")


def check_same_tokens(ours: ChatTokenizer, teacher: Path, config: BroRLConfig) -> None:
    """Raise ModelError if the tokens, chat template or end tokens of a teacher are not those of the policy."""
    theirs = load_tokenizer(teacher, template=config.data.template)
    vocabulary, other = (each.backend.get_vocab(with_added_tokens=True) for each in (ours, theirs))
    token, _ = min(vocabulary.items() ^ other.items(), default=("", 0))
    wrong = {
        f"id of the token {token!r} ({other.get(token)}, not {vocabulary.get(token)})": vocabulary != other,
        "chat template": ours.chat_template != theirs.chat_template,
        f"set of end tokens ({[*theirs.stop_ids]}, not {[*ours.stop_ids]})": ours.stop_ids != theirs.stop_ids,
    }
    for what in (what for what, is_other in wrong.items() if is_other):
        raise ModelError(
            f"the teacher {teacher} has another {what} than policy.model. Set {TEACHER} to one made from it"
        )
