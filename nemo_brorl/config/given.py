"""Find the settings that the user gives: on the command line, and in YAML files other than the shipped ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from nemo_brorl.config.data import SourceConfig
from nemo_brorl.config.schema import BroRLConfig, settings, without_indices
from nemo_brorl.core.errors import ConfigError

Given = Mapping[str, Any]  # values by settings key, such as data.domains.0.path, as YAML reads them
SWITCHES = ("yes", "no", "on", "off")


def given_settings(folder: Path, name: str, shipped: Path, overrides: Sequence[str]) -> Given:
    """Return the settings of the user's YAML file, of those that it builds on, and of the overrides, in this order.

    Raises ConfigError for a file that builds on no other and is not whole.
    """
    given = dict(_leaves_of_file(folder, name, shipped)) if folder != shipped else {}
    for text in overrides:
        override = OverridesParser.create().parse_override(text)
        value, written = override.value(), text.partition("=")[2]
        # Hydra reads these words as texts, where YAML files read them as true and false.
        given.update(_leaves(yaml.safe_load(written) if written in SWITCHES else value, override.key_or_group))
    return given


def is_whole(path: Path) -> bool:
    """Return whether a YAML file has every section and builds on no other, as the settings of a frozen job do."""
    tree = _tree(path)
    return tree is not None and "defaults" not in tree and not _missing(tree)


def check_layout(path: Path) -> None:
    """Raise ConfigError for a YAML file of the user's that names no settings, or whose settings have no effect."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            tree = yaml.safe_load(file)
    except (OSError, ValueError, yaml.YAMLError):
        # Hydra says what is wrong with it.
        return
    if not isinstance(tree, dict):
        held = "nothing" if tree is None else f"a {type(tree).__name__}"
        raise ConfigError(
            f"{path} holds {held}, and no settings by their names: write as its first line, for example, "
            "defaults: [your_model, _self_]"
        )
    for key, value in tree.items():
        section, _, name = str(key).partition(".")
        if name and "defaults" in tree:
            raise ConfigError(f"{path}: a key with dots is not read: write {section}: {{{name}: {value}}}")
        if value is None and section in (field.name for field in dataclasses.fields(BroRLConfig)):
            raise ConfigError(f"{path}: {section} is empty: write settings below it, or leave it out")
    defaults = tree.get("defaults")
    if isinstance(defaults, list) and "_self_" in defaults[:-1]:
        raise ConfigError(f"{path}: what follows _self_ in defaults replaces the settings of this file: write it last")


def check_texts(given: Given) -> None:
    """Raise ConfigError for a switch or number that would become a text, such as "False", and for an empty path."""
    for key, value in given.items():
        known = settings().get(without_indices(key))
        if known is not None and known.declared.is_path and value == "":
            raise ConfigError(f"{key} is an empty text: set a path, or leave it out")
        if known is None or known.annotation not in ("str", "str | None") or known.declared.choices:
            continue
        if isinstance(value, bool | int | float):
            written = str(value).lower() if isinstance(value, bool) else value
            null = ", null for the default" if "None" in known.annotation else ""
            raise ConfigError(
                f"{key}={written} must be text: set {key}='\"\"' for none{null}, or {key}='\"{written}\"' for the text "
                "itself"
            )


def infer_sources(config: BroRLConfig, given: Given) -> None:
    """Set the kind of each data source that names a file and no kind, by the file's name.

    Raises ConfigError where the user asks the source for generated questions, too.
    """
    _infer(config.data, "data", given)
    for index, domain in enumerate(config.data.domains):
        _infer(domain, f"data.domains.{index}", given)
    for index, benchmark in enumerate(config.evaluation.benchmarks):
        _infer(benchmark, f"evaluation.benchmarks.{index}", given)


def _infer(source: SourceConfig, where: str, given: Given) -> None:
    if source.path is None or source.source != "reasoning_gym":
        return
    for key, value in given.items():
        if key == f"{where}.source" or key.startswith(f"{where}.tasks"):
            raise ConfigError(
                f"{where}.path={source.path} and {key}={value} name two sources of questions, a file and generated "
                "tasks: leave one of them out"
            )
    path = Path(source.path).expanduser()
    if path.is_dir():
        source.source = "dataset"
    else:
        source.source = "parquet" if path.suffix == ".parquet" else "jsonl"


def _leaves_of_file(folder: Path, name: str, shipped: Path) -> Iterator[tuple[str, Any]]:
    path = folder / f"{name}.yaml"
    tree = None if folder == shipped else _tree(path)
    if tree is None:
        return
    defaults = tree.pop("defaults", None)
    missing = _missing(tree)
    if not defaults and missing:
        raise ConfigError(
            f"{path} builds on nothing and lacks {', '.join(missing[:3])}, …: write as its first line, for example, "
            "defaults: [your_model, _self_]"
        )
    for entry in defaults or ():
        if isinstance(entry, str) and entry != "_self_":
            yield from _leaves_of_file(folder, entry, shipped)
    yield from _leaves(tree, "")


def _tree(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    with path.open(encoding="utf-8") as file:
        tree = yaml.safe_load(file)
    return tree if isinstance(tree, dict) else None


def _missing(tree: Mapping[str, Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(BroRLConfig) if field.name not in tree]


def _leaves(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield settings key and value of every leaf, with items of lists by their numbers."""
    items: Sequence[tuple[Any, Any]] = ()
    if isinstance(node, dict):
        items = list(node.items())
    elif isinstance(node, list):
        items = list(enumerate(node))
    for name, value in items:
        yield from _leaves(value, f"{key}.{name}" if key else str(name))
    if not items:
        yield key, node
