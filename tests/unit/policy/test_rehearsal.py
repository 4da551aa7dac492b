"""A rehearsed update on one rank, and the factors that cancel replicas' gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ResourceError
from tests.support.model_factory import make_config

NewLearner = Callable[[Path, BroRLConfig], Any]


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 4, 5, 64, 65])
def test_the_factors_of_all_replicas_add_up_to_zero_and_none_is_zero(num_replicas: int) -> None:
    from nemo_brorl.policy.rank.rehearsal import opposed_factor

    factors = [opposed_factor(replica, num_replicas) for replica in range(num_replicas)]
    assert sum(factors) == 0
    assert num_replicas == 1 or min(map(abs, factors)) == 1.0


@pytest.mark.slow
def test_the_row_is_as_long_as_asked_for_and_its_responses_no_longer_than_the_runs(
    new_learner: NewLearner, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nemo_brorl.policy.rank import rehearsal

    config = make_config()
    config.rollouts.max_response_tokens = 30
    rows: list[Any] = []
    train = rehearsal.train_rows
    monkeypatch.setattr(rehearsal, "train_rows", lambda chunks, new, loss: (rows.extend(new), train(chunks, new, loss)))
    report = new_learner(model_folder, config).rehearse(100)
    assert report.grad_norm > 0
    assert report.opposed_norm == 0, "the factor of a single replica is 0"
    assert [row.token_ids.size(1) for row in rows] == [100, 100]
    assert sorted(rows[0].response_lengths.tolist()) == [20, 30], "behind a prompt of half the row"


@pytest.mark.slow
def test_a_peak_above_the_card_says_what_to_set(
    new_learner: NewLearner, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nemo_brorl.policy.rank import rehearsal

    def train_rows(*unused: Any) -> None:
        raise torch.OutOfMemoryError("tried to allocate 2.00 GiB")

    monkeypatch.setattr(rehearsal, "train_rows", train_rows)
    with pytest.raises(ResourceError, match=r"policy rank 0 ran out of GPU memory.*policy.recompute=selective"):
        new_learner(model_folder, make_config()).rehearse(64)
