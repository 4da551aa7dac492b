"""Find the teachers of a run, and check that the policy can learn from them, before anything expensive starts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nemo_brorl.commands.run import resolve_name
from nemo_brorl.config.data import FILE_WORDS
from nemo_brorl.config.model_rules import check_same_shape
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import ConfigError, ModelError
from nemo_brorl.core.model_shape import read_model_shape
from nemo_brorl.core.tokenizer import ChatTokenizer, load_tokenizer
from nemo_brorl.core.weight_files import check_model_files
from nemo_brorl.prompts.reasoning_gym import expanded
from nemo_brorl.training.checkpoint import Checkpoints
from nemo_brorl.types import Prompt

TEACHER, TEACHERS = "algorithm.kl.teacher", "algorithm.kl.teachers"

log = get_logger(__name__)


References = list[Path | None]  # folders of `algorithm.kl.references`; None: nothing is read


def find_references(config: BroRLConfig, is_loaded: bool = False) -> References:
    """Return the folders of the models that the KL is to, of which those on the hub are downloaded.

    Nothing is read for the policy at its start, nor with `is_loaded`: a checkpoint that is loaded next has the weights.
    Raises ModelError.
    """
    names = config.algorithm.kl.references
    return [None if name is None or is_loaded else resolve_name(name, TEACHER) for name in names]


def checked_references(
    config: BroRLConfig,
    model_folder: Path,
    tokenizer: ChatTokenizer,
    prompts: Iterable[Prompt],
) -> References:
    """Return the folders of a run's references, which are not read again if the run has a checkpoint.

    Teachers must have the policy's shape, tokens, chat template and end tokens, and some of the run's `prompts`. Raises
    ModelError and ConfigError.
    """
    run_folder = Path(config.exp_manager.explicit_log_dir)
    checkpoints = Checkpoints(run_folder / "checkpoints", config.trainer.keep_checkpoints)
    references = find_references(config, is_loaded=config.algorithm.kl.has_teacher and bool(checkpoints.complete()))
    if config.algorithm.kl.teachers:
        _check_tasks(config, {prompt.task for prompt in prompts})
    for folder in references:
        if folder is not None:
            check_model_files(folder, TEACHER)
            check_same_shape(read_model_shape(model_folder), folder)
            _check_same_tokens(tokenizer, load_tokenizer(folder, template=config.data.template), folder)
    return references


def _check_tasks(config: BroRLConfig, asked: set[str]) -> None:
    sources = [source for _, source in config.data.sources()]
    known = asked | {task.name for source in sources for task in expanded(source.tasks)}
    unknown = sorted(config.algorithm.kl.teachers.keys() - known)
    if not unknown:
        return
    text = f"{TEACHERS} has the task {unknown[0]}, of which no question is: set some of {', '.join(sorted(known))}"
    # Rows further on may name other tasks.
    if len(unknown) == len(config.algorithm.kl.teachers) or all(source.source not in FILE_WORDS for source in sources):
        raise ConfigError(text)
    log.warning("%s", text.replace("no question is", "none of the first questions is"))


def _check_same_tokens(ours: ChatTokenizer, theirs: ChatTokenizer, folder: Path) -> None:
    advice = f"Set {TEACHER} to a model with the policy's tokenizer, such as the policy after another training"
    vocabulary, other = (each.backend.get_vocab(with_added_tokens=True) for each in (ours, theirs))
    for token in sorted(vocabulary.keys() | other.keys()):
        own_id, other_id = vocabulary.get(token), other.get(token)
        if own_id != other_id:
            raise ModelError(
                f"the token {token!r} has the id {other_id} in the teacher {folder}, {own_id} in policy.model. {advice}"
            )
    if ours.chat_template != theirs.chat_template:
        raise ModelError(f"the teacher {folder} has another chat template than policy.model. {advice}")
    if ours.stop_ids != theirs.stop_ids:
        ends = [
            ", ".join(sorted(map(str, map(ours.backend.id_to_token, ids)))) for ids in (theirs.stop_ids, ours.stop_ids)
        ]
        raise ModelError(f"the teacher {folder} ends its answers with {ends[0]}, policy.model with {ends[1]}. {advice}")
