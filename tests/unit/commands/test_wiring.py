"""In what order actors are waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from nemo_brorl.commands.wiring import Actors, wait_ready
from nemo_brorl.core.clock import Stopwatch


def waited_for(loads_last: bool, engines_sleep: bool = False) -> list[str]:
    order: list[str] = []

    def part(name: str, **more: Any) -> Any:
        return SimpleNamespace(wait_ready=lambda: order.append(name), **more)

    engines = part("engines", stalled=lambda seconds: [], sleep=lambda: order.append("sleep"))
    actors = Actors(part("policy", loads_last=loads_last), engines, part("verifiers"))
    wait_ready(actors, Stopwatch(), engines_sleep=engines_sleep)
    return order


def test_a_policy_that_shares_gpus_loads_when_the_engines_have_taken_theirs() -> None:
    assert waited_for(loads_last=True) == ["engines", "policy", "verifiers"]
    assert waited_for(loads_last=False) == ["policy", "engines", "verifiers"]


def test_engines_of_a_run_sleep_before_the_policy_loads_on_their_gpus() -> None:
    assert waited_for(loads_last=True, engines_sleep=True) == ["engines", "sleep", "policy", "verifiers"]
    assert waited_for(loads_last=False, engines_sleep=True) == ["policy", "engines", "verifiers"]
