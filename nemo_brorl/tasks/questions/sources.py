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
from typing import NamedTuple

import numpy as np

from nemo_brorl.config.schema import DataConfig, DomainConfig, SourceConfig
from nemo_brorl.core.errors import ConfigError, DataError
from nemo_brorl.tasks.questions.file_source import FileSource, QuestionFile, open_questions
from nemo_brorl.tasks.questions.mixture import Domain, Mixture
from nemo_brorl.tasks.questions.questions import SPLITS, Question, Source, is_held_out
from nemo_brorl.tasks.questions.reasoning_gym import VERIFIER, ReasoningGymSource, check_tasks
from nemo_brorl.tasks.questions.row_index import MIN_BYTES, index_path
from nemo_brorl.tasks.questions.tables import find_files
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


def make_source(config: DataConfig, split: str, seed: int, index_folder: Path | None = None) -> Mixture:
    """The configured source, as a mixture of one domain or several. In `index_folder` is kept what is found out about
    large files.

    Raises DataError when one is missing, empty, unknown, or holds too many rows that cannot be used; ConfigError for an
    unknown verifier.
    """
    if split not in SPLITS:
        raise DataError(f"unknown split {split!r}; choose one of {', '.join(SPLITS)}")
    sections = [section for section in _sections(config) if section.weight > 0]
    files = {
        section.name: _split_file(section, config.held_out_fraction, index_folder)
        for section in sections
        if section.source in FILE_SOURCES
    }
    sources = {
        section.name: _file_source(section, files, split, seed)
        if section.name in files
        else _generated(section, config, split, seed)
        for section in sections
    }
    domains = [
        Domain(
            name=section.name,
            source=source,
            weight=section.weight,
            system_prompt=config.system_prompt if section.system_prompt is None else section.system_prompt,
            max_prompt_tokens=section.max_prompt_tokens or config.max_prompt_tokens,
        )
        for section in sections
        if (source := sources[section.name]) is not None
    ]
    if not domains and split == "held_out":
        raise DataError(
            f"there are no held_out rows: data.held_out_fraction={config.held_out_fraction}, and no data.held_out_path"
        )
    return Mixture(domains, f"{seed}/{split}")


def _sections(config: DataConfig) -> Sequence[DomainConfig]:
    if config.source == "mixture":
        return config.domains
    fields = {part.name: getattr(config, part.name) for part in dataclasses.fields(SourceConfig)}
    return [DomainConfig(**fields, name="")]


def _generated(section: DomainConfig, config: DataConfig, split: str, seed: int) -> Source | None:
    if section.source != "reasoning_gym":
        known = ", ".join(("reasoning_gym", *FILE_SOURCES, "mixture"))
        raise DataError(f"unknown data.source {section.source!r}; choose {known}")
    if config.source == "mixture" and split == "held_out" and config.held_out_fraction == 0:
        return None
    verifier, options = section.verifier or VERIFIER, section.verifier_options
    source = ReasoningGymSource(
        section.tasks, config.held_out_fraction, split, _seed(section, seed), verifier=verifier, options=options
    )
    if options:
        check_payload(verifier, source.question(0).payload)
    return source


def _file_source(section: DomainConfig, files: dict[str, SplitFile], split: str, seed: int) -> Source | None:
    own = files[section.name]
    if split == "held_out":
        return (
            FileSource(own.held_out, own.held_out_rows, f"{_seed(section, seed)}/{split}")
            if len(own.held_out_rows)
            else None
        )
    held_out = np.concatenate(
        [file.held_out_hashes for file in files.values()]
    )  # of any domain: what one validates none trains
    rows = own.train.rows[~np.isin(own.train.hashes, held_out)]
    if not len(rows):
        raise DataError(f"{section.path} has no train rows: all of its {len(own.train.rows)} questions are held out")
    return FileSource(own.train, rows, f"{_seed(section, seed)}/{split}")


def _seed(section: DomainConfig, seed: int) -> str:
    """Domains that read the same file are shuffled independently."""
    return f"{seed}/{section.name}" if section.name else f"{seed}"


def _split_file(section: DomainConfig, fraction: float, index_folder: Path | None) -> SplitFile:
    if section.path is None:
        raise DataError(f"{_label(section)}data.source={section.source} needs a file: set data.path=FILE")
    train = _opened(section, section.path, index_folder)
    if section.held_out_path is not None:
        own = _opened(dataclasses.replace(section, dataset_split=None), section.held_out_path, index_folder)
        return SplitFile(train, own, own.rows, own.hashes)
    chosen = train.held_out(fraction)
    return SplitFile(train, train, train.rows[chosen], train.hashes[chosen])


def _opened(section: DomainConfig, path: str, index_folder: Path | None) -> QuestionFile:
    try:
        files = find_files(section.source, path, section.dataset_split)
        stamps = tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files)
        settings = {part.name: getattr(section, part.name) for part in dataclasses.fields(SourceConfig)}
        written = json.dumps(settings, default=dataclasses.asdict, sort_keys=True)
        return _scanned(_Opening(path, section.name or section.source, written, stamps, section, index_folder))
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
        if self.index_folder is None or sum(size for _, size, _ in self.stamps) < MIN_BYTES:
            return None
        return index_path(self.index_folder, (self.task, self.settings, json.dumps(self.stamps)))


@lru_cache(maxsize=32)
def _scanned(opening: _Opening) -> QuestionFile:
    """Train and held-out streams and the warm-up read the same files: each is looked through once, unless it
    changes."""
    return open_questions(opening.section, opening.path, opening.task, opening.index)


def _label(section: DomainConfig) -> str:
    return f"domain {section.name}: " if section.name else ""
