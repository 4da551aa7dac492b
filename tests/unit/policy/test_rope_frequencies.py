"""Stretched rotary frequencies are those of transformers, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from nemo_brorl.core.model_shape import read_model_shape
from nemo_brorl.policy.model.rotary import inverse_frequencies

pytestmark = pytest.mark.numbers

SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 3.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "yarn with weights": {
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "truncate": False,
        "beta_fast": 16,
        "beta_slow": 2,
        "mscale": 0.7,
        "mscale_all_dim": 0.4,
    },
    "yarn with a given factor": {"factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.5},
}


def config_of(rope: dict[str, Any], folder: Path) -> LlamaConfig:
    config = LlamaConfig(hidden_size=256, num_attention_heads=4, max_position_embeddings=256, rope_parameters=rope)
    config.save_pretrained(folder)
    return config


@pytest.mark.parametrize("name", SCALINGS)
def test_stretched_frequencies_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    kind = name.split()[0]
    config = config_of({"rope_type": kind, "rope_theta": 5e5, **SCALINGS[name]}, tmp_path)
    expected, attention_factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    rope = read_model_shape(tmp_path).rope
    assert torch.equal(inverse_frequencies(rope, 64), expected)
    assert rope.attention_factor == attention_factor


def test_plain_frequencies_are_those_of_transformers(tmp_path: Path) -> None:
    config = config_of({"rope_type": "default", "rope_theta": 1e6}, tmp_path)
    assert torch.equal(inverse_frequencies(read_model_shape(tmp_path).rope, 64), LlamaRotaryEmbedding(config).inv_freq)


def test_llama3_keeps_fast_dimensions_and_divides_slow_ones(tmp_path: Path) -> None:
    """Wavelengths of 2π and of 2π · 5e5^(31/32) against bounds of 16 and 64 positions."""
    config_of({"rope_type": "llama3", "rope_theta": 5e5, **SCALINGS["llama3"]}, tmp_path)
    frequencies = inverse_frequencies(read_model_shape(tmp_path).rope, 64)
    assert frequencies[0] == 1.0
    assert frequencies[-1].item() == pytest.approx(5e5 ** (-62 / 64) / 8)
