"""Look up the functions and classes that a run's settings name, before anything expensive starts."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence

from brorl_graders import NamedCode, is_address, look_up
from brorl_graders.base.components import is_import_path
from brorl_graders.base.environment_values import hidden

from nemo_brorl.config.named_verifiers import with_parts
from nemo_brorl.config.rules import raise_all
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import get_logger

log = get_logger(__name__)
_passed: set[str] = set()  # names that this process has looked up, so that no second look-up waits for imports


def check_names(
    config: BroRLConfig, *, is_trained: bool = True, is_elsewhere: bool = False, folders: Sequence[str] = ()
) -> None:
    """Raise ConfigError if a function or class that the settings name cannot be used. Takes at most 20 s.

    An evaluation (not `is_trained`) imports only what scores it. A run `is_elsewhere` if another Python runs it, as in
    a container. There, and on a machine without torch, an import that fails is a warning: libraries may be missing that
    the run has. `folders` are on the run's PYTHONPATH, and not on that of this process.
    """
    names = list(named_code(config, is_trained))
    request = repr((names, is_elsewhere, folders))
    if request in _passed:
        return
    is_elsewhere = is_elsewhere or importlib.util.find_spec("torch") is None
    wrong: list[str] = []
    for named, fault in zip(names, look_up(names, folders, config.rewards.environment_variables), strict=True):
        if fault is None:
            continue
        message = f"{named.setting}={named.name}: {fault.words}"
        if fault.is_open(is_elsewhere):
            log.warning("not imported here: %s", hidden(message, config))
        else:
            wrong.append(message)
    raise_all(wrong, config)
    _passed.add(request)


def named_code(config: BroRLConfig, is_trained: bool) -> Iterator[NamedCode]:
    """Yield what settings name by import path: functions of the training, if it `is_trained`, and all that scores."""
    if is_trained:
        yield from _of_training(config)
    sources = [] if is_trained else config.evaluation.selected()
    params = {verifier.name: verifier.params for verifier in config.rewards.verifiers}
    verifiers: dict[str, str] = {}
    for where, source in sources or config.data.sources():
        if source.environment is not None:
            yield NamedCode(f"{where}.environment", source.environment, "", "both")
        if source.environment == "agent" and source.environment_settings.get("run"):
            run = str(source.environment_settings["run"])
            yield NamedCode(f"{where}.environment_settings.run", run, "task, endpoint", "both")
        for named in with_parts(f"{where}.verifier_options", source.verifier, source.verifier_options):
            verifiers.setdefault(named.name, f"{named.where.rpartition('.')[0]}.verifier")
    for index, verifier in enumerate(config.rewards.verifiers):
        verifiers.setdefault(verifier.name, f"rewards.verifiers.{index}.name")
    endpoints = {endpoint.name for endpoint in config.rewards.services.endpoints}
    for name, setting in verifiers.items():
        if name not in endpoints and not is_address(name):
            yield NamedCode(setting, name, "payload, response", "workers", params.get(name, {}))


def _of_training(config: BroRLConfig) -> Iterator[NamedCode]:
    algorithm, shaping, pool = config.algorithm, config.rewards.shaping, config.rollouts.prompt_pool
    if is_import_path(algorithm.advantage):
        given = algorithm.own_advantage_params
        yield NamedCode("algorithm.advantage", algorithm.advantage, "groups, config", "driver", given)
    if is_import_path(algorithm.loss):
        yield NamedCode("algorithm.loss", algorithm.loss, "batch, config", "driver", algorithm.own_loss_params)
    if shaping.function is not None:
        arguments = "rewards, scored, max_tokens, step"
        yield NamedCode("rewards.shaping.function", shaping.function, arguments, "driver", shaping.function_params)
    if pool.name is not None:
        yield NamedCode("rollouts.prompt_pool.name", pool.name, "prompts, seed", "driver", pool.params)
    for index, observer in enumerate(config.trainer.observers):
        yield NamedCode(f"trainer.observers.{index}.name", observer.name, "run_folder", "driver", observer.params)
