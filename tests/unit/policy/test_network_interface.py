"""The network interface of policy ranks is the one by which Ray knows the node."""

from __future__ import annotations

import os

import pytest

from nemo_brorl.policy.process.process_groups import choose_interface


def test_gloo_and_nccl_take_the_interface_of_rays_address_unless_the_environment_names_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")
    choose_interface("127.0.0.1")
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == ("ib0", "lo")
