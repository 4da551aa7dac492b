"""In what order actors are waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from nemo_brorl.commands.wiring import Actors, wait_ready
from nemo_brorl.core.clock import Stopwatch


def waited_for(loads_last: bool) -> list[str]:
    order: list[str] = []

    def part(name: str, **more: Any) -> Any:
        return SimpleNamespace(wait_ready=lambda: order.append(name), **more)

    wait_ready(
        Actors(part("policy", loads_last=loads_last), part("engines", stalled=lambda seconds: []), part("verifiers")),
        Stopwatch(),
    )
    return order


def test_a_policy_that_shares_gpus_loads_when_the_engines_have_taken_theirs() -> None:
    assert waited_for(loads_last=True) == ["engines", "policy", "verifiers"]
    assert waited_for(loads_last=False) == ["policy", "engines", "verifiers"]
