"""Find settings that the user gives and a run does not read, by a table of the settings that switch others off.

A setting that is in no row of the table is read in every run of its command.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from brorl_graders.base.components import is_import_path

from nemo_brorl.config.data import FILE_WORDS, SourceConfig
from nemo_brorl.config.given import Given
from nemo_brorl.config.schema import BroRLConfig, as_yaml, settings, without_indices
from nemo_brorl.core.errors import ConfigError

TRAIN, EVALUATE, SFT = "train", "evaluate", "sft"


class Switch(NamedTuple):
    """Settings that are read under some values of another setting only."""

    names: str  # settings or sections, by their ends after the same start; "*": all of the start
    by: str  # the settings that decide
    values: tuple[Any, ...] = ()  # values of one of these under which the settings are read; empty: all true ones
    start: str = ""  # section of the settings


SWITCHES = (
    Switch("estimator log_ratio_clamp", "algorithm.kl.coefficient", start="algorithm.kl"),
    Switch(
        "clear_optimizer",
        "algorithm.reference_reset.interval algorithm.reference_reset.kl_above algorithm.reference_reset.patience",
        start="algorithm.reference_reset",
    ),
    Switch("kind cap low high", "algorithm.importance_correction.enabled", start="algorithm.importance_correction"),
    Switch(
        "cap",
        "algorithm.importance_correction.kind",
        ("tis", "sequence_mask", "sequence_tis"),
        "algorithm.importance_correction",
    ),
    Switch(
        "low high",
        "algorithm.importance_correction.kind",
        ("icepop", "sequence_mask"),
        "algorithm.importance_correction",
    ),
    Switch("share", "algorithm.covariance.kind", ("clip_cov", "kl_cov"), "algorithm.loss_params.covariance"),
    Switch("low high", "algorithm.covariance.kind", ("clip_cov",), "algorithm.loss_params.covariance"),
    Switch("coefficient", "algorithm.covariance.kind", ("kl_cov",), "algorithm.loss_params.covariance"),
    Switch("pass_at_k", "algorithm.advantage", ("pass_at_k",), "algorithm"),
    Switch("dual_clip", "algorithm.loss", ("ppo_clip",), "algorithm"),
    Switch("credit", "data.environment", start="algorithm"),
    Switch("min_reward_range", "dynamic_sampling.enabled", start="dynamic_sampling"),
    Switch("max_turn_tokens", "data.environment", start="rollouts"),
    Switch("params", "rollouts.prompt_pool.name", start="rollouts.prompt_pool"),
    Switch("learning_rate_scaling", "rollouts.schedule.kind", ("staged", "budget", "on_plateau"), "rollouts.schedule"),
    Switch("*", "rollouts.schedule.kind", ("on_plateau",), "rollouts.schedule.plateau"),
    Switch("trajectory_reward environments", "data.environment", start="rewards"),
    Switch("max_constant_reward", "rewards.constant_answers", ("warn", "refuse"), "rewards"),
    Switch("overlong_penalty", "rewards.shaping.overlong_buffer", start="rewards.shaping"),
    Switch("repetition_ngram", "rewards.shaping.repetition_penalty", start="rewards.shaping"),
    Switch(
        "correct_short correct_long wrong_short wrong_long on_steps off_steps",
        "rewards.shaping.cosine.enabled",
        start="rewards.shaping.cosine",
    ),
    Switch("function_params", "rewards.shaping.function", start="rewards.shaping"),
    Switch("fp8_recipe fp8_params fp8_bf16_first_layers fp8_bf16_last_layers", "policy.fp8", start="policy"),
    Switch("fp8_amax_history", "policy.fp8_recipe", ("delayed",), "policy"),
    Switch("fp8_amax_history", "policy.fp8", start="policy"),
    Switch("min_shared_tokens", "policy.shared_prompt", start="policy"),
    Switch("kv_cache_gib", "trainer.gpus_per_node", (0,), "generation"),
    Switch("gpu_memory_utilization", "trainer.gpus_per_node", start="generation"),
    Switch("max_mean_abs_diff", "parity.enabled", start="parity"),
    Switch("max_fp8_mismatch", "policy.fp8", start="parity"),
    Switch("keep_steps share max_gib text", "store.enabled", start="store"),
    Switch("keep_steps", "timeline.enabled", start="timeline"),
    Switch("steps ranks", "profile.kind", ("torch", "nsys"), "profile"),
    Switch("last_lr_fraction", "sft.lr_schedule", ("cosine", "linear"), "sft"),
)
FILES = tuple(FILE_WORDS)
# the same, within a source of questions
SWITCHES_OF_SOURCES = (
    Switch("path held_out_path preset only columns max_bad_rows repeated_rows", "source", FILES),
    Switch("dataset_split", "source", ("dataset",)),
    Switch("tasks", "source", ("reasoning_gym",)),
    Switch("verifier verifier_options", "source", (*FILES, "reasoning_gym")),
)
OF_ONE_SOURCE = " ".join(field.name for field in dataclasses.fields(SourceConfig) if field.name != "source")
# settings that a command does not read, with what does
OF_OTHER_COMMANDS = {
    TRAIN: {
        "`brorl sft` and `brorl base` do": "sft",
        "`brorl evaluate` does": "evaluation.benchmarks evaluation.only evaluation.pass_at_k evaluation.majority_at_k "
        "evaluation.confidence evaluation.bootstrap_samples evaluation.checkpoint evaluation.save_samples "
        "evaluation.output",
    },
    EVALUATE: {
        "`brorl train` does": "algorithm dynamic_sampling parity store timeline profile sft policy.optim "
        "rollouts.overlap rollouts.schedule rollouts.prompt_pool rollouts.unfinished rollouts.deadline_s "
        "rollouts.step_deadline_s rollouts.min_fraction rollouts.save_samples rollouts.prompts_per_step "
        "rewards.shaping rewards.constant_answers rewards.max_constant_reward trainer.max_steps trainer.val_interval "
        "trainer.save_interval trainer.async_save trainer.keep_checkpoints trainer.rehearsal trainer.observers",
        "evaluation.samples_per_prompt is": "rollouts.num_per_prompt",
        "evaluation.temperature is": "rollouts.temperature",
        "evaluation.top_p is": "rollouts.top_p",
    },
    SFT: {
        "`brorl train` does": "rollouts generation dynamic_sampling algorithm rewards evaluation parity store "
        "timeline trainer.rehearsal trainer.observers data.tasks data.verifier data.verifier_options "
        "data.environment data.environment_settings data.preset data.answer_format data.answer_instruction "
        "data.max_prompt_tokens data.repeated_rows data.changed_rows",
        "`brorl base` does": "sft.demonstrations sft.new",
        "sft.lr is": "policy.optim.lr",
        "sft.warmup_steps is": "policy.optim.warmup_steps",
    },
}


def unread_settings(config: BroRLConfig, command_line: Given, file: Given, command: str) -> list[str]:
    """Return a message for each setting of the command line or the user's YAML `file` that `command` does not read.

    A file may hold settings of other commands, and defaults. Raises ConfigError where one of them gives two sources of
    questions.
    """
    said = []
    switches = list(_switches(config, command))
    for given, others in ((command_line, OF_OTHER_COMMANDS[command]), (file, {})):
        for key, value in given.items():
            known = settings().get(without_indices(key))
            is_default = given is file and known is not None and known.default == as_yaml(value)
            if value in (None, False, "") or value in ([], {}) or is_default or (given is file and key in command_line):
                continue
            why = next((why for why, names in others.items() if _is_among(key, names.split())), None)
            if why is not None:
                said.append(f"{key}={_shown(value)} is not read by `brorl {command}`: {why}")
                continue
            unread = next((switch for switch in switches if _is_switched_off(config, switch, key)), None)
            if unread is not None:
                _check_source(key, value, unread, given)
                said.append(f"{key}={_shown(value)} is not read: {_now(config, unread)}")
    return said


def late_steps(config: BroRLConfig, given: Given) -> Iterator[str]:
    """Yield a message for each setting of steps that lie behind the end of the run."""
    last = config.trainer.max_steps
    warmup = config.policy.optim.warmup_steps
    if warmup >= last > 0:
        yield (
            f"policy.optim.warmup_steps={warmup} and trainer.max_steps={last}: the learning rate never reaches "
            f"policy.optim.lr. Set policy.optim.warmup_steps={last // 10}"
        )
    for key in ("algorithm.reference_reset.interval", "trainer.val_interval", "trainer.save_interval"):
        if key in given and attrgetter(key)(config) > last > 0:
            yield f"{key}={attrgetter(key)(config)} is beyond trainer.max_steps={last}: it does not come about"
    steps = config.profile.steps
    if config.profile.kind != "off" and steps and min(steps) > last > 0:
        yield f"profile.steps={steps} are beyond trainer.max_steps={last}: set profile.steps=[{last}]"


def late_steps_of_sft(config: BroRLConfig) -> Iterator[str]:
    """Yield a message where the warm-up of supervised fine-tuning is longer than its steps."""
    warmup, last = config.sft.warmup_steps, config.sft.max_steps
    if warmup >= last:
        yield (
            f"sft.warmup_steps={warmup} and sft.max_steps={last}: the learning rate never reaches sft.lr. Set "
            f"sft.warmup_steps={last // 10}"
        )


def _switches(config: BroRLConfig, command: str) -> Iterator[Switch]:
    yield from SWITCHES
    sources = [("data", config.data), *((f"data.domains.{n}", part) for n, part in enumerate(config.data.domains))]
    if config.data.source == "mixture":
        yield Switch(OF_ONE_SOURCE, "data.source", (*FILES, "reasoning_gym", "environment"), "data")
        sources = sources[1:]
    if command == EVALUATE:
        benchmarks = enumerate(config.evaluation.benchmarks)
        sources += [(f"evaluation.benchmarks.{n}", part) for n, part in benchmarks]
        if config.evaluation.benchmarks:
            yield Switch(f"{OF_ONE_SOURCE} source domains", "evaluation.benchmarks", ([],), "data")
            yield Switch("num_prompts first_prompt", "evaluation.benchmarks", ([],), "evaluation")
    for where, _ in sources:
        for switch in SWITCHES_OF_SOURCES:
            yield switch._replace(by=f"{where}.{switch.by}", start=where)
    if all(source.held_out_path is not None for _, source in config.data.sources()) and command != EVALUATE:
        yield Switch("held_out_fraction", "data.held_out_path", (None,), "data")


def _is_switched_off(config: BroRLConfig, switch: Switch, key: str) -> bool:
    names = [switch.start if name == "*" else f"{switch.start}.{name}" for name in switch.names.split()]
    if not _is_among(key, names):
        return False
    values = [value for name in switch.by.split() for value in _values(config, name)]
    if any(isinstance(value, str) and is_import_path(value) for value in values):
        return False
    return not any(value in switch.values if switch.values else value for value in values)


def _is_among(key: str, names: Sequence[str]) -> bool:
    """Return whether a settings key is one of `names`, or lies below one."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _values(config: BroRLConfig, name: str) -> list[Any]:
    """Return the values of a setting. One of sources, such as data.environment, has a value in each source."""
    if name in ("data.environment", "data.held_out_path"):
        sources = [source for _, source in (*config.data.sources(), *config.evaluation.selected())]
        return [getattr(source, name.removeprefix("data.")) for source in sources]
    found: Any = config
    for part in name.split("."):
        found = found[int(part)] if isinstance(found, list) else getattr(found, part)
    return [found]


def _now(config: BroRLConfig, switch: Switch) -> str:
    if switch.by == "evaluation.benchmarks":
        return "evaluation.benchmarks lists what is asked"
    first = switch.by.split()[0]
    shown = "algorithm.loss_params.covariance.kind" if first == "algorithm.covariance.kind" else first
    return f"{shown}={_shown(_values(config, first)[0])}"


def _check_source(key: str, value: Any, switch: Switch, given: Mapping[str, Any]) -> None:
    """Raise ConfigError for a source of questions that is given beside a kind of source which does not read it."""
    names = re.split(r"\.(?=path$|tasks)", key)
    if len(names) == 2 and switch.by in given:
        raise ConfigError(
            f"{key}={_shown(value)} and {switch.by}={given[switch.by]} name two sources of questions: leave one of "
            "them out"
        )


def _shown(value: Any) -> str:
    return "null" if value is None else as_yaml(value)
