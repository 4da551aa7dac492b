"""What policy ranks do with a model: log-probs of the whole vocabulary and an export; updates on rows of a given
length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.types import UpdatePlan
from tests.support.policy_ranks import Learner, new_learner  # makes this process ready for megatron

from nemo_brorl.policy.rank.pipeline import score_rows  # isort: skip
from nemo_brorl.policy.rows.packed_rows import PackedGroup, Response  # isort: skip


@dataclass(frozen=True)
class FamilyCase:
    """A model, the tokens to score, and where to write it again."""

    folder: Path
    token_ids: tuple[int, ...]
    export_to: Path


def score_families(config: BroRLConfig, cases: Sequence[FamilyCase]) -> list[Any]:
    """Per case the log-probs [L, V] of every next token after every prefix; None except on the last pipeline stage."""
    results = []
    for case in cases:
        learner = new_learner(config, case.folder)
        results.append(_log_probs_of_all_tokens(learner, case.token_ids))
        learner.export(case.export_to)
    return results


def _log_probs_of_all_tokens(learner: Learner, token_ids: Sequence[int]) -> torch.Tensor | None:
    """Every token of the vocabulary is a response of one token to every prefix."""
    vocab_size = learner.state.shape.vocab_size

    def response(prefix: int, token: int) -> Response:
        return Response(prefix, token, np.array([token], np.int32), np.zeros(1, np.float32), 0.0, is_fresh=True)

    packed_groups = [
        PackedGroup(
            np.array(token_ids[: prefix + 1], np.int32), tuple(response(prefix, token) for token in range(vocab_size))
        )
        for prefix in range(len(token_ids))
    ]
    row = learner.state.row(packed_groups, 1.0)
    scores = score_rows(learner.state.chunks, [row])
    if not scores:
        return None
    table = torch.full((len(token_ids), vocab_size), torch.nan)
    for answered, value in zip(row.responses, scores[0].log_probs, strict=True):
        table[answered.packed_group, answered.index] = value
    return table


def update_on_padded_rows(
    config: BroRLConfig, folder: Path, plans: Sequence[UpdatePlan], multiple: int
) -> list[dict[str, float]]:
    """The metrics of every plan, from rows padded to a multiple of `multiple` tokens as sequence parallelism pads
    them."""
    learner = new_learner(config, folder)
    learner.state.row_settings = replace(learner.state.row_settings, multiple=multiple)
    return [learner.update(plan).metrics for plan in plans]
