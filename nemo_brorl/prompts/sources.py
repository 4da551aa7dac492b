"""Open the configured sources of questions, one or a mixture, for training or held out.

A hash of the question's text decides its split, or held-out questions have their own files. The splits never share a
question, nor one that differs in blanks or case alone, whatever the seed, the tasks' settings or the order of rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nemo_brorl.config.data import DataConfig, SourceConfig
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import ConfigError, DataError
from nemo_brorl.prompts.environment_source import DRAWN, AnsweredSource, DrawnSource, Episodes
from nemo_brorl.prompts.file_source import FileSource, SplitFile, open_questions
from nemo_brorl.prompts.mixture import Domain, Mixture
from nemo_brorl.prompts.questions import SPLITS, Source
from nemo_brorl.prompts.reasoning_gym import open_tasks

log = get_logger(__name__)

FILE_SOURCES = ("jsonl", "parquet", "dataset")


class Section(NamedTuple):
    """A source as set in the configuration, with its share and prompt settings in the mixture."""

    name: str  # "" for a source without a mixture
    key: str  # settings key
    config: SourceConfig
    weight: float
    system_prompt: str | None
    max_prompt_tokens: int
    success_reward: float | None

    def label(self) -> str:
        """Return the prefix of messages about this data source: "domain NAME: ", or "" without a mixture."""
        return f"domain {self.name}: " if self.name else ""

    def seed(self, seed: int) -> str:
        """Return the seed by which this data source is shuffled.

        Domains of a mixture that read one file get different seeds and are shuffled independently.
        """
        return f"{seed}/{self.name}" if self.name else f"{seed}"


class Sources:
    """The sources of questions that the configuration sets. Files are read once, for both splits."""

    def __init__(self, config: DataConfig) -> None:
        """Read the data files of all configured sources of questions.

        Raises DataError when a file is missing, empty, or has too many unusable rows. Raises ConfigError for an unknown
        verifier.
        """
        self.held_out_share = config.held_out_fraction
        self.sections = _sections(config)
        self.files: dict[str, SplitFile] = {}  # files by section
        for section in self.sections:
            if section.config.source in FILE_SOURCES:
                self.files[section.name] = _split_file(section, config.held_out_fraction)

    def split(self, name: str, seed: int) -> Mixture:
        """Return a mixture of the data sources that have questions of a split (training or held-out).

        Raises DataError if no source has any, or for an unknown source. Raises ConfigError for an unknown verifier or
        environment.
        """
        if name not in SPLITS:
            raise DataError(f"unknown split {name!r}; choose one of {', '.join(SPLITS)}")
        domains = []
        for section in self.sections:
            source = self._source(section, name, seed)
            if source.size == 0:
                log.info("%sno questions are held out", section.label())
                continue
            domain = Domain(
                name=section.name,
                source=source,
                weight=section.weight,
                system_prompt=section.system_prompt,
                max_prompt_tokens=section.max_prompt_tokens,
                success_reward=section.success_reward,
            )
            domains.append(domain)
        if not domains and name == "held_out":
            raise DataError(
                f"there are no held_out rows: data.held_out_fraction={self.held_out_share}, and no data.held_out_path"
            )
        return Mixture(domains, f"{seed}/{name}")

    def _source(self, section: Section, split: str, seed: int) -> Source:
        """Return a data source's questions of one split, as starts of episodes if the source has an environment.

        The result has size 0 if no question is held out for a held-out split.
        """
        config = section.config
        own_seed = section.seed(seed)
        if config.source == DRAWN:
            return DrawnSource(Episodes(config), self.held_out_share, split, own_seed)
        asked = self._asked(section, split, own_seed)
        if config.environment is None:
            return asked
        return AnsweredSource(Episodes(config), asked)

    def _asked(self, section: Section, split: str, seed: str) -> Source:
        """Return a data source's questions of one split, before an environment turns them into episodes."""
        config = section.config
        if section.name in self.files:
            return self._rows(section, split, f"{seed}/{split}")
        if config.source == "reasoning_gym":
            return open_tasks(config, self.held_out_share, split, seed)
        known = ", ".join(("reasoning_gym", *FILE_SOURCES, "mixture"))
        raise DataError(f"unknown data.source {config.source!r}; choose {known}")

    def _rows(self, section: Section, split: str, order: str) -> FileSource:
        """Return the questions of one split in the data files of a source.

        Questions that any domain of the mixture holds out are trained on in no domain.
        """
        file = self.files[section.name]
        if split == "held_out":
            return FileSource(file.held_out, file.held_out_rows, order)
        forms = [own.held_out_forms for own in self.files.values()]
        is_held_out = np.isin(file.train.forms, np.concatenate(forms))
        rows = file.train.rows[~is_held_out]
        if len(rows) == 0:
            raise DataError(
                f"{section.config.path} has no train rows: all of its {len(file.train.rows)} questions are held out. "
                "Give more questions, or others in data.held_out_path"
            )
        return FileSource(file.train, rows, order)


def make_source(config: DataConfig, split: str, seed: int) -> Mixture:
    """Return the questions of one split (training or held-out), mixed from all configured data sources.

    Raises DataError for unusable data files, an unknown source or split, or a split without questions. Raises
    ConfigError for an unknown verifier or environment.
    """
    return Sources(config).split(split, seed)


def _sections(config: DataConfig) -> Sequence[Section]:
    if config.source != "mixture":
        return [Section("", "data", config, 1.0, config.system_prompt, config.max_prompt_tokens, config.success_reward)]
    found = []
    for index, domain in enumerate(config.domains):
        section = Section(
            name=domain.name,
            key=f"data.domains.{index}",
            config=domain,
            weight=domain.weight,
            system_prompt=config.system_prompt if domain.system_prompt is None else domain.system_prompt,
            max_prompt_tokens=domain.max_prompt_tokens or config.max_prompt_tokens,
            success_reward=config.success_reward if domain.success_reward is None else domain.success_reward,
        )
        if domain.weight > 0:
            found.append(section)
    return found


def _split_file(section: Section, held_out_share: float) -> SplitFile:
    config = section.config
    if config.path is None:
        raise DataError(f"{section.label()}data.source={config.source} needs a file: set data.path=FILE")
    task = section.name or config.source
    try:
        train = open_questions(config, config.path, task, section.key)
        if config.held_out_path is None:
            return train.split(held_out_share)
        # `dataset_split` is for `path`. The held-out dataset may have no such split.
        whole = dataclasses.replace(config, dataset_split=None)
        held_out = open_questions(whole, config.held_out_path, task, section.key)
        return SplitFile(train, held_out, held_out.rows, held_out.forms)
    except (DataError, ConfigError) as error:
        raise type(error)(f"{section.label()}{error}") from error
