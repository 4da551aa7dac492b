"""What runs inside the job beside bash: settings for the shell, ports, addresses, the watch's judgement."""

from __future__ import annotations

import shlex
import socket
from pathlib import Path
from typing import Any

import pytest
from brorl_launcher.job import settings
from brorl_launcher.job.ray_ports import NUM_PORTS, RayPorts, check_ports, interface_address, own_address
from brorl_launcher.job.ray_watch import cluster_fault, failure_event, missing_nodes


def node(name: str, address: str, gpus: float = 8.0, alive: bool = True, **more: Any) -> dict[str, Any]:
    """As `ray.nodes()` shows it."""
    return {
        "NodeManagerHostname": name,
        "NodeManagerAddress": address,
        "Alive": alive,
        "Resources": {"GPU": gpus},
        **more,
    }


def test_settings_are_written_for_the_shell(tmp_path: Path) -> None:
    output = tmp_path / "settings.sh"
    run = tmp_path / "a run; 'quoted'"
    quoted = str(run).replace("'", "\\'")
    command = [
        "--output",
        str(output),
        "--",
        "--config-name",
        "brorl_64gpu",
        f"exp_manager.explicit_log_dir='{quoted}'",
    ]
    assert settings.main(command) == 0
    assert shlex.split(output.read_text()) == ["num_nodes=8", "gpus_per_node=8", f"run_folder={run}"]


def test_a_wrong_setting_is_one_message_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "settings.sh"
    assert settings.main(["--output", str(output), "--", "rollouts.num_per_promt=4"]) == 2
    assert "num_per_prompt" in capsys.readouterr().err
    assert not output.exists()


def test_ports_are_distinct_and_within_their_thousand() -> None:
    ports = RayPorts(20000)
    services = list(ports.services(is_head=True).values())
    assert len(set(services)) == len(services) == 9
    assert all(20000 <= port < 20100 for port in services)
    assert (
        "--min-worker-port=20100" in ports.options() and f"--max-worker-port={20000 + NUM_PORTS - 1}" in ports.options()
    )
    assert sorted(ports.head_options()) == ["--dashboard-port=20002", "--port=20000", "--ray-client-server-port=20001"]


def test_a_port_that_is_taken_is_named() -> None:
    base = 21000
    with socket.create_server(("", base + 11)):
        check_ports(RayPorts(base + NUM_PORTS), is_head=True)
        with pytest.raises(
            OSError,
            match=r"port 21011 \(Ray's object-manager-port\) cannot be used.*another job's Ray.*BRORL_PORT_BASE",
        ):
            check_ports(RayPorts(base), is_head=False)


@pytest.mark.parametrize("base", [80, 64000])
def test_ports_of_the_system_are_refused(base: int) -> None:
    with pytest.raises(OSError, match=f"ports {base} to {base + 999} are not between 1024 and"):
        check_ports(RayPorts(base), is_head=False)


def test_the_address_is_the_one_on_the_way_to_the_peer() -> None:
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert interface_address("lo") == "127.0.0.1"
    with pytest.raises(OSError, match=r"BRORL_INTERFACE=ib77 has no address on this node .*: there are .*lo"):
        interface_address("ib77")


def test_nodes_that_have_not_joined_are_named_also_where_hosts_have_domains() -> None:
    joined = [node("node0.cluster.edu", "10.0.0.1"), node("node2", "10.0.0.3"), node("node1", "10.0.0.2", alive=False)]
    assert missing_nodes(joined, ["node0", "node1", "node2"]) == ["node1"]


def test_hosts_under_other_names_count_as_nodes() -> None:
    assert missing_nodes([node("node0", "10.0.0.1"), node("compute-7", "10.0.0.2")], ["node0", "node1"]) == []


def test_nodes_need_addresses_and_gpus_of_their_own() -> None:
    two = [node("node0", "10.0.0.1"), node("node1", "10.0.0.2")]
    assert cluster_fault(two, 2, 8) == ""
    assert "addresses of their own, they have 10.0.0.1, 10.0.0.1" in cluster_fault(
        [two[0], node("node1", "10.0.0.1")], 2, 8
    )
    assert (
        cluster_fault([two[0], node("node1", "10.0.0.2", gpus=7)], 2, 8) == "trainer.gpus_per_node=8, but node1 has 7"
    )


def test_a_node_whose_host_still_answers_is_dead_not_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert failure_event(node("node3", "127.0.0.1", NodeManagerPort=port, DeathReasonMessage="told to")).startswith(
            "dead node3 (127.0.0.1): told to"
        )
    gone = failure_event(node("node3", "127.0.0.1", NodeManagerPort=port, DeathReasonMessage="told to"))
    assert gone == "dead node3 (127.0.0.1) has no Ray any more: told to"
