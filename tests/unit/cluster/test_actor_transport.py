"""The way to engines: what fails there is an answer, not an exception."""

from __future__ import annotations

import pytest
from ray.exceptions import ActorUnschedulableError

from nemo_brorl.cluster import actor_transport as transport


def test_an_engine_whose_node_was_lost_fails_as_one_that_died_does(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = ActorUnschedulableError("the node doesn't exist any more")

    def get(references: object, timeout: float) -> object:
        if references == "engine 0":
            return "ready"
        raise lost

    monkeypatch.setattr(transport.ray, "get", get)
    assert transport.RayTransport().results(["engine 0", "engine 1"], timeout_s=1.0) == ["ready", lost]
