"""What a GPU has more of while the policy is on the host, and that nothing is lost on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_brorl.config.schema import BroRLConfig
from tests.support.model_factory import make_config, make_model, make_plan

NewLearner = Callable[[Path, BroRLConfig], Any]
SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 8192,
}


def requested_bytes() -> int:
    """Of tensors on the GPU. What torch calls allocated has the rest of a block in it that is too small for others."""
    return int(torch.cuda.memory_stats()["requested_bytes.all.current"])


def num_parameters(learner: Any) -> int:
    return sum(param.numel() for model in learner.state.models for param in model.parameters())


@pytest.mark.parametrize(("offload", "bytes_per_parameter"), [("optimizer", 16), ("all", 18)])
def test_memory_falls_by_what_moves_and_training_goes_on(
    offload: str, bytes_per_parameter: int, new_gpu_learner: NewLearner, tmp_path: Path
) -> None:
    """In bf16: fp32 gradients, master weights and two moments are 16 bytes a parameter; the weights are 2 more."""
    folder = make_model(tmp_path / "model", **SIZES)
    resident = new_gpu_learner(folder, make_config(precision="bf16"))
    moving = new_gpu_learner(folder, make_config(precision="bf16", offload=offload))
    for seed in range(2):
        before = requested_bytes()
        moving.offload()
        freed = before - requested_bytes()
        assert freed == pytest.approx(bytes_per_parameter * num_parameters(moving), rel=0.02)
        moving.onload()
        assert requested_bytes() == pytest.approx(before, rel=0.01)
        mine, theirs = moving.update(make_plan(seed=seed)).metrics, resident.update(make_plan(seed=seed)).metrics
        assert mine["policy/loss"] == pytest.approx(theirs["policy/loss"], rel=1e-5)


def test_scoring_under_the_reference_needs_no_second_set_of_weights(
    new_gpu_learner: NewLearner, tmp_path: Path
) -> None:
    learner = new_gpu_learner(make_model(tmp_path / "model", **SIZES), make_config(precision="bf16"))
    largest = max(param.nbytes for model in learner.state.models for param in model.parameters())
    before = [param.clone() for model in learner.state.models for param in model.parameters()]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    with learner.state.references[0].swapped_in():
        pass
    assert torch.cuda.max_memory_allocated() - start <= 2 * largest
    after = [param for model in learner.state.models for param in model.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert all(copy.is_pinned() for copy in learner.state.references[0].copies.values())


def test_quantised_copies_of_weights_go_too_and_are_made_again(new_gpu_learner: NewLearner, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", **SIZES)
    settings = {"precision": "bf16", "fp8": "hybrid"}
    resident, moving = (
        new_gpu_learner(folder, make_config(**settings)),
        new_gpu_learner(folder, make_config(offload="all", **settings)),
    )
    for learner in (resident, moving):
        learner.update(make_plan(seed=0))
    before = torch.cuda.memory_allocated()
    moving.offload()
    assert before - torch.cuda.memory_allocated() > 18.5 * num_parameters(
        moving
    )  # 18 without the copies, most weights have one
    moving.onload()
    mine, theirs = moving.update(make_plan(seed=1)).metrics, resident.update(make_plan(seed=1)).metrics
    assert mine["policy/loss"] == pytest.approx(theirs["policy/loss"], rel=1e-5)
