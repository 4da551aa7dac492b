"""Find settings that the user gives and a run does not read, by tables of the settings that switch others off.

A setting in no row of the tables is read in every run of its command.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

from brorl_graders import is_address
from brorl_graders.base.components import is_import_path

from nemo_brorl.config.data import FILE_WORDS, SourceConfig
from nemo_brorl.config.given import Given
from nemo_brorl.config.named_verifiers import named_verifiers
from nemo_brorl.config.schema import BroRLConfig, as_yaml, settings, without_indices
from nemo_brorl.core.errors import ConfigError

TRAIN, EVALUATE, SFT = "train", "evaluate", "sft"
GENERATED = "reasoning_gym"
FILES = " ".join(FILE_WORDS)
OF_ONE_SOURCE = " ".join(field.name for field in dataclasses.fields(SourceConfig) if field.name != "source")

# A section | its settings or sections ("*": all) | the settings that decide | their values under which these settings
# are read, where not every true value will do.
SWITCHES = """
algorithm | pass_at_k | algorithm.advantage | pass_at_k
algorithm | dual_clip | algorithm.loss | ppo_clip
algorithm | credit | data.environment
algorithm.importance_correction | kind cap low high | algorithm.importance_correction.enabled
algorithm.importance_correction | cap | algorithm.importance_correction.kind | tis sequence_mask sequence_tis
algorithm.importance_correction | low high | algorithm.importance_correction.kind | icepop sequence_mask
algorithm.kl | estimator log_ratio_clamp | algorithm.kl.coefficient
algorithm.loss_params.covariance | share | algorithm.covariance.kind | clip_cov kl_cov
algorithm.loss_params.covariance | low high | algorithm.covariance.kind | clip_cov
algorithm.loss_params.covariance | coefficient | algorithm.covariance.kind | kl_cov
algorithm.reference_reset | clear_optimizer | algorithm.reference_reset.interval algorithm.reference_reset.kl_above \
algorithm.reference_reset.patience
dynamic_sampling | min_reward_range | dynamic_sampling.enabled
generation | kv_cache_gib | trainer.gpus_per_node | 0
generation | gpu_memory_utilization | trainer.gpus_per_node
parity | max_mean_abs_diff | parity.enabled
parity | max_fp8_mismatch | policy.fp8
policy | fp8_recipe fp8_params fp8_amax_history fp8_bf16_first_layers fp8_bf16_last_layers | policy.fp8
policy | fp8_amax_history | policy.fp8_recipe | delayed
policy | min_shared_tokens | policy.shared_prompt
profile | steps ranks | profile.kind | torch nsys
rewards | code | verifier code
rewards | max_constant_reward | rewards.constant_answers | warn refuse
rewards | trajectory_reward environments | data.environment
rewards.services | concurrency requests_per_s batch_size request_timeout_s deadline_s max_attempts backoff_s \
on_failure cache_size record replay | rewards.services.endpoints
rewards.shaping | function_params | rewards.shaping.function
rewards.shaping | overlong_penalty | rewards.shaping.overlong_buffer
rewards.shaping | repetition_ngram | rewards.shaping.repetition_penalty
rewards.shaping.cosine | correct_short correct_long wrong_short wrong_long on_steps off_steps | \
rewards.shaping.cosine.enabled
rollouts | max_turn_tokens | data.environment
rollouts.prompt_pool | params | rollouts.prompt_pool.name
rollouts.schedule | learning_rate_scaling | rollouts.schedule.kind | staged budget on_plateau
rollouts.schedule.plateau | * | rollouts.schedule.kind | on_plateau
sft | last_lr_fraction | sft.lr_schedule | cosine linear
store | keep_steps share max_gib text | store.enabled
timeline | keep_steps | timeline.enabled
"""
SWITCHES_OF_SOURCES = f"""
SOURCE | path held_out_path preset only columns max_bad_rows repeated_rows | SOURCE.source | {FILES}
SOURCE | dataset_split | SOURCE.source | dataset
SOURCE | tasks | SOURCE.source | {GENERATED}
SOURCE | verifier verifier_options | SOURCE.source | {FILES} {GENERATED}
"""
OF_MIXTURES = f"data | {OF_ONE_SOURCE} | data.source | {FILES} {GENERATED} environment"
OF_HELD_OUT_FILES = "data | held_out_fraction | data.held_out_path | None"
OF_BENCHMARKS = f"""
data | source domains {OF_ONE_SOURCE} | evaluation.benchmarks | []
evaluation | num_prompts first_prompt | evaluation.benchmarks | []
"""
# A command | settings and sections that it does not read | who or what does.
OF_OTHER_COMMANDS = """
train | sft | `brorl sft` and `brorl base` do
train | evaluation.benchmarks evaluation.only evaluation.pass_at_k evaluation.majority_at_k evaluation.confidence \
evaluation.bootstrap_samples evaluation.checkpoint evaluation.save_samples evaluation.output | `brorl evaluate` does
evaluate | algorithm dynamic_sampling parity store timeline profile sft policy.optim rollouts.overlap \
rollouts.schedule rollouts.prompt_pool rollouts.unfinished rollouts.deadline_s rollouts.step_deadline_s \
rollouts.min_fraction rollouts.save_samples rollouts.prompts_per_step rewards.shaping rewards.constant_answers \
rewards.max_constant_reward trainer.max_steps trainer.val_interval trainer.save_interval trainer.async_save \
trainer.keep_checkpoints trainer.rehearsal trainer.observers | `brorl train` does
evaluate | rollouts.num_per_prompt | evaluation.samples_per_prompt is
evaluate | rollouts.temperature | evaluation.temperature is
evaluate | rollouts.top_p | evaluation.top_p is
sft | rollouts generation dynamic_sampling algorithm rewards evaluation parity store timeline trainer.rehearsal \
trainer.observers data.tasks data.verifier data.verifier_options data.environment data.environment_settings \
data.preset data.answer_format data.answer_instruction data.max_prompt_tokens data.repeated_rows data.changed_rows \
| `brorl train` does
sft | sft.demonstrations sft.new | `brorl base` does
sft | policy.optim.lr | sft.lr is
sft | policy.optim.warmup_steps | sft.warmup_steps is
sft | trainer.max_steps | sft.max_steps is
"""
SHOWN_AS = {"algorithm.covariance.kind": "algorithm.loss_params.covariance.kind"}


class Switch(NamedTuple):
    """Settings that are read under some values of others only."""

    names: list[str]  # settings and sections
    by: list[str]  # settings that decide
    values: list[str]  # values of one of these under which the settings are read; empty: all true ones


def unread_settings(config: BroRLConfig, command_line: Given, file: Given, command: str) -> list[str]:
    """Return a message for each setting of the command line or the user's YAML `file` that `command` does not read.

    A file may hold settings of other commands, and defaults. Raises ConfigError where one of them gives two sources of
    questions.
    """
    given = [(key, value, command_line) for key, value in command_line.items()]
    given += [
        (key, value, file) for key, value in file.items() if key not in command_line and not is_default(key, value)
    ]
    switches = list(_switches(config, command))
    of_others = [row for row in _rows(OF_OTHER_COMMANDS) if row[0] == command]
    said = []
    for key, value, origin in given:
        other = next((row[2] for row in of_others if _is_among(key, row[1].split())), None)
        switch = next((switch for switch in switches if _is_off(config, switch, key)), None)
        # What is switched off, or empty, has no effect to be missed.
        if not value or (other and origin is file):
            continue
        if other:
            said.append(f"{key}={as_yaml(value)} is not read by `brorl {command}`: {other}")
        elif switch is not None:
            _check_source(key, value, switch, origin)
            said.append(f"{key}={as_yaml(value)} is not read: {_state(config, switch)}")
    return said


def is_read_in_training(config: BroRLConfig, key: str) -> bool:
    """Return whether `brorl train` reads a setting, with the others as they are."""
    if any(_is_among(key, row[1].split()) for row in _rows(OF_OTHER_COMMANDS) if row[0] == TRAIN):
        return False
    return not any(_is_off(config, switch, key) for switch in _switches(config, TRAIN))


def is_default(key: str, value: Any) -> bool:
    """Return whether a setting's value is the schema's default."""
    known = settings().get(without_indices(key))
    return known is not None and known.default == as_yaml(value)


def late_steps(config: BroRLConfig, given: Given, command: str) -> Iterator[str]:
    """Yield a message for each setting of steps after the end of the run."""
    optim, warmup = "policy.optim", config.policy.optim.warmup_steps
    name, last = "trainer.max_steps", config.trainer.max_steps
    if command == SFT:
        optim, warmup = "sft", config.sft.warmup_steps
        name, last = "sft.max_steps", config.sft.max_steps
    if warmup >= last > 0:
        yield (
            f"{optim}.warmup_steps={warmup} and {name}={last}: the learning rate never reaches {optim}.lr. Set "
            f"{optim}.warmup_steps={last // 10}"
        )
    if command != TRAIN or last == 0:
        return
    key, interval = "algorithm.reference_reset.interval", config.algorithm.reference_reset.interval
    if key in given and interval > last:
        yield f"{key}={interval} is beyond {name}={last}: the reference is never reset"
    steps = config.profile.steps
    if config.profile.kind != "off" and steps and min(steps) > last:
        yield f"profile.steps={steps} are beyond {name}={last}: set profile.steps=[{last}]"


def _rows(table: str) -> Iterator[list[str]]:
    for line in table.strip().splitlines():
        yield [cell.strip() for cell in line.split(" | ")]


def _switches(config: BroRLConfig, command: str) -> Iterator[Switch]:
    """Yield the switches of a command; those of sources for each source that is not left out as a whole."""
    tables = [SWITCHES]
    sources = [f"data.domains.{index}" for index in range(len(config.data.domains))] or ["data"]
    if config.data.source == "mixture":
        tables.append(OF_MIXTURES)
    if command == EVALUATE and config.evaluation.benchmarks:
        tables.append(OF_BENCHMARKS)
        sources += [f"evaluation.benchmarks.{index}" for index in range(len(config.evaluation.benchmarks))]
    elif all(source.held_out_path is not None for _, source in config.data.sources()):
        tables.append(OF_HELD_OUT_FILES)
    tables += [SWITCHES_OF_SOURCES.replace("SOURCE", where) for where in sources]
    for table in tables:
        for section, names, by, *values in _rows(table):
            full = [section if name == "*" else f"{section}.{name}" for name in names.split()]
            yield Switch(full, [by] if by == "verifier code" else by.split(), values[0].split() if values else [])


def _is_off(config: BroRLConfig, switch: Switch, key: str) -> bool:
    if not _is_among(key, switch.names):
        return False
    values = list(chain.from_iterable(_values(config, name) for name in switch.by))
    # A function of the user may read what ours does not.
    if any(isinstance(value, str) and is_import_path(value) for value in values):
        return False
    return not any(str(value) in switch.values if switch.values else value for value in values)


def _is_among(key: str, names: list[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _values(config: BroRLConfig, name: str) -> list[Any]:
    """Return the values of a setting. One of all sources, such as data.environment, has a value in each."""
    sources = [source for _, source in (*config.data.sources(), *config.evaluation.selected())]
    if name in ("data.environment", "data.held_out_path"):
        return [getattr(source, name.removeprefix("data.")) for source in sources]
    named = [verifier.name for verifier in named_verifiers(config)]
    # Rows of files may name this verifier.
    if name == "verifier code":
        return ["code" in named or any(source.source in FILE_WORDS for source in sources)]
    found: Any = config
    for part in name.split("."):
        found = found[int(part)] if isinstance(found, list) else getattr(found, part)
    is_asked = name == "rewards.services.endpoints" and any(map(is_address, named))
    return [found or is_asked] if is_asked else [found]


def _state(config: BroRLConfig, switch: Switch) -> str:
    """Return in words why the settings of a switch are not read."""
    if switch.by == ["verifier code"]:
        return "no question is scored by running programs"
    if switch.by == ["evaluation.benchmarks"]:
        return "evaluation.benchmarks lists what is asked"
    name = switch.by[0]
    value = next(iter(_values(config, name)), None)
    return f"{SHOWN_AS.get(name, name)}={as_yaml(value)}"


def _check_source(key: str, value: Any, switch: Switch, given: Given) -> None:
    """Raise ConfigError for a source of questions that is given with a kind of source which does not read it."""
    (decides, *_), section = switch.by, switch.by[0].rpartition(".")[0]
    if decides in given and _is_among(key, [f"{section}.path", f"{section}.tasks"]):
        raise ConfigError(
            f"{key}={as_yaml(value)} and {decides}={given[decides]} name two sources of questions: leave one of them "
            "out"
        )
