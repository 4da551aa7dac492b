"""Checks of a machine, made up."""

from __future__ import annotations

import resource
import socket
from pathlib import Path

import pytest
from brorl_launcher.doctor import machine
from brorl_launcher.doctor.command import read_ports
from brorl_launcher.doctor.report import FAIL, OK, WARN, Check

from nemo_brorl.config.load import load_config
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.config.trainer import TrainerConfig
from nemo_brorl.core.errors import ConfigError


def test_a_port_that_someone_listens_on_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check = machine.check_ports([port])
    assert (check.status, str(port) in check.found) == (FAIL, True)
    assert machine.check_ports([port]).status == OK


def test_ports_are_written_as_numbers_and_ranges() -> None:
    assert read_ports("6379,20000-20002") == [6379, 20000, 20001, 20002]
    with pytest.raises(ConfigError, match="no port"):
        read_ports("6379,x")


def test_a_disk_with_less_than_the_settings_need_refuses(tmp_path: Path) -> None:
    assert machine.check_room("disk", tmp_path / "not" / "there", 0.0, "").status == OK
    assert machine.check_room("disk", tmp_path, 1e9, "another disk").status == FAIL
    assert machine.check_room("shm", tmp_path, 1e9, "a larger one", least_gib=0.0).status == WARN


def test_a_folder_of_kernels_that_others_could_have_filled_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("BRORL_CACHE", str(tmp_path / "cache"))
    check = machine.check_private()
    assert check.status == OK, check
    assert str(tmp_path / "cache") in check.found
    (tmp_path / "cache").chmod(0o777)
    check = machine.check_private()
    assert (check.status, check.advice) == (FAIL, "remove it, or set BRORL_CACHE to a folder of your own")
    assert check.found.startswith(f"{tmp_path / 'cache'} may be entered by others (mode 0777")


def test_room_for_ray_is_looked_for_where_its_folder_will_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", "/not/on/this/node")
    [check] = [check for check in machine.check_disks(BroRLConfig(), None) if check.name == "disk, tmp"]
    assert check.found.startswith("/tmp: ")


def fails_to_load(name: str) -> object:
    raise OSError(f"{name}: cannot open shared object file")


def test_infiniband_cards_without_their_library_warn(tmp_path: Path) -> None:
    assert list(machine.check_infiniband(tmp_path / "none", fails_to_load)) == []
    assert list(machine.check_infiniband(tmp_path, fails_to_load)) == []
    for card in ("mlx5_1", "mlx5_0"):
        (tmp_path / card).mkdir()
    [check] = machine.check_infiniband(tmp_path, fails_to_load)
    assert (check.status, check.found) == (
        WARN,
        "mlx5_0, mlx5_1, but libibverbs.so.1: cannot open shared object file",
    )
    assert "install libibverbs1 and ibverbs-providers" in check.advice
    loaded: list[str] = []
    [check] = machine.check_infiniband(tmp_path, loaded.append)
    assert (check.status, check.found, loaded) == (OK, "mlx5_0, mlx5_1", ["libibverbs.so.1"])


def test_the_image_has_the_libraries_by_which_nccl_uses_infiniband() -> None:
    dockerfile = (Path(__file__).parents[3] / "Dockerfile").read_text(encoding="utf-8")
    assert {"libibverbs1", "ibverbs-providers", "librdmacm1"} <= set(dockerfile.split())


def test_a_job_with_too_few_nodes_refuses_and_spare_ones_warn() -> None:
    config = BroRLConfig(trainer=TrainerConfig(num_nodes=8))
    assert [[check.status for check in machine.check_nodes(config, num)] for num in (7, 8, 9)] == [[FAIL], [], [WARN]]


def test_a_node_that_cannot_compile_kernels_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.setenv("CC", "/usr/bin/cc")
    assert machine.check_compiler().status == FAIL, "no Python.h"
    (tmp_path / "Python.h").touch()
    assert machine.check_compiler().status == OK
    monkeypatch.delenv("CC")
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    assert machine.check_compiler() == Check(
        "compiler", FAIL, "none", "install gcc on every node, or name a compiler in CC"
    )


def test_limits_under_which_ray_does_not_start_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def limit(number: int) -> tuple[int, int]:
        most = 200 << 10 if number == resource.RLIMIT_FSIZE else resource.RLIM_INFINITY
        return most, most

    monkeypatch.setattr(resource, "getrlimit", limit)
    checks = {check.name: check for check in machine.check_limits(load_config("brorl_cpu"))}
    assert (checks["size of a file"].status, checks["size of a file"].advice) == (FAIL, "ulimit -f unlimited")
    assert "memory" not in checks
