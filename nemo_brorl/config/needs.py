"""Compose the messages of rules that say "this setting needs that one".

The rules themselves are in modules such as `policy_rules.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from operator import attrgetter

from nemo_brorl.config.schema import BroRLConfig, as_yaml, settings

# matches the setting at the start of `policy.precision=bf16` and `trainer.gpus_per_node above 0`
SETTING = re.compile(r"[\w.]+")
GPUS = "trainer.gpus_per_node above 0"
COLOCATED = "generation.placement=colocated"
OLDER_WEIGHTS = "learns from rollouts of older weights"


def needs(run: BroRLConfig, given: str, why: str, *wanted: str) -> str:
    """Return the message that a setting requires another: its value, the reason, and what to set.

    Args:
        run: the whole run, for the current values.
        given: the setting with the requirement, or several: `policy.fp8 with trainer.gpus_per_node`.
        why: the rest of the sentence that starts with `given`.
        wanted: settings with values, one of which must hold, for example `policy.precision=bf16`.
    """
    names = given.split(" with ")
    subject = " with ".join(f"{name}={_now(run, name)}" for name in names)
    wishes = " or ".join(f"{wish} (now {_now(run, _named(wish))})" for wish in wanted)
    return f"{subject} {why}, and needs {wishes}: set that, or {_taken_back(run, names[0])}"


def needs_gpus(run: BroRLConfig, given: str, why: str) -> Iterator[str]:
    """Yield a message if a setting needs GPUs and the run has none."""
    if run.trainer.gpus_per_node == 0:
        yield needs(run, given, why, GPUS)


def needs_gpus_shared_with_engines(run: BroRLConfig, given: str, why: str) -> Iterator[str]:
    """Yield a message if a setting needs GPUs that policy and engines share, and the run has none."""
    yield from needs_gpus(run, given, why)
    if run.generation.placement != "colocated":
        yield needs(run, given, why, COLOCATED)


def needs_older_weights(run: BroRLConfig, given: str) -> Iterator[str]:
    """Yield a message if a setting needs updates on rollouts of older weights, and the run allows none."""
    if run.dynamic_sampling.max_staleness == 0:
        yield needs(run, given, OLDER_WEIGHTS, "dynamic_sampling.max_staleness above 0")
    if not run.algorithm.importance_correction.enabled:
        yield needs(run, given, OLDER_WEIGHTS, "algorithm.importance_correction.enabled=true")


def _named(wish: str) -> str:
    found = SETTING.match(wish)
    assert found is not None, f"{wish} names no setting"
    return found[0]


def _now(run: BroRLConfig, name: str) -> str:
    return as_yaml(attrgetter(name)(run))


def _taken_back(run: BroRLConfig, name: str) -> str:
    """Return `KEY=VALUE` that takes back a setting which requires another, as the second remedy in an error message.

    The value is the setting's default, or false if the run has the default true.
    """
    default = settings()[name].default
    return f"{name}=false" if default == "true" == _now(run, name) else f"{name}={default}"
