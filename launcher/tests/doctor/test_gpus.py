"""GPUs as torch and nvidia-smi would tell of them."""

from __future__ import annotations

from typing import Any

from brorl_launcher.doctor import gpus
from brorl_launcher.doctor.report import FAIL, OK, WARN

GIB = 1 << 30


def seen(num: int, free: float = 130.0, name: str = "NVIDIA H100") -> dict[str, Any]:
    devices = [{"index": index, "name": name, "free": int(free * GIB), "total": 140 * GIB} for index in range(num)]
    return {"cuda": "13.0", "nccl": "2.28.9", "devices": devices, "error": ""}


def test_too_few_gpus_refuse_and_too_many_warn() -> None:
    assert [gpus.judge_count(8, seen(num)).status for num in (7, 8, 9)] == [FAIL, OK, WARN]


def test_a_gpu_whose_memory_another_process_holds_refuses() -> None:
    devices = seen(7)["devices"] + seen(1, free=40.0)["devices"]
    check = gpus.judge_memory(0.6, devices)
    assert (check.status, "40.0 of 140.0 GiB free" in check.found) == (FAIL, True)


def test_the_fullest_batch_of_an_engine_should_have_a_cuda_graph() -> None:
    assert [gpus.judge_graphs(largest, 1024).status for largest in (1024, 512, 0)] == [OK, WARN, WARN]
    assert "513 to 1024" in gpus.judge_graphs(512, 1024).found


def test_memory_errors_refuse_and_other_processes_warn() -> None:
    rows = "0, NVIDIA H100, 81559, 0, 0, Not Active\n1, NVIDIA H100, 81559, 0, 3, Not Active\n"
    checks = list(gpus.judge_smi(rows, "4711, python, 30000\n"))
    assert [(check.name, check.status) for check in checks] == [("gpu health", FAIL), ("gpu users", WARN)]
    assert "GPU 1" in checks[0].found
    assert "python (pid 4711, 30000 MiB)" in checks[1].found


def test_a_driver_serves_its_own_major_version_of_cuda_and_older_ones() -> None:
    text = "| NVIDIA-SMI 550.54   Driver Version: 550.54   CUDA Version: {} |"
    assert [gpus.judge_driver(text.format(version), seen(0)).status for version in ("12.4", "13.0", "14.1")] == [
        FAIL,
        OK,
        OK,
    ]


def test_a_compat_package_is_accepted_where_torch_opens_the_gpus() -> None:
    text = "| NVIDIA-SMI 550.54   Driver Version: 550.54   CUDA Version: 12.4 |"
    works, fails = seen(1), {**seen(0), "error": "the driver is too old"}
    assert gpus.judge_driver(text, works).status == WARN
    refused = gpus.judge_driver(text, fails)
    assert (refused.status, "cuda-compat-13-x" in refused.advice) == (FAIL, True)
