"""Parse the command line of `render` and `submit`: a configuration, a site, and an option for every site setting."""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brorl_launcher.site import Site
from nemo_brorl.config.declare import declaration
from nemo_brorl.config.load import DEFAULT_CONFIG
from nemo_brorl.core.console import write_error, write_words
from nemo_brorl.core.errors import ConfigError

PAIRS = {"environment": "--env"}  # NAME=VALUE, repeatable
LISTS = {"mounts": "--mount", "setup": "--setup", "options": "--sbatch"}  # repeatable
SECTION = "the site's settings, over those of --site (conf/site/example.yaml)"


@dataclass(frozen=True)
class JobRequest:
    """The parsed command line of `brorl render` or `brorl submit`."""

    arguments: tuple[str, ...]  # command name and arguments as typed
    config_name: str
    config_path: Path | None
    overrides: tuple[str, ...]
    site_name: str | None
    site_settings: dict[str, Any]  # settings from the command line
    with_plan: bool
    with_test: bool
    needs_clean: bool


class _Parser(argparse.ArgumentParser):
    """Parser whose help and errors fit the terminal."""

    def _print_message(self, message: str, file: Any = None) -> None:
        write = write_error if file is sys.stderr else write_words
        write(message)


def command_parser(command: str, description: str, examples: str) -> argparse.ArgumentParser:
    """Return the command-line parser of a `brorl` command, with a description and examples in its help text."""
    return _Parser(
        prog=f"brorl {command}",
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def job_parser(command: str, description: str, examples: str) -> argparse.ArgumentParser:
    """Return a command-line parser with the options that `brorl render` and `brorl submit` share."""
    parser = command_parser(command, description, examples)
    parser.usage = f"brorl {command} [--config-name NAME] [--site SITE] [option ...] [KEY=VALUE ...]"
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="settings of the run, as for `brorl train`: rollouts.num_per_prompt=256",
    )
    parser.add_argument(
        "--config-name",
        "-cn",
        default=DEFAULT_CONFIG,
        metavar="NAME",
        help=f"a YAML of conf/ (default: {DEFAULT_CONFIG})",
    )
    parser.add_argument("--config-path", "-cp", type=Path, metavar="FOLDER", help="look for the YAML there")
    parser.add_argument("--run", metavar="FOLDER", help="the run folder: short for exp_manager.explicit_log_dir=FOLDER")
    parser.add_argument("--nodes", type=int, metavar="N", help="training nodes: short for trainer.num_nodes=N")
    parser.add_argument("--gpus-per-node", type=int, metavar="N", help="short for trainer.gpus_per_node=N")
    parser.add_argument(
        "--site", metavar="SITE", help="a YAML file, or NAME for conf/site/NAME.yaml (default: $BRORL_SITE)"
    )
    parser.add_argument(
        "--no-plan", action="store_true", help="continue although the planner says that the run does not fit"
    )
    parser.add_argument("--no-test", action="store_true", help="do not ask Slurm whether it would take the job")
    parser.add_argument(
        "--require-clean",
        action="store_true",
        help="refuse code with uncommitted changes (default: freeze it as it is)",
    )
    _add_site_options(parser)
    return parser


def read_request(command: str, arguments: Sequence[str], options: argparse.Namespace) -> JobRequest:
    """Return the job request that the parsed options of `brorl render` or `brorl submit` describe.

    `arguments` is the command line as it was typed. Raises ConfigError when an option and the setting that it stands
    for are both given.
    """
    overrides = list(options.overrides)
    for option, key in (
        ("run", "exp_manager.explicit_log_dir"),
        ("nodes", "trainer.num_nodes"),
        ("gpus_per_node", "trainer.gpus_per_node"),
    ):
        value = getattr(options, option)
        if value is None:
            continue
        given = [override for override in overrides if override.lstrip("+").startswith(f"{key}=")]
        if given:
            raise ConfigError(f"--{option.replace('_', '-')} {value} and {given[0]} set the same thing: leave one out")
        overrides.append(f"{key}={_hydra_text(str(value))}" if option == "run" else f"{key}={value}")
    return JobRequest(
        arguments=(command, *arguments),
        config_name=options.config_name,
        config_path=options.config_path,
        overrides=tuple(overrides),
        site_name=options.site,
        site_settings=_site_settings(options),
        with_plan=not options.no_plan,
        with_test=not options.no_test,
        needs_clean=options.require_clean,
    )


def _hydra_text(text: str) -> str:
    """Return a text as a quoted value of Hydra's override syntax."""
    return "'" + re.sub(r"(\\*)'", r"\1\1\\'", text) + "'"


def _add_site_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(SECTION)
    for setting in dataclasses.fields(Site):
        meaning = declaration(setting).meaning.replace("%", "%%")
        option = f"--{setting.name.replace('_', '-')}"
        if setting.name in PAIRS:
            group.add_argument(
                PAIRS[setting.name], action="append", dest=setting.name, metavar="NAME=VALUE", help=meaning
            )
        elif setting.name in LISTS:
            group.add_argument(LISTS[setting.name], action="append", dest=setting.name, metavar="TEXT", help=meaning)
        elif setting.type == "bool":
            group.add_argument(option, action=argparse.BooleanOptionalAction, default=None, help=meaning)
        else:
            group.add_argument(option, metavar="VALUE", help=meaning)


def _site_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the cluster site that options of the command line give.

    Raises ConfigError for an environment variable without a value.
    """
    given = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(Site)
        if getattr(options, field.name) is not None
    }
    for name, option in PAIRS.items():
        if name not in given:
            continue
        wrong = [pair for pair in given[name] if "=" not in pair]
        if wrong:
            raise ConfigError(f"{option} {wrong[0]}: pass {option} NAME=VALUE")
        given[name] = dict(pair.split("=", 1) for pair in given[name])
    return given
