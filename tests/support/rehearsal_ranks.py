"""Policy ranks that rehearse an update, with what a fault of a rank or of the exchange would do to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.types import RankRehearsal
from tests.support.policy_ranks import new_learner

NUM_TOKENS = 96


def state_of(learner: Any) -> list[torch.Tensor]:
    """Copies of everything that an update changes, and of torch's random state."""
    from nemo_brorl.policy.state.optimizer import state_tensors

    weights = [weight for model in learner.state.models for weight in model.parameters()]
    references = [copy for held in learner.state.references for copy in held.copies.values()]
    return [torch.get_rng_state(), *(tensor.detach().clone() for tensor in weights + references)] + [
        tensor.detach().clone() for tensor in state_tensors(learner.state.optimizer)
    ]


def rehearse_ranks(config: BroRLConfig, folder: Path, fault: str = "") -> tuple[RankRehearsal, bool]:
    """One rank's report, and whether everything is as it was. `fault` strikes the last rank."""
    from nemo_brorl.policy.rank import rehearsal

    learner = new_learner(config, folder)
    is_last = dist.get_rank() == dist.get_world_size() - 1
    if fault == "no gradients" and is_last:
        train_rows = rehearsal.train_rows
        rehearsal.train_rows = lambda chunks, rows, loss: train_rows(
            chunks, rows, lambda *row: (0.0 * loss(*row)[0], {})
        )
    if fault == "other weights" and is_last:
        buffer = learner.state.chunks[0].buffers[0].param_data
        buffer[: len(buffer) // 4] += 1.0
    before = state_of(learner)
    report = learner.rehearse(NUM_TOKENS)
    return report, all(map(torch.equal, before, state_of(learner)))
