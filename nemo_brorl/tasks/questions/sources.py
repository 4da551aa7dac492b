"""The configured source of questions, one or a mixture, train or held out.

Train and held-out questions are told apart by a hash of the question's text, or lie in files of their own: they never
share a question, whatever the seed, the tasks' settings or the order of rows.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nemo_brorl.config.schema import DataConfig, DomainConfig, SourceConfig
from nemo_brorl.core.errors import ConfigError, DataError
from nemo_brorl.tasks.questions.environment_source import EnvironmentSource
from nemo_brorl.tasks.questions.file_source import FileSource, QuestionFile, open_questions
from nemo_brorl.tasks.questions.folders import find_files
from nemo_brorl.tasks.questions.mixture import Domain, Mixture
from nemo_brorl.tasks.questions.questions import SPLITS, Question, Source, is_held_out
from nemo_brorl.tasks.questions.reasoning_gym import VERIFIER, ReasoningGymSource, check_tasks
from nemo_brorl.tasks.questions.row_index import MIN_BYTES, index_path
from nemo_brorl.tasks.verifiers.registry import check_payload
from nemo_brorl.types import Int64, UInt64

__all__ = ["Mixture", "Question", "ReasoningGymSource", "Source", "check_tasks", "is_held_out", "make_source"]

FILE_SOURCES = ("jsonl", "parquet", "dataset")


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
        settings = json.dumps(_settings(section), default=dataclasses.asdict, sort_keys=True)
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
    settings: str
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
