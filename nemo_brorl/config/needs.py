"""Word the messages of rules that say "this setting needs that one".

A rule is typed code beside its section, `policy_rules.py` and its like; here is only how it says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from operator import attrgetter

from nemo_brorl.config.schema import BroRLConfig, as_yaml, settings

SETTING = re.compile(r"[\w.]+")  # at the beginning of `policy.precision=bf16` and `trainer.gpus_per_node above 0`
GPUS = "trainer.gpus_per_node above 0"
COLOCATED = "generation.placement=colocated"
OLDER_WEIGHTS = "learns from rollouts of older weights"


def needs(run: BroRLConfig, given: str, why: str, *wanted: str) -> str:
    """Return the message that a setting asks for another: what it is now, why it needs that, and what to write.

    Args:
        run: the whole run, for the values that are shown.
        given: the setting that needs something, or several: `policy.fp8 with trainer.gpus_per_node`.
        why: the sentence that `given` begins.
        wanted: settings and values of which one must be, for example `policy.precision=bf16`.
    """
    names = given.split(" with ")
    subject = " with ".join(f"{name}={_now(run, name)}" for name in names)
    wishes = " or ".join(f"{wish} (now {_now(run, _named(wish))})" for wish in wanted)
    return f"{subject} {why}, and needs {wishes}: write that, or {_taken_back(run, names[0])}"


def needs_gpus(run: BroRLConfig, given: str, why: str) -> Iterator[str]:
    """Yield a message where the run has no GPUs."""
    if run.trainer.gpus_per_node == 0:
        yield needs(run, given, why, GPUS)


def needs_gpus_shared_with_engines(run: BroRLConfig, given: str, why: str) -> Iterator[str]:
    """Yield a message where there are no GPUs that policy and engines share."""
    yield from needs_gpus(run, given, why)
    if run.generation.placement != "colocated":
        yield needs(run, given, why, COLOCATED)


def needs_older_weights(run: BroRLConfig, given: str) -> Iterator[str]:
    """Yield a message where an update may not learn from rollouts of older weights."""
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
    """Return the setting so that it needs nothing: its default, or false where the default is what needs something."""
    default = settings()[name].default
    return f"{name}=false" if default == "true" == _now(run, name) else f"{name}={default}"
