"""Assign the prompts of an update to the references of its KL term, and sum the KL to teachers by task."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nemo_brorl.algorithm.losses import kl_to_reference
from nemo_brorl.algorithm.token_batch import TokenBatch
from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.policy.rows.packed_rows import Row
from nemo_brorl.types import UpdatePlan

TEACHER = "policy/kl_to_teacher"
NUM_TOKENS = "num_tokens/"  # starts the name of a sum that is no metric: the tokens that the KL of this name is over


class Teachers:
    """Which reference of the KL term each prompt of one update has, by its task."""

    def __init__(self, settings: RankSettings, plan: UpdatePlan) -> None:
        self.algorithm = settings.algorithm
        self.tasks = [group.task for group in plan.groups]
        self.number_of = {task: self.algorithm.kl.reference_of(task) for task in self.tasks}
        # Such ranks exchange tokens or scales in every forward pass, so all must make equally many.
        self.scores_all = settings.layout.expert > 1 or settings.policy.fp8 is not None

    def tasks_of(self, row: Row) -> list[str]:
        """Return the task of each of a row's R responses."""
        return [self.tasks[response.place[0]] for response in row.responses]

    def scores(self, number: int, row: Row) -> bool:
        """Return whether a row is scored by reference `number`, which some of its prompts have."""
        return self.scores_all or number in map(self.number_of.get, self.tasks_of(row))

    def tokens(self, row: Row, number: int | None, task: str | None = None) -> Tensor:
        """Return the mask [n] of a row's tokens whose prompts have a reference, or none, and this task or any."""
        mask = np.array([self.number_of[name] == number and task in (None, name) for name in self.tasks_of(row)], bool)
        return torch.from_numpy(mask[row.response_index]).to(row.advantages.device)

    def sums(self, row: Row, batch: TokenBatch) -> dict[str, Tensor]:
        """Return sums of the KL to teachers by task, and the numbers of tokens that they and their total are over."""
        if not self.algorithm.kl.has_teacher or batch.reference_log_probs is None:
            return {}
        kl = kl_to_reference(batch, batch.log_probs.detach(), self.algorithm)
        sums = {NUM_TOKENS + TEACHER: (~self.tokens(row, None)).sum()}
        for task in sorted({task for task in self.tasks_of(row) if self.number_of[task] is not None}):
            is_of = self.tokens(row, self.number_of[task], task)
            sums |= {f"{TEACHER}/{task}": (kl * is_of).sum(), f"{NUM_TOKENS}{TEACHER}/{task}": is_of.sum()}
        return sums


def over_own_tokens(means: dict[str, float]) -> dict[str, float]:
    """Return means over all tokens with those that have a number of tokens of their own as means over these."""
    metrics = {name: value for name, value in means.items() if not name.startswith(NUM_TOKENS)}
    return {name: value / (means.get(NUM_TOKENS + name) or 1.0) for name, value in metrics.items()}
