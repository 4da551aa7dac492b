"""The configured source of questions, one or a mixture, train or held out.

Train and held-out questions are told apart by a hash of the question's text, or lie in files of their own: they never
share a question, whatever the seed, the tasks' settings or the order of rows.

Questions that an environment answers over several turns are another source's, or tasks that it draws itself.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from brorl_graders.environments.protocol import (
    Environment,
    Message,
    Task,
    as_messages,
    completed,
    value_of,
)
from brorl_graders.environments.registry import make
from brorl_graders.names import allowed
from brorl_graders.verifiers.payload import ENVIRONMENT
from brorl_graders.verifiers.registry import check_payload

from nemo_brorl.config.schema import DataConfig, DomainConfig, SourceConfig
from nemo_brorl.core.errors import BroRLError, ConfigError, DataError
from nemo_brorl.prompts.columns import RowFormat, is_wanted, question_of, row_formats
from nemo_brorl.prompts.file_source import MIN_BYTES, FileSource, QuestionFile, index_path, open_questions
from nemo_brorl.prompts.file_tables import find_files, parsed_row
from nemo_brorl.prompts.questions import (
    SPLITS,
    BadRow,
    Domain,
    Mixture,
    Question,
    Row,
    Source,
    hash_of,
    is_held_out,
)
from nemo_brorl.prompts.reasoning_gym import VERIFIER, ReasoningGymSource, check_tasks
from nemo_brorl.types import Int64, UInt64

__all__ = ["Mixture", "Question", "ReasoningGymSource", "Source", "check_tasks", "is_held_out", "make_source"]

MAX_ATTEMPTS = 1000  # draws for one task of a split before the split counts as empty
SEEDS = 2**31
DRAWN = "environment"  # the source of tasks that the environment draws
FILE_SOURCES = ("jsonl", "parquet", "dataset")
FIRST_ROWS = 20


class EnvironmentSource:
    """The questions of `source`, each the task of an episode, or, without one, tasks of the environment's own."""

    def __init__(
        self,
        config: SourceConfig,
        source: Source | None,
        held_out_fraction: float,
        split: str,
        seed: str,
    ) -> None:
        """Raises ConfigError for what is no environment, or one that has no tasks where it needs them."""
        assert config.environment is not None, "an environment was asked for"
        self.name = config.environment
        self.settings = dict(config.environment_settings)
        self.source = source
        self.held_out_fraction = held_out_fraction
        self.split = split
        self.seed = seed
        environment = make(self.name, self.settings)
        if config.source == DRAWN:
            environment.task(0)

    @property
    def size(self) -> int | None:
        """As the questions' source; tasks that are drawn have no end."""
        return None if self.source is None else self.source.size

    @property
    def fingerprint(self) -> str:
        """As the questions' source."""
        return "" if self.source is None else self.source.fingerprint

    def question(self, index: int) -> Question:
        """Prompt and task of episode `index`. Raises DataError when the environment draws none of this split, or does
        not begin an episode with what the source gives."""
        if self.source is not None:
            return self.answered(self.source.question(index))
        for attempt in range(MAX_ATTEMPTS):
            seed = hash_of(f"{self.seed}/{self.split}/{index}/{attempt}") % SEEDS
            task = make(self.name, self.settings).task(seed)
            written = repr(sorted(task.items()))
            if is_held_out(written, self.held_out_fraction) == (self.split == "held_out"):
                return self._question(self.name, task)
        raise DataError(
            f"environment {self.name} drew no {self.split} task in {MAX_ATTEMPTS} draws; it has too few different "
            f"tasks, or data.held_out_fraction={self.held_out_fraction} leaves none"
        )

    def answered(self, asked: Question) -> Question:
        """A question as the prompt and task of an episode. Raises DataError as `question`."""
        task = _task_of(asked)
        question = self._question(asked.task, task)
        return replace(question, level=asked.level)

    def _question(self, name: str, task: Task) -> Question:
        environment = make(self.name, self.settings)
        messages = first_messages(self.name, environment, task)
        payload = {
            "environment": self.name,
            "settings": self.settings,
            "task": dict(task),
        }
        return Question(
            task=name,
            verifier=ENVIRONMENT,
            text=messages[-1]["content"],
            payload=payload,
            messages=messages,
            tools=tuple(map(dict, environment.tools)),
        )


def first_messages(name: str, environment: Environment, task: Task) -> tuple[Message, ...]:
    """What an episode begins with. Raises DataError when it does not begin."""
    try:
        begun = _begun(environment, task)
        if inspect.iscoroutinefunction(environment.reset):
            return asyncio.run(begun)
        return completed(begun)
    except BroRLError:
        raise
    except Exception as error:  # a user's own code
        raise DataError(f"environment {name}: reset does not take its task: {type(error).__name__}: {error}") from error


async def _begun(environment: Environment, task: Task) -> tuple[Message, ...]:
    """The first messages. The episode is closed in the event loop that it began in, where there is one."""
    try:
        observation = await value_of(environment.reset(task, 0))
        return as_messages(observation, "user")
    finally:
        environment.close()


def _task_of(question: Question) -> Mapping[str, Any]:
    """A question as the task of an episode."""
    task: dict[str, Any] = {
        "text": question.text,
        "verifier": question.verifier,
        "payload": dict(question.payload),
    }
    if question.messages:
        task["messages"] = [dict(message) for message in question.messages]
    return task


class SplitFile(NamedTuple):
    """The files of a domain and what is held out of them."""

    train: QuestionFile
    held_out: QuestionFile  # the same, unless held-out questions have a file of their own
    held_out_rows: Int64
    held_out_hashes: UInt64


def make_source(
    config: DataConfig,
    split: str,
    seed: int,
    index_folder: Path | None = None,
) -> Mixture:
    """The configured source, as a mixture of one domain or several. In `index_folder` is kept what is found out about
    large files.

    Raises DataError when one is missing, empty, unknown, or holds too many rows that cannot be used; ConfigError for an
    unknown verifier.
    """
    if split not in SPLITS:
        raise DataError(f"unknown split {split!r}; choose one of {', '.join(SPLITS)}")
    sections = [section for section in _sections(config) if section.weight > 0]
    files = {}
    for section in sections:
        if section.source in FILE_SOURCES:
            files[section.name] = _split_file(section, config.held_out_fraction, index_folder)
    domains = []
    for section in sections:
        generated = None
        if section.name in files:
            source = _file_source(section, files, split, seed)
        else:
            source = generated = _generated(section, config, split, seed)
        if section.environment is not None:
            source = _answered(section, source, config, split, seed)
        if source is None:
            continue
        domain = Domain(
            name=section.name,
            source=source,
            weight=section.weight,
            system_prompt=config.system_prompt if section.system_prompt is None else section.system_prompt,
            max_prompt_tokens=section.max_prompt_tokens or config.max_prompt_tokens,
            levels=generated.levels if generated is not None else {},
        )
        domains.append(domain)
    if not domains and split == "held_out":
        raise DataError(
            f"there are no held_out rows: data.held_out_fraction={config.held_out_fraction}, and no data.held_out_path"
        )
    return Mixture(domains, f"{seed}/{split}")


def _sections(config: DataConfig) -> Sequence[DomainConfig]:
    if config.source == "mixture":
        return config.domains
    return [DomainConfig(**_settings(config), name="")]


def _settings(config: SourceConfig) -> dict[str, Any]:
    """What every source has, as it is written."""
    names = [field.name for field in dataclasses.fields(SourceConfig)]
    return {name: getattr(config, name) for name in names}


def _generated(
    section: DomainConfig,
    config: DataConfig,
    split: str,
    seed: int,
) -> ReasoningGymSource | None:
    if section.source == "environment":
        return None
    if section.source != "reasoning_gym":
        known = ", ".join(("reasoning_gym", *FILE_SOURCES, "mixture"))
        raise DataError(f"unknown data.source {section.source!r}; choose {known}")
    is_train_only = config.source == "mixture" and config.held_out_fraction == 0
    if split == "held_out" and is_train_only:
        return None
    verifier = section.verifier or VERIFIER
    source = ReasoningGymSource(
        section.tasks,
        config.held_out_fraction,
        split,
        _seed(section, seed),
        verifier=verifier,
        options=section.verifier_options,
    )
    if section.verifier_options:
        check_payload(verifier, source.question(0).payload)
    return source


def _answered(
    section: DomainConfig,
    source: Source | None,
    config: DataConfig,
    split: str,
    seed: int,
) -> Source | None:
    """The source with an environment that answers; None where nothing of it is held out."""
    draws_tasks = section.source == "environment"
    if source is None and not draws_tasks:
        return None
    if split == "held_out" and config.held_out_fraction == 0 and draws_tasks:
        return None
    return EnvironmentSource(
        section,
        source,
        config.held_out_fraction,
        split,
        _seed(section, seed),
    )


def _file_source(
    section: DomainConfig,
    files: dict[str, SplitFile],
    split: str,
    seed: int,
) -> Source | None:
    """None: nothing of it is held out."""
    own = files[section.name]
    order = f"{_seed(section, seed)}/{split}"
    if split == "held_out":
        if len(own.held_out_rows) == 0:
            return None
        return FileSource(own.held_out, own.held_out_rows, order)
    train = own.train
    held_out = [file.held_out_hashes for file in files.values()]  # of any domain: what one validates none trains
    is_held_out = np.isin(train.hashes, np.concatenate(held_out))
    rows = train.rows[~is_held_out]
    if len(rows) == 0:
        raise DataError(f"{section.path} has no train rows: all of its {len(train.rows)} questions are held out")
    return FileSource(train, rows, order)


def _seed(section: DomainConfig, seed: int) -> str:
    """Domains that read the same file are shuffled independently."""
    return f"{seed}/{section.name}" if section.name else f"{seed}"


def _split_file(section: DomainConfig, fraction: float, index_folder: Path | None) -> SplitFile:
    if section.path is None:
        raise DataError(f"{_label(section)}data.source={section.source} needs a file: set data.path=FILE")
    train = _opened(section, section.path, index_folder)
    if section.held_out_path is not None:
        whole = dataclasses.replace(section, dataset_split=None)
        own = _opened(whole, section.held_out_path, index_folder)
        return SplitFile(train, own, own.rows, own.hashes)
    chosen = train.held_out(fraction)
    return SplitFile(
        train=train,
        held_out=train,
        held_out_rows=train.rows[chosen],
        held_out_hashes=train.hashes[chosen],
    )


def _opened(section: DomainConfig, path: str, index_folder: Path | None) -> QuestionFile:
    try:
        stamps = []
        for file in find_files(section.source, path, section.dataset_split):
            stat = file.stat()
            stamp = (str(file), stat.st_size, stat.st_mtime_ns)
            stamps.append(stamp)
        decides = [_settings(section), dataclasses.asdict(allowed())]
        settings = json.dumps(decides, default=dataclasses.asdict, sort_keys=True)
        opening = _Opening(
            path=path,
            task=section.name or section.source,
            settings=settings,
            stamps=tuple(stamps),
            section=section,
            index_folder=index_folder,
        )
        return _looked_through(opening)
    except (DataError, ConfigError) as error:
        raise type(error)(f"{_label(section)}{error}") from error


@dataclass(frozen=True)
class _Opening:
    """What decides how a file reads."""

    path: str
    task: str
    settings: str  # settings of the source, and the names that its rows may use
    stamps: tuple[tuple[str, int, int], ...]  # name, size and time of every file
    section: DomainConfig = field(compare=False)  # its settings are in `settings`
    index_folder: Path | None = field(compare=False)

    @property
    def index(self) -> Path | None:
        """The file that keeps what is found out; None where that is found in a second, or not to be kept."""
        num_bytes = sum(size for _, size, _ in self.stamps)
        if self.index_folder is None or num_bytes < MIN_BYTES:
            return None
        stamps = json.dumps(self.stamps)
        return index_path(self.index_folder, (self.task, self.settings, stamps))


@lru_cache(maxsize=32)
def _looked_through(opening: _Opening) -> QuestionFile:
    """The files of an opening, which train and held-out streams and the warm-up share: looked through once, unless they
    change."""
    return open_questions(
        config=opening.section,
        path=opening.path,
        task=opening.task,
        index=opening.index,
    )


def _label(section: DomainConfig) -> str:
    return f"domain {section.name}: " if section.name else ""


def first_rows(file: Path, formats: tuple[RowFormat, ...]) -> list[Row]:
    """At most FIRST_ROWS rows of a file."""
    from nemo_brorl.prompts.file_tables import open_tables

    if file.suffix in (".parquet", ".arrow"):
        columns: set[str] = set()
        for layout in formats:
            columns.update(layout.columns)
        tables = open_tables([file], sorted(columns))
        num_rows = min(FIRST_ROWS, len(tables))
        return [tables.row(index) for index in range(num_rows)]
    with file.open("rb") as lines:
        not_empty = filter(bytes.strip, lines)
        return [parsed_row(line) for line in islice(not_empty, FIRST_ROWS)]


def some_questions(
    source: SourceConfig,
    num: int,
    budget_s: float,
) -> Iterator[list[Question]]:
    """At most `num` questions of each Reasoning Gym task, until `budget_s` seconds have been spent on making them, or
    the first ones of a file. Raises DataError as the source does."""
    if source.source == "environment":
        return
    if source.source != "reasoning_gym":
        yield _of_files(source)
        return
    from nemo_brorl.prompts.reasoning_gym import ReasoningGymSource, expanded

    spent_s = 0.0
    for task in expanded(source.tasks):
        if spent_s > budget_s:
            return
        start = time.monotonic()
        tasks = ReasoningGymSource(
            [task],
            held_out_fraction=0.0,
            split="train",
            seed=0,
            verifier=source.verifier or "reasoning_gym",
            options=source.verifier_options,
        )
        questions = [tasks.question(index) for index in range(num)]
        spent_s += time.monotonic() - start
        yield questions


def _of_files(source: SourceConfig) -> list[Question]:
    assert source.path is not None, "the settings were checked"
    formats = row_formats(source)
    files = find_files(source.source, source.path, source.dataset_split)
    found = []
    for row in first_rows(files[0], formats):
        if isinstance(row, BadRow) or not is_wanted(row, source.only):
            continue
        question = question_of(row, formats, "", source.verifier_options)
        if not isinstance(question, BadRow):
            found.append(question)
    return found
