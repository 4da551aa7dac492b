"""Check settings of profiles against those of other sections."""

from __future__ import annotations

from collections.abc import Iterator

from nemo_brorl.config.needs import needs, needs_gpus
from nemo_brorl.config.schema import BroRLConfig


def profiles_are_of_something(run: BroRLConfig) -> Iterator[str]:
    profile = run.profile
    if profile.kind == "nsys":
        yield from needs_gpus(run, "profile.kind", "records what GPUs do")
    if profile.kind != "off" and not profile.steps:
        yield needs(run, "profile.kind", "is of some steps and ranks", "profile.steps other than []")
    if profile.kind != "off" and not profile.ranks:
        yield needs(run, "profile.kind", "is of some steps and ranks", "profile.ranks other than []")
    if profile.memory_snapshot:
        yield from needs_gpus(run, "profile.memory_snapshot", "is of GPU memory")


RULES = (profiles_are_of_something,)
