"""Run one rank of the policy in this process, on the GPU or, for `--tiny`, on the CPU.

Learners are made one after the other.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.gpu.setting import Setting
from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.config.schema import BroRLConfig

NO_LOG_PROBS = np.zeros(0, np.float32)


def config_for(setting: Setting, **policy: Any) -> BroRLConfig:
    """Defaults in bf16 without a KL reference, with these attributes of `policy`."""
    config = BroRLConfig()
    config.trainer.gpus_per_node = 0 if setting.is_tiny else 1
    config.algorithm.kl.coefficient = 0.0
    config.policy.precision = "bf16"
    config.policy.attention = "auto" if setting.is_tiny else os.environ.get("BENCH_ATTENTION", "auto")
    config.policy.log_prob_chunk_tokens = 8192  # as GPU recipes have it
    if not setting.is_tiny:
        config.policy.recompute = "full"  # rows of 16,384 keep 34 GB of activations without
    for name, value in policy.items():
        assert hasattr(config.policy, name), name
        setattr(config.policy, name, value)
    return config


class OneRank:
    """Process groups of a single rank; use `open_rank`."""

    def __init__(self, setting: Setting, device: Any) -> None:
        self.setting, self.device = setting, device

    @contextmanager
    def learner(self, folder: Path, config: BroRLConfig) -> Iterator[Any]:
        """Build a learner of the model in `folder`, and free its memory on exit.

        The memory is freed whoever still has the object, because two models of the 1.5B shape do not fit on one
        card.
        """
        from nemo_brorl.policy.process.device import forget_compiled
        from nemo_brorl.policy.rank.learner import Learner

        made = Learner(RankSettings.from_config(config), folder, self.device)
        try:
            yield made
        finally:
            vars(made).clear()
            forget_compiled()  # variants of other models count against the limit of recompilations
            gc.collect()
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()


@contextmanager
def open_rank(setting: Setting) -> Iterator[OneRank]:
    """Open the process groups of one policy rank, and close them on exit.

    Call it before anything imports megatron.
    """
    from nemo_brorl.policy.process.device import open_device

    device = open_device(on_gpu=not setting.is_tiny, num_threads=1)
    import torch.distributed as dist

    from nemo_brorl.config.parallel_layout import ParallelLayout
    from nemo_brorl.policy.process import process_groups

    process_groups.open_groups(ParallelLayout(1, 1, 1), 0, dist.HashStore(), device, seed=1)
    try:
        yield OneRank(setting, device)
    finally:
        process_groups.close_groups()


def packed_group(prompt: np.ndarray, responses: Sequence[np.ndarray]) -> Any:
    """Build a `PackedGroup` of a prompt and the responses that share it."""
    from nemo_brorl.policy.rows.packed_rows import PackedGroup, Response

    made = [Response(0, i, tokens, np.zeros(len(tokens), np.float32), 0.0, True) for i, tokens in enumerate(responses)]
    return PackedGroup(prompt, tuple(made))


class TrainingStep:
    """Forward, backward, clipping and Adam on the mean −log p of a mini-batch of rows."""

    def __init__(self, learner: Any, rows: Sequence[Any]) -> None:
        self.learner, self.rows = learner, rows

    def __call__(self) -> None:
        from nemo_brorl.policy.rank.pipeline import train_rows
        from nemo_brorl.policy.state.optimizer import guarded_step

        learner = self.learner
        train_rows(learner.state.chunks, self.rows, _likelihood)
        norm = guarded_step(
            learner.state.optimizer, 1e-6, learner.state.settings.policy.optim, None, learner.state.device
        )
        assert norm is not None, "a gradient was not finite"


def _likelihood(index: int, row: Any, scores: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    return -scores.log_probs.sum(), {}
