"""The warm-up's own rules, on fakes."""

import json
from pathlib import Path

import numpy as np
import pytest
from brorl_lab.bases.initial_model import write_initial_model
from brorl_lab.bases.trainer import check_band, fingerprint, is_cached
from safetensors.numpy import load_file

from nemo_brorl.config.load import load_config
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.config.sft import NewModelConfig, SftConfig
from nemo_brorl.core.errors import TrainingError
from nemo_brorl.evaluation.validation import EvaluationResult, TaskResult


def result(pass_at_1: float) -> EvaluationResult:
    return EvaluationResult(TaskResult(8, 8, pass_at_1, 0.01, 1.0, 0.5, 4.0, 0.0, {}), {})


@pytest.mark.parametrize(("pass_at_1", "advice"), [(0.1, "sft.max_steps"), (0.9, "sft.new.probe_interval")])
def test_a_base_outside_the_band_is_refused_with_advice(pass_at_1: float, advice: str) -> None:
    with pytest.raises(TrainingError, match=advice):
        check_band(BroRLConfig(), result(pass_at_1))


def test_a_cached_base_counts_only_for_the_same_settings(tmp_path: Path) -> None:
    config = BroRLConfig(sft=SftConfig(new=NewModelConfig(output=str(tmp_path))))
    assert not is_cached(config)
    (tmp_path / "warm_up.json").write_text(json.dumps({"fingerprint": fingerprint(config)}))
    assert is_cached(config)
    config.trainer.seed += 1
    assert not is_cached(config)


@pytest.mark.parametrize("name", ["sums_cpu", "agent_cpu"])
def test_the_shipped_bases_are_those_of_their_recipes(name: str) -> None:
    assert is_cached(load_config(name))


def test_the_initial_model_is_a_qwen2_folder_of_the_configured_size(tmp_path: Path) -> None:
    new = NewModelConfig(
        hidden_size=8, num_layers=2, num_attention_heads=2, num_key_value_heads=1, intermediate_size=16, vocab_size=10
    )
    count = write_initial_model(tmp_path, new, eos_id=2, pad_id=0, seed=0)
    # embedding 80; per layer: q 64 + 8, k and v 2 * (32 + 4), o 64, mlp 3 * 128, norms 16; final norm 8
    assert count == 80 + 2 * (72 + 72 + 64 + 384 + 16) + 8
    tensors = load_file(tmp_path / "model.safetensors")
    assert np.array_equal(tensors["model.layers.1.input_layernorm.weight"], np.ones(8, np.float32))
    assert "lm_head.weight" not in tensors
