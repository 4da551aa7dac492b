"""Scoring in evaluation mode: no pass without a backward is a checkpointed one, and recomputing changes no gradient."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron.core import tensor_parallel
from torch import Tensor

from nemo_brorl.config.schema import BroRLConfig
from tests.support.model_factory import make_config, make_model, make_plan

pytestmark = pytest.mark.numbers

NewLearner = Callable[[Path, BroRLConfig], Any]
NUM_LAYERS = 4


class Stash:
    """Checkpointing that notes something at every first pass and takes it back, oldest first, when the pass is
    repeated: as Transformer Engine's modules keep FP8 scales. It cannot show what stale scales do to numbers."""

    def __init__(self, checkpoint: Callable[..., Any]) -> None:
        self.checkpoint = checkpoint
        self.noted: deque[int] = deque()
        self.num_calls = 0

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.noted.append(self.num_calls)
        self.num_calls += 1

        def repeated(*inputs: Any) -> Any:
            if torch.is_grad_enabled():
                self.noted.popleft()
            return function(*inputs)

        return self.checkpoint(repeated, *arguments)


@pytest.fixture
def stash(monkeypatch: pytest.MonkeyPatch) -> Stash:
    made = Stash(tensor_parallel.checkpoint)
    monkeypatch.setattr(tensor_parallel, "checkpoint", made)
    return made


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_passes_that_score_checkpoint_nothing(
    recompute: str, stash: Stash, new_learner: NewLearner, model_folder: Path
) -> None:
    learner = new_learner(model_folder, make_config(recompute=recompute))
    learner.log_probs([[1, 2, 3]], [[4, 5]])
    assert stash.num_calls == 0
    assert all(module.training for module in learner.state.models[0].modules())


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_an_update_takes_back_all_that_its_checkpoints_noted(
    recompute: str, stash: Stash, new_learner: NewLearner, model_folder: Path
) -> None:
    """Two mini-batches of two rows learnt from; the second is scored before, and both by the reference."""
    config = make_config(recompute=recompute)
    config.algorithm.kl.coefficient = 0.01
    new_learner(model_folder, config).update(make_plan(num_mini_batches=2, micro_batches=2))
    assert stash.num_calls == 2 * 2 * NUM_LAYERS
    assert not stash.noted


def test_experts_are_recomputed_in_training_only(stash: Stash, new_learner: NewLearner, tmp_path: Path) -> None:
    folder = make_model(tmp_path, "qwen3_moe", tie_word_embeddings=False)
    learner = new_learner(folder, make_config(recompute="selective"))
    learner.log_probs([[1, 2, 3]], [[4, 5]])
    assert stash.num_calls == 0
    learner.update(make_plan(num_mini_batches=1, micro_batches=1))
    assert stash.num_calls == NUM_LAYERS
    assert not stash.noted


def weights_after_an_update(learner: Any) -> dict[str, Tensor]:
    learner.update(make_plan())
    return {name: tensor.clone() for name, tensor in learner.hf_export.stream()}


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3_moe"])
def test_what_is_recomputed_changes_no_weight(architecture: str, new_learner: NewLearner, tmp_path: Path) -> None:
    folder = make_model(tmp_path, architecture, tie_word_embeddings=False)
    expected = weights_after_an_update(new_learner(folder, make_config()))
    for recompute in ("selective", "full"):
        found = weights_after_an_update(new_learner(folder, make_config(recompute=recompute)))
        for name, tensor in expected.items():
            assert torch.equal(found[name], tensor), (recompute, name)
