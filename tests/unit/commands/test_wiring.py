"""In what order actors are waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from nemo_brorl.commands.wiring import Actors, wait_ready
from nemo_brorl.config.load import load_config
from nemo_brorl.config.run_sizes import RunSizes
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


def test_gpus_are_shared_where_roles_are_colocated_on_them() -> None:
    assert RunSizes.of(load_config("brorl_1gpu")).shares_gpus
    assert not RunSizes.of(load_config("brorl_cpu")).shares_gpus
    assert not RunSizes.of(load_config("brorl_64gpu", ["generation.placement=disaggregated",
                                                      "generation.num_engines=32",
                                                      "generation.sleep=off"])).shares_gpus  # fmt: skip
