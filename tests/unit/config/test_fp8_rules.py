"""What FP8 asks of other settings and of the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_brorl.config.model_rules import policy_misfits
from nemo_brorl.config.policy_rules import fp8_is_possible
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.model_shape import ModelShape, read_model_shape

MODEL = {
    "model_type": "qwen2", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 128, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
}  # fmt: skip


def shape(folder: Path, **changes: int) -> ModelShape:
    (folder / "config.json").write_text(json.dumps(MODEL | changes))
    return read_model_shape(folder)


def config(gpus: int = 0, **policy: Any) -> BroRLConfig:
    made = BroRLConfig()
    made.trainer.gpus_per_node = gpus
    for name, value in policy.items():
        setattr(made.policy, name, value)
    return made


def fp8_goes_together(made: BroRLConfig) -> list[str]:
    made.algorithm.kl.coefficient = 0.0
    return list(fp8_is_possible(made))


@pytest.mark.parametrize(
    ("gpus", "policy", "message"),
    [
        (8, {}, "needs policy.precision=bf16 (now fp32)"),
        (0, {"fp8_params": True}, "is emulated on CPU"),
        (
            0,
            {"fp8_recipe": "delayed", "fp8_bf16_last_layers": 1},
            "needs policy.fp8_bf16_last_layers=0 (now 1)",
        ),
    ],
)
def test_settings_that_do_not_go_together(gpus: int, policy: dict[str, Any], message: str) -> None:
    (found,) = fp8_goes_together(config(gpus, fp8="hybrid", **policy))
    assert message in found


def test_fp8_is_emulated_on_cpu_in_either_precision_and_nothing_is_asked_without_it() -> None:
    for precision in ("fp32", "bf16"):
        assert not fp8_goes_together(config(fp8="e4m3", precision=precision))
    assert not fp8_goes_together(config(fp8_params=True, fp8_recipe="delayed", fp8_bf16_first_layers=1))


def misfits_of(run: BroRLConfig, model: ModelShape) -> list[str]:
    """What does not fit of a run's policy."""
    return list(policy_misfits(run.policy, model, on_gpu=run.trainer.num_gpus > 0))


def test_some_layers_of_a_model_must_be_in_fp8(tmp_path: Path) -> None:
    model = shape(tmp_path)
    assert not misfits_of(config(fp8="hybrid", fp8_bf16_first_layers=2, fp8_bf16_last_layers=1), model)
    (message,) = misfits_of(config(fp8="hybrid", fp8_bf16_first_layers=2, fp8_bf16_last_layers=2), model)
    assert "leave none of the model's 4 layers in FP8" in message
    too_many = config(fp8="hybrid", fp8_bf16_first_layers=3, pipeline_model_parallel_size=2)
    (message,) = misfits_of(too_many, model)
    assert "set 2 or less" in message


def test_features_come_in_sixteens_on_gpus_only(tmp_path: Path) -> None:
    odd = shape(tmp_path, intermediate_size=72)
    assert not misfits_of(config(fp8="hybrid"), odd)
    (message,) = misfits_of(config(1, fp8="hybrid", precision="bf16"), odd)
    assert "needs multiples of 16 features and the model's MLP's size on a tensor-parallel rank is 72" in message
