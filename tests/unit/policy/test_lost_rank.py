"""A rank that dies while its peers hang is named soon, whatever the number of ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError, RayActorError

from nemo_brorl.core.errors import RankLostError
from nemo_brorl.policy.driver import megatron_policy
from nemo_brorl.policy.driver.megatron_policy import MegatronPolicy


class HangingRay:
    """Ray with calls of which one, `dead`, fails at once and all others never end. Its clock moves by waits alone."""

    def __init__(self, dead: int | None) -> None:
        self.dead = dead
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def get(self, reference: int, timeout: float | None = None) -> Any:
        if reference == self.dead:
            raise RayActorError
        assert timeout is not None, "this waits for ever"
        self.now += timeout
        raise GetTimeoutError

    def wait(self, references: list[int], timeout: float) -> tuple[list[int], list[int]]:
        if self.dead in references:
            return [self.dead], [reference for reference in references if reference != self.dead]
        self.now += timeout
        return [], references


def explained(ray: HangingRay, num_ranks: int, monkeypatch: pytest.MonkeyPatch) -> Exception:
    monkeypatch.setattr(megatron_policy, "ray", ray)
    monkeypatch.setattr(megatron_policy, "time", ray)
    policy: Any = SimpleNamespace(ranks=range(num_ranks))
    call = megatron_policy._Call("update", [(rank, rank) for rank in range(num_ranks)], 0.0)  # type: ignore[misc]
    return MegatronPolicy._explain(policy, call, RayActorError())


@pytest.mark.parametrize("num_ranks", [16, 256])
def test_the_last_rank_that_dies_is_named_within_eight_seconds(num_ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = HangingRay(dead=num_ranks - 1)
    error = explained(ray, num_ranks, monkeypatch)
    assert isinstance(error, RankLostError) and f"policy rank {num_ranks - 1} of {num_ranks}" in str(error)
    assert ray.now <= 8


def test_where_no_rank_dies_the_first_error_stands_after_a_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = HangingRay(dead=None)
    assert isinstance(explained(ray, 16, monkeypatch), RayActorError)
    assert ray.now <= 8
