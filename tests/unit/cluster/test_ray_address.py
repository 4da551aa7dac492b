"""A Ray cluster that no longer runs."""

from __future__ import annotations

import socket

import pytest

from nemo_brorl.cluster import ray_cluster
from nemo_brorl.cluster.ray_cluster import check_address
from nemo_brorl.core.errors import USER_ERROR, ResourceError


def test_an_address_where_nobody_answers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "ADDRESS_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_address(f"127.0.0.1:{port}")
        check_address(f"ray://127.0.0.1:{port}")
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}", "no.such.host.invalid:6379", "127.0.0.1:99999"):
        with pytest.raises(ResourceError, match=f"RAY_ADDRESS={address}: nobody answers.*unset RAY_ADDRESS") as refused:
            check_address(address)
        assert refused.value.exit_code == USER_ERROR


@pytest.mark.parametrize("address", ["auto", "local", ""])
def test_an_address_without_a_port_is_for_ray_to_find(address: str) -> None:
    check_address(address)
