"""Rules of prompt sources: what can be said before a file is opened. What is in the files is for `prompts/` to
judge."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from nemo_brorl.config.schema import BroRLConfig, SourceConfig

FILE_WORDS = {
    "jsonl": "a file with one JSON object per line",
    "parquet": "a Parquet file",
    "dataset": "the folder of a Hugging Face dataset on disk",
}


def sources(config: BroRLConfig) -> Iterator[tuple[str, SourceConfig]]:
    """(where it is set, source) of every source that prompts are drawn from."""
    if config.data.source == "mixture":
        yield from (
            (f"data.domains.{index}", domain) for index, domain in enumerate(config.data.domains) if domain.weight > 0
        )
    else:
        yield "data", config.data


def something_to_train_on(config: BroRLConfig) -> Iterator[str]:
    if config.data.held_out_fraction == 1:
        yield "data.held_out_fraction=1.0 leaves nothing to train on: write a share below 1, for example 0.1"


def sources_are_complete(config: BroRLConfig) -> Iterator[str]:
    if config.evaluation.benchmarks:
        return  # `evaluate` asks these and never opens data; training says what is missing when it opens its files
    for name, source in sources(config):
        if source.source == "reasoning_gym":
            if not source.tasks:
                yield (
                    f"{name}.tasks is empty and {name}.source is reasoning_gym: write for example "
                    f"{name}.tasks=[{{name: chain_sum}}]"
                )
            continue
        words = FILE_WORDS[source.source]
        if source.path is None:
            yield f"{name}.source={source.source} needs {name}.path: write the path of {words}"
        for setting, path in (("path", source.path), ("held_out_path", source.held_out_path)):
            if path is not None and not _is_there(path, source.source):
                yield f"{name}.{setting}={path}: there is no such {_kind(source.source)}; write the path of {words}"


def task_names_differ(config: BroRLConfig) -> Iterator[str]:
    for where, source in sources(config):
        names = [task.name for task in source.tasks]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"{where}.tasks names {name} {names.count(name)} times: write it once with a larger weight"


def stages_follow_each_other(config: BroRLConfig) -> Iterator[str]:
    for where, source in sources(config):
        for task in source.tasks:
            starts = [stage.from_question for stage in task.stages]
            if any(later <= earlier for earlier, later in pairwise(starts)):
                yield (
                    f"{where}.tasks, {task.name}: its stages begin at {starts}; write from_question in ascending order"
                )


def mixture_is_whole(config: BroRLConfig) -> Iterator[str]:
    data = config.data
    if data.source != "mixture":
        if data.domains:
            yield f"data.domains is set and data.source={data.source}: write data.source=mixture, or data.domains=[]"
        return
    if not data.domains:
        yield (
            "data.source=mixture needs data.domains: write for example data.domains=[{name: math, source: jsonl, "
            "path: FILE}]"
        )
    elif sum(domain.weight for domain in data.domains) <= 0:
        yield "the weights of data.domains sum to 0: write one above 0"
    names = [domain.name for domain in data.domains]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"data.domains names {name} {names.count(name)} times: give each domain a name of its own"
    for index, domain in enumerate(data.domains):
        if not domain.name or "/" in domain.name:
            yield (
                f"data.domains.{index}.name={domain.name!r}: write a name without a slash; metrics and prompts carry it"
            )
        limit = domain.max_prompt_tokens
        if limit is not None and limit > data.max_prompt_tokens:
            yield (
                f"data.domains.{index}.max_prompt_tokens={limit} is above "
                f"data.max_prompt_tokens={data.max_prompt_tokens}, which the "
                f"engines make room for: write data.max_prompt_tokens={limit}"
            )


def _is_there(path: str, kind: str) -> bool:
    return (
        Path(path).is_dir()
        if kind == "dataset"
        else any(Path(name).is_file() for name in (path, *glob.iglob(path, recursive=True)))
    )


def _kind(source: str) -> str:
    return "folder" if source == "dataset" else "file"


DATA_RULES: tuple[Callable[[BroRLConfig], Iterator[str]], ...] = (
    something_to_train_on,
    mixture_is_whole,
    sources_are_complete,
    task_names_differ,
    stages_follow_each_other,
)
