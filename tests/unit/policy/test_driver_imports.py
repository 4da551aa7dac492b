"""The driver plans and decides; it does not pay for torch or megatron."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from nemo_brorl.config.load import load_config
from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.policy.process.rank_process import rank_environment
from nemo_brorl.policy.rank.worker import LearnerMethod

CODE = """
import sys
from nemo_brorl.policy.driver import megatron_policy
from nemo_brorl.policy.rank import worker
heavy = {"torch", "megatron", "transformers"} & set(sys.modules)
assert not heavy, heavy
"""


def test_the_driver_side_of_the_policy_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_every_method_that_the_driver_calls_by_name_is_one_of_the_learner() -> None:
    from nemo_brorl.policy.rank.learner import Learner

    assert [method for method in get_args(LearnerMethod) if not callable(getattr(Learner, method, None))] == []


def test_a_rank_that_shares_memory_with_an_engine_has_no_expandable_segments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64,expandable_segments:True")
    shared = rank_environment(RankSettings.from_config(load_config("brorl_1gpu")), tmp_path)
    assert shared["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"
    assert "PYTORCH_CUDA_ALLOC_CONF" not in rank_environment(
        RankSettings.from_config(load_config("brorl_cpu")), tmp_path
    )


def test_what_the_user_says_about_cuda_connections_goes_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    config = load_config("brorl_1gpu")
    assert rank_environment(RankSettings.from_config(config), tmp_path)["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    assert rank_environment(RankSettings.from_config(config), tmp_path)["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"


def test_threads_of_a_rank_on_cores_wait_passively_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    on_cores, on_gpus = (RankSettings.from_config(load_config(name)) for name in ("brorl_cpu", "brorl_1gpu"))
    assert rank_environment(on_cores, tmp_path)["OMP_WAIT_POLICY"] == "passive"
    assert "OMP_WAIT_POLICY" not in rank_environment(on_gpus, tmp_path)
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert rank_environment(on_cores, tmp_path)["OMP_WAIT_POLICY"] == "active"
