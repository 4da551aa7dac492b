"""Checks of what a run reads. policy.model's folder: everything there, no file cut short, and the settings fit it. The
sources of prompts: files there and readable from this node, their first rows questions, tasks known, and none that pays
for a constant answer. Where answers may be programs, the sandbox that holds them.

As a program (`report.py`) one source, since a file server may hang, the constants of all sources, or the sandbox.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from brorl_graders.environment_values import literal
from brorl_graders.verifiers.registry import names_in
from omegaconf import OmegaConf

from brorl_launcher.doctor.report import FAIL, OK, WARN, Check, answer, ask, within
from nemo_brorl.config.data import SourceConfig
from nemo_brorl.config.model_rules import misfits
from nemo_brorl.config.rewards import RewardsConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import BroRLError, DataError
from nemo_brorl.core.machine import GIB
from nemo_brorl.core.model_folder import local_model
from nemo_brorl.core.model_shape import ModelShape, hf_shapes, read_model_shape
from nemo_brorl.prompts.file_tables import first_rows
from nemo_brorl.prompts.questions import BadRow
from nemo_brorl.prompts.row_formats import columns_of, row_formats
from nemo_brorl.prompts.row_questions import is_wanted, question_of

MODEL_DEADLINE_S = 60.0
SOURCE_DEADLINE_S = 90.0
CONSTANTS_DEADLINE_S = 120.0
SANDBOX_DEADLINE_S = 90.0
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
MAX_HEADER = 1 << 28  # bytes of a safetensors header
MAX_NAMED = 4
FIRST_ROWS = 20
CONSTANTS = "constant answers"
CONSTANTS_ADVICE = "leave the task out, or choose another verifier: a policy learns to say just that"
SANDBOX = "sandbox"
SANDBOX_ADVICE = "docs/sandbox.md says how to get one: bubblewrap, or user namespaces, or another container"

Verdict = tuple[Check, ModelShape | None]


def check_model(config: BroRLConfig) -> Verdict:
    """The verdict on policy.model, and its shape where it could be read."""
    reason = f"{config.policy.model} has not answered for {MODEL_DEADLINE_S:.0f} s"
    late = Check("model", FAIL, reason, "is its file server up?")
    verdict: Verdict = within(MODEL_DEADLINE_S, lambda: _judge_model(config), (late, None))
    return verdict


def _judge_model(config: BroRLConfig) -> Verdict:
    name = config.policy.model
    try:
        folder = local_model(name) or cached_model(name)
        if folder is None:
            return _not_here(name), None
        shape = read_model_shape(folder)
    except BroRLError as error:
        if name == config.sft.new.output and not Path(name).exists():
            advice = "`make train` makes it first, or brorl base"
            return Check("model", WARN, f"{name} has not been made yet", advice), None
        return Check("model", FAIL, str(error)), None
    faults = list(misfits(config, shape))
    faults += folder_faults(folder, shape)
    if faults:
        more = f" (and {len(faults) - MAX_NAMED} more)" if len(faults) > MAX_NAMED else ""
        found = f"{folder}: {'; '.join(faults[:MAX_NAMED])}{more}"
        return Check("model", FAIL, found, "download or export it again"), shape
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    size = sum(sizes)
    return Check("model", OK, f"{folder}: {shape.num_layers} layers, {size / GIB:,.2f} GiB, complete"), shape


def cached_model(name: str) -> Path | None:
    """The snapshot of a Hugging Face name in the hub's cache, if there is one."""
    user = Path.home() / ".cache" / "huggingface"
    home = Path(os.environ.get("HF_HOME") or user)
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    cache = hub / f"models--{name.replace('/', '--')}"
    head = cache / "refs" / "main"
    if not head.is_file():
        return None
    commit = head.read_text(encoding="ascii").strip()
    folder = cache / "snapshots" / commit
    return folder if folder.is_dir() else None


def _not_here(name: str) -> Check:
    advice = (
        f"`hf download {name} --local-dir FOLDER` on a machine with a network, FOLDER where all nodes see it; then "
        "policy.model=FOLDER"
    )
    offline = os.environ.get("HF_HUB_OFFLINE", "")
    if offline.lower() in ("1", "true", "yes", "on"):
        found = f"{name} is not in the hub's cache, and HF_HUB_OFFLINE forbids to download it"
        return Check("model", FAIL, found, advice)
    return Check("model", WARN, f"{name} is not in the hub's cache: every node downloads it at the start", advice)


def folder_faults(folder: Path, shape: ModelShape) -> Iterator[str]:
    """What is missing or cut short in a model's folder."""
    if not any((folder / name).is_file() for name in TOKENIZERS):
        yield "there is no tokenizer (tokenizer.json)"
    index = folder / "model.safetensors.index.json"
    shards = sorted(folder.glob("*.safetensors"))
    if index.is_file():
        try:
            text = index.read_text(encoding="utf-8")
            weight_map = json.loads(text)["weight_map"]
            named = set(weight_map.values())
        except (OSError, ValueError, KeyError, AttributeError) as error:
            yield f"{index.name} cannot be read ({error})"
            return
        there = {path.name for path in shards}
        for name in sorted(named - there):
            yield f"{name} is missing"
        shards = [path for path in shards if path.name in named]
    elif not shards:
        yield "there are no weights (*.safetensors)"
        return
    tensors: set[str] = set()
    for path in shards:
        names, fault = read_shard(path)
        tensors |= names
        if fault:
            yield f"{path.name} {fault}"
            return
    lacking = [name for name in hf_shapes(shape) if name not in tensors]
    if lacking:
        yield f"{len(lacking)} tensors are missing, {lacking[0]} for one"


def read_shard(path: Path) -> tuple[set[str], str]:
    """(names of its tensors, what is wrong with the file). Reads the header alone, and compares the length."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = None
            if length <= MAX_HEADER:
                header = json.loads(file.read(length))
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        return set(), f"cannot be read ({error})"
    if not isinstance(header, dict):
        return set(), "is no safetensors file"
    header.pop("__metadata__", None)
    ends = [tensor["data_offsets"][1] for tensor in header.values()]
    whole = 8 + length + max(ends, default=0)
    if size != whole:
        return set(header), f"has {size:,} bytes and its header speaks of {whole:,}: it was cut short"
    return set(header), ""


def check_data(config: BroRLConfig) -> Iterator[Check]:
    """Each source of prompts: its files, and whether their first rows can be read as questions."""
    for where, source in config.data.sources():
        name = f"data, {getattr(source, 'name', '')}" if where != "data" else "data"
        settings = OmegaConf.to_container(OmegaConf.structured(literal(plain_source(source))))
        asked = {"source": settings, "model": config.policy.model}
        found = ask("input_files", "source", asked, SOURCE_DEADLINE_S)
        if found.data is None:
            yield Check(name, FAIL, f"{source.path or source.source}: {found.reason}", "is its file server up?")
        elif found.data["fault"]:
            yield Check(name, FAIL, found.data["fault"])
        else:
            yield Check(name, OK, found.data["found"])


def plain_source(source: SourceConfig) -> SourceConfig:
    """The source without what a mixture adds."""
    settings = {name: getattr(source, name) for name in SourceConfig.__dataclass_fields__}
    return SourceConfig(**settings)


def look_at_source(wanted: dict[str, Any]) -> dict[str, Any]:
    """`found` or `fault` of one source. Reads no more than its files' first rows."""
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
    """The environment is there, and the model in this folder, if it is one, can talk to it."""
    from brorl_graders.environments.registry import make

    from nemo_brorl.core.tokenizer import load_tokenizer
    from nemo_brorl.scoring.turn_tokens import check_environment

    name = source.environment or ""
    environment = make(name, source.environment_settings)
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
        file.open("rb").close()  # raises where it may not be read
    formats = row_formats(source)
    num_questions = 0
    reasons = []  # why rows are none
    for row in first_rows(files[0], columns_of(formats), FIRST_ROWS):
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


def check_constants(config: BroRLConfig) -> Iterator[Check]:
    """Score twenty constants on some questions of every task; nothing where that is switched off."""
    if config.rewards.constant_answers == "off":
        return
    sources = []
    for _, source in config.data.sources():
        settings = OmegaConf.structured(literal(plain_source(source)))
        sources.append(OmegaConf.to_container(settings))
    rewards = OmegaConf.to_container(OmegaConf.structured(literal(config.rewards)))
    found = ask("input_files", "paid", {"sources": sources, "rewards": rewards}, CONSTANTS_DEADLINE_S)
    if found.data is None:
        yield Check(CONSTANTS, WARN, f"not tried: {found.reason}")
        return
    status = FAIL if config.rewards.constant_answers == "refuse" else WARN
    for sentence in found.data["sentences"]:
        yield Check(CONSTANTS, status, sentence, CONSTANTS_ADVICE)
    if not found.data["sentences"]:
        yield Check(CONSTANTS, OK, "no task pays for one of twenty")


def paid(wanted: dict[str, Any]) -> dict[str, Any]:
    """`sentences` about tasks that pay for one."""
    from nemo_brorl.evaluation.constant_answers import check_constants as find_paid

    rewards: Any = _settings(RewardsConfig, {**wanted["rewards"], "constant_answers": "warn"})
    sources: Any = [_settings(SourceConfig, source) for source in wanted["sources"]]
    return {"sentences": [str(found) for found in find_paid(sources, rewards)]}


def _settings(section: type, values: dict[str, Any]) -> Any:
    merged = OmegaConf.merge(OmegaConf.structured(section), values)
    return OmegaConf.to_object(merged)


def possible_verifiers(source: SourceConfig) -> set[str]:
    """Verifiers that may score the answers of a source, as far as its settings tell: a row may name another."""
    if source.environment == "python":
        return {"code"}  # needs the same sandbox
    if source.source == "environment":
        return set()
    if source.source == "reasoning_gym":
        return {"reasoning_gym"}
    names: set[str] = set()
    for layout in row_formats(source):
        names.update(names_in(layout.verifier, source.verifier_options))
    return names


def runs_programs(config: BroRLConfig) -> bool:
    """Whether the verifier `code` may be needed."""
    return any("code" in possible_verifiers(source) for _, source in config.data.sources())


def check_sandbox(config: BroRLConfig) -> Iterator[Check]:
    """Start one and ask what holds; nothing where no program is run."""
    if not runs_programs(config):
        return
    found = ask("input_files", "layers", {}, SANDBOX_DEADLINE_S)
    if found.data is None:
        yield Check(SANDBOX, FAIL, f"the sandbox did not start: {found.reason}", SANDBOX_ADVICE)
        return
    layers = found.data["layers"].removeprefix("sandbox: ")
    gaps = "; ".join(found.data["gaps"])
    if not gaps:
        yield Check(SANDBOX, OK, layers)
    elif config.rewards.code.allow_unsandboxed:
        yield Check(SANDBOX, WARN, f"programs could {gaps}: rewards.code.allow_unsandboxed=true runs them all the same")
    else:
        yield Check(SANDBOX, FAIL, f"programs could {gaps} ({layers})", SANDBOX_ADVICE)


def sandbox_layers(_: dict[str, Any]) -> dict[str, Any]:
    """What holds a program on this machine."""
    from brorl_graders.sandbox.sandbox import Sandbox

    sandbox = Sandbox(is_bare_allowed=True)
    try:
        return {"layers": str(sandbox.layers), "gaps": sandbox.layers.gaps()}
    finally:
        sandbox.close()


if __name__ == "__main__":
    answer({"source": look_at_source, "paid": paid, "layers": sandbox_layers})
