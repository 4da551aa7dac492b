"""Small models of every family, in sizes that Transformer Engine's FP8 products take."""

from __future__ import annotations

from typing import Any

_SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 256,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2 tied": _SIZES | {"architecture": "qwen2"},
    "qwen2": _SIZES | {"architecture": "qwen2", "tie_word_embeddings": False},
    "qwen3": _SIZES | {"architecture": "qwen3", "head_dim": 32},
    "llama": _SIZES | {"architecture": "llama", "tie_word_embeddings": False},
    "granite": _SIZES | {"architecture": "granite"},
    "olmo2": _SIZES | {"architecture": "olmo2", "tie_word_embeddings": False},
    "glm4": _SIZES | {"architecture": "glm4", "head_dim": 32, "tie_word_embeddings": False},
    "mixture": _SIZES
    | {
        "architecture": "qwen3_moe",
        "head_dim": 32,
        "moe_intermediate_size": 64,
        "tie_word_embeddings": False,
    },
}
