"""One rank in the test process itself: process groups opened once, models made once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.policy.process.device import Device, open_device

# Before test modules import what imports megatron.
_DEVICE = open_device(on_gpu=False, num_threads=int(os.environ["OMP_NUM_THREADS"]))


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    """With process groups of a single rank open."""
    from nemo_brorl.config.parallel_layout import ParallelLayout
    from nemo_brorl.policy.process import process_groups

    process_groups.open_groups(ParallelLayout(1, 1, 1), 0, dist.HashStore(), _DEVICE, seed=1)
    yield _DEVICE
    process_groups.close_groups()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2, tied."""
    from tests.support.model_factory import make_model

    return make_model(tmp_path_factory.mktemp("qwen2"))


@pytest.fixture(scope="session")
def new_learner(device: Device) -> Callable[[Path, BroRLConfig], Any]:
    """A function that makes the Learner of a model folder and a config."""
    from nemo_brorl.policy.rank.learner import Learner

    def new(folder: Path, config: BroRLConfig) -> Learner:
        return Learner(RankSettings.from_config(config), folder, device)

    return new
