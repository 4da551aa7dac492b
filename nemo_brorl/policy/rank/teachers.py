"""Assign the prompts of an update to the references of its KL term, and average the KL to teachers by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from megatron.core import parallel_state
from torch import Tensor

from nemo_brorl.algorithm.losses import kl_to_reference
from nemo_brorl.algorithm.token_batch import TokenBatch
from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.policy.rows.packed_rows import Row
from nemo_brorl.types import UpdatePlan

REFERENCE, TEACHER = "policy/kl_to_reference", "policy/kl_to_teacher"
NUM_TOKENS = "num_tokens/"  # starts the name of a sum that is no metric: the tokens of a task with a teacher


class Teachers:
    """Which reference of the KL term each prompt of one update has, by its task."""

    def __init__(self, settings: RankSettings, plan: UpdatePlan) -> None:
        self.algorithm = settings.algorithm
        self.plan = plan
        self.number_of = [self.algorithm.kl.reference_of(group.task) for group in plan.groups]
        # Such ranks exchange tokens or scales in every forward pass, so each must make all passes that one makes.
        self.in_step = settings.layout.expert > 1 or settings.policy.fp8 is not None

    def places_of(self, number: int) -> list[tuple[int, int]]:
        """Return mini-batch and index in it of this rank's rows that have a prompt of reference `number`.

        Where ranks must make equally many forward passes, it is enough that a row at the same place of another rank has
        one.
        """
        rank = parallel_state.get_data_parallel_rank()
        found = []
        for index, mini_batch in enumerate(self.plan.mini_batches):
            ranks = mini_batch if self.in_step else mini_batch[rank : rank + 1]
            for place, micro_batches in enumerate(zip(*ranks, strict=True)):
                groups = {part.group for micro_batch in micro_batches for part in micro_batch.slices}
                if any(self.number_of[group] == number for group in groups):
                    found.append((index, place))
        return found

    def joined(self, number: int, row: Row, log_probs: Tensor, others: Tensor | None) -> Tensor:
        """Return a row's log-probs [n] by reference `number` where its prompts are, and by `others` [n] elsewhere."""
        if others is None:
            return log_probs
        is_of = [self.number_of[response.place[0]] == number for response in row.responses]
        return torch.where(_mask(row, is_of), log_probs, others)

    def has_reference(self, row: Row) -> Tensor | None:
        """Return the mask [n] of a row's tokens whose prompts have a reference, or None if all have one."""
        has_one = [self.number_of[response.place[0]] is not None for response in row.responses]
        return None if all(has_one) else _mask(row, has_one)

    def sums(self, row: Row, batch: TokenBatch) -> dict[str, Tensor]:
        """Return the sum of the KL and the number of tokens of each task of a row with a teacher."""
        if not self.algorithm.kl.has_teacher or batch.reference_log_probs is None:
            return {}
        kl = kl_to_reference(batch, batch.log_probs.detach(), self.algorithm)
        taught = [place for place, number in enumerate(self.number_of) if number is not None]
        tasks = [self.plan.groups[response.place[0]].task for response in row.responses]
        sums = {}
        for task in sorted({self.plan.groups[place].task for place in taught} & set(tasks)):
            is_of = _mask(row, [name == task for name in tasks])
            sums[f"{TEACHER}/{task}"] = (kl * is_of).sum()
            sums[NUM_TOKENS + task] = is_of.sum()
        return sums


def _mask(row: Row, is_of: Sequence[bool]) -> Tensor:
    mask = np.array(is_of, bool)[row.response_index]
    return torch.from_numpy(mask).to(row.advantages.device)


def means_by_task(means: Mapping[str, float]) -> dict[str, float]:
    """Return means over all tokens with the KL to teachers as means over the tokens that have one, also by task."""
    shares = {name: share for name, share in means.items() if name.startswith(NUM_TOKENS) and share > 0}
    if not shares:
        return dict(means)
    kept = {name: value for name, value in means.items() if name != REFERENCE and not name.startswith(NUM_TOKENS)}
    by_task = {name: f"{TEACHER}/{name.removeprefix(NUM_TOKENS)}" for name in shares}
    kept[TEACHER] = sum(means[metric] for metric in by_task.values()) / sum(shares.values())
    return kept | {metric: means[metric] / shares[name] for name, metric in by_task.items()}
