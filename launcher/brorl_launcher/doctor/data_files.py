"""Check the sources of prompts: readable files, first rows that are questions, known tasks, no constant answers.

As a program (`probe.py`) this module checks one source, because a file server may hang, or the constant answers of all
sources.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from brorl_graders.base.environment_values import literal
from omegaconf import OmegaConf

from brorl_launcher.doctor.probe import answer_probe, run_probe
from brorl_launcher.doctor.report import FAIL, OK, WARN, Check
from nemo_brorl.config.data import SourceConfig
from nemo_brorl.config.load import CommandLine, hydra_arguments, load_config
from nemo_brorl.config.named_code import check_names, named_code
from nemo_brorl.config.rewards import RewardsConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.config.unread import SFT
from nemo_brorl.core.errors import BroRLError, ConfigError, DataError
from nemo_brorl.core.model_folder import local_model
from nemo_brorl.prompts.file_source import formats_of
from nemo_brorl.prompts.file_tables import first_rows
from nemo_brorl.prompts.questions import BadRow
from nemo_brorl.prompts.row_formats import columns_of
from nemo_brorl.prompts.row_questions import is_wanted, question_of

SOURCE_DEADLINE_S = 90.0
CONSTANTS_DEADLINE_S = 120.0
INPUTS_DEADLINE_S = 60.0
MAX_NAMED = 4
FIRST_ROWS = 20
CONSTANTS = "constant answers"
INPUTS = "inputs"
FILES_CONFIG = "sft"  # the recipe for conversations in files
OWN_CODE = "named code"
CONSTANTS_ADVICE = "leave the task out, or choose another verifier: a policy learns to say just that"


def check_data(config: BroRLConfig) -> Iterator[Check]:
    """Check each source of prompts in the settings.

    Its files must exist, and its first rows must be readable as questions.
    """
    for where, source in config.data.sources():
        name = f"data, {getattr(source, 'name', '')}" if where != "data" else "data"
        settings = OmegaConf.to_container(OmegaConf.structured(literal(plain_source(source))))
        asked = {"source": settings, "model": config.policy.model}
        found = run_probe("data_files", "source", asked, SOURCE_DEADLINE_S)
        if found.data is None:
            yield Check(name, FAIL, f"{source.path or source.source}: {found.reason}", "is its file server up?")
        elif found.data["fault"]:
            yield Check(name, FAIL, found.data["fault"])
        else:
            yield Check(name, OK, found.data["found"])


def check_own_code(config: BroRLConfig) -> Iterator[Check]:
    """Check the functions and classes that settings name by import path. Yields nothing where they name none."""
    names = [named.name for named in named_code(config, is_trained=True)]
    try:
        check_names(config)
    except ConfigError as error:
        yield Check(OWN_CODE, FAIL, str(error))
        return
    if names:
        yield Check(OWN_CODE, OK, ", ".join(names))


def plain_source(source: SourceConfig) -> SourceConfig:
    """Return the settings of a prompt source, without those that only sources in a mixture have."""
    settings = {name: getattr(source, name) for name in SourceConfig.__dataclass_fields__}
    return SourceConfig(**settings)


def look_at_source(wanted: dict[str, Any]) -> dict[str, Any]:
    """Read the first rows of one prompt source, and return a text `found` about them or the `fault`."""
    schema = OmegaConf.structured(SourceConfig)
    merged = OmegaConf.merge(schema, wanted["source"])
    source: Any = OmegaConf.to_object(merged)
    try:
        found = _questions(source)
        if source.environment is not None:
            found += _environment(source, wanted.get("model", ""))
    except (BroRLError, OSError) as error:
        return {"found": "", "fault": str(error)}
    return {"found": found, "fault": ""}


def _questions(source: SourceConfig) -> str:
    if source.source == "environment":
        return "tasks that are drawn"
    return _tasks(source) if source.source == "reasoning_gym" else _files(source)


def _environment(source: SourceConfig, model: str) -> str:
    """Check that a prompt source's environment exists and that the model's chat template supports it.

    Without a model folder only the environment is checked. Returns a text for the table of checks.
    """
    from brorl_graders import make_environment

    from nemo_brorl.core.tokenizer import load_tokenizer
    from nemo_brorl.scoring.turn_tokens import check_environment

    name = source.environment or ""
    environment = make_environment(name, source.environment_settings)
    if source.source == "environment":
        environment.task(0)
    if not Path(model).is_dir():
        return f"; environment {name}"
    tokenizer = load_tokenizer(model)
    check_environment(source, tokenizer)
    return f"; environment {name}, which the model's chat template can take part in"


def _tasks(source: SourceConfig) -> str:
    from nemo_brorl.prompts.reasoning_gym import check_tasks

    named = [task for task in source.tasks if task.name != "*"]
    if named:
        check_tasks(named)
    words = [task.name for task in named[:MAX_NAMED]]
    if len(named) > MAX_NAMED:
        words.append("…")
    if len(named) < len(source.tasks):
        words.append("every other task")
    return f"reasoning_gym: {', '.join(words)}"


def _files(source: SourceConfig) -> str:
    from nemo_brorl.prompts.find_files import find_files

    sentences = []
    for path in (source.path, source.held_out_path):
        if path:
            files = find_files(source.source, path, source.dataset_split)
            sentences.append(_look_at(path, files, source))
    return "; ".join(sentences)


def _look_at(path: str, files: list[Path], source: SourceConfig) -> str:
    for file in files[1:]:
        file.open("rb").close()  # raises when the file is not readable
    formats = formats_of(source, files)
    num_questions = 0
    reasons = []  # reasons why rows are not questions
    for row in first_rows(files[0], columns_of(formats, source.verifier_options), FIRST_ROWS):
        if isinstance(row, BadRow):
            reasons.append(row.reason)
        elif is_wanted(row, source.only):
            question = question_of(row, formats, "", source.verifier_options)
            if isinstance(question, BadRow) and question.is_refused:
                raise DataError(f"{files[0]}: {question.reason}")
            if isinstance(question, BadRow):
                reasons.append(question.reason)
            else:
                num_questions += 1
    num_rows = num_questions + len(reasons)
    if reasons and num_questions == 0:
        raise DataError(f"{files[0]}: none of the first {num_rows} rows is a question: {reasons[0]}")
    sizes = [file.stat().st_size for file in files]
    mib = sum(sizes) / 2**20
    return f"{path}: {len(files)} files, {mib:,.1f} MiB; {num_questions} of the first {num_rows} rows are questions"


def check_inputs(line: CommandLine) -> Iterator[Check]:
    """Check that what a command line gives is read, and that its questions are as many and as good as asked."""
    given = [line.config_name, list(line.overrides), str(line.config_path or "")]
    found = run_probe("data_files", "inputs", {"given": given}, INPUTS_DEADLINE_S)
    if found.data is None:
        yield Check(INPUTS, WARN, f"not tried: {found.reason}")
        return
    for sentence in found.data["warnings"]:
        yield Check(INPUTS, WARN, sentence)
    if found.data["fault"]:
        yield Check(INPUTS, FAIL, found.data["fault"])
    elif not found.data["warnings"]:
        yield Check(INPUTS, OK, found.data["found"])


def look_at_inputs(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return what is wrong with the inputs of a command line: `warnings`, and the `fault` that refuses the run."""
    from nemo_brorl.commands.check_inputs import check_inputs as warnings_of
    from nemo_brorl.commands.sft import read_lessons

    name, overrides, path = wanted["given"]
    line = CommandLine(name, tuple(overrides), Path(path) if path else None)
    found = "settings are read; questions are as many and as good as asked"
    try:
        config = load_config(*line)
        if not is_fine_tuning(line):
            return {"found": found, "warnings": warnings_of(config, line, reads_files=True), "fault": ""}
        warnings = warnings_of(config, line, SFT)
        if folder := local_model(config.policy.model):
            found = f"settings are read; {len(read_lessons(config, folder).held_out):,} examples measure the loss"
        return {"found": found, "warnings": warnings, "fault": ""}
    except (BroRLError, OSError) as error:
        return {"warnings": [], "fault": str(error)}


def is_fine_tuning(line: CommandLine) -> bool:
    """Return whether a command line has the settings of `brorl sft`, whose rows are conversations and no questions."""
    folder, name, _ = hydra_arguments(*line)
    written: Any = OmegaConf.load(folder / f"{name}.yaml")
    return FILES_CONFIG in (name, *(written.get("defaults") or ()))


def check_constants(config: BroRLConfig) -> Iterator[Check]:
    """Check that no task rewards one of twenty constant answers, unless the settings switch this check off.

    The constant answers are scored on some questions of every task.
    """
    if config.rewards.constant_answers == "off":
        return
    sources = []
    for _, source in config.data.sources():
        settings = OmegaConf.structured(literal(plain_source(source)))
        sources.append(OmegaConf.to_container(settings))
    rewards = OmegaConf.to_container(OmegaConf.structured(literal(config.rewards)))
    found = run_probe("data_files", "paid", {"sources": sources, "rewards": rewards}, CONSTANTS_DEADLINE_S)
    if found.data is None:
        yield Check(CONSTANTS, WARN, f"not tried: {found.reason}")
        return
    status = FAIL if config.rewards.constant_answers == "refuse" else WARN
    for sentence in found.data["sentences"]:
        yield Check(CONSTANTS, status, sentence, CONSTANTS_ADVICE)
    if not found.data["sentences"]:
        yield Check(CONSTANTS, OK, "no task pays for one of twenty")


def find_paid_constants(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return, as `sentences`, a sentence for each task whose verifier rewards a constant answer."""
    from nemo_brorl.evaluation.constant_answers import check_constants as find_paid

    rewards: Any = _settings(RewardsConfig, {**wanted["rewards"], "constant_answers": "warn"})
    sources: Any = [_settings(SourceConfig, source) for source in wanted["sources"]]
    return {"sentences": [str(found) for found in find_paid(sources, rewards)]}


def _settings(section: type, values: dict[str, Any]) -> Any:
    merged = OmegaConf.merge(OmegaConf.structured(section), values)
    return OmegaConf.to_object(merged)


if __name__ == "__main__":
    answer_probe({"source": look_at_source, "paid": find_paid_constants, "inputs": look_at_inputs})
