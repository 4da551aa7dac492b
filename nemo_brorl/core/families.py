"""Say of each model family what its layers have, and of other families what is missing: one row per `model_type`.

A family whose layers have the names of Llama's (`self_attn.q_proj`, `mlp.gate_proj`) needs a row in `FAMILIES` and
nothing else. The rows follow transformers' code, and `defaults` its configs: a key that config.json leaves out has the
value that transformers gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Config = Mapping[str, Any]  # a parsed config.json

# Keys that would change the layers, with the only value that is supported.
_ONLY: Config = {"mlp_bias": False, "hidden_act": "silu", "attention_out_bias": False}


@dataclass(frozen=True)
class Family:
    """What a family's layers have that Llama's have not."""

    models: str  # the public models, for readers
    has_qkv_bias: bool | str = False  # a text names the key of config.json that says it
    has_qk_norm: bool = False
    has_experts: bool = False
    has_layers_without_rope: bool = False  # no_rope_layers lists 0 for a layer that does not rotate
    window_switch: str = ""  # key without which sliding_window does nothing; empty: its number is enough
    first_window_layer: str = ""  # key with the first layer that has a window; empty: layer 0
    defaults: Config = field(default_factory=dict)

    def complete(self, config: Config) -> dict[str, Any]:
        """Return a config.json with the keys that it leaves out."""
        return {**self.defaults, **config}

    def unsupported(self, config: Config) -> tuple[str, Any] | None:
        """Return the first key of config.json that the policy cannot follow, with the value that it would need."""
        only = dict(_ONLY) if self.has_qkv_bias else {**_ONLY, "attention_bias": False}
        for name, wanted in only.items():
            if config.get(name, wanted) != wanted:
                return name, wanted
        return None

    def has_window(self, config: Config) -> bool:
        """Return whether some layers see only the last `sliding_window` tokens."""
        if set(config.get("layer_types") or ()) - {"full_attention"}:
            return True
        if config.get("sliding_window") is None or not config.get(self.window_switch, not self.window_switch):
            return False
        first = config[self.first_window_layer] if self.first_window_layer else 0
        return bool(first < config["num_hidden_layers"])

    def qkv_bias(self, config: Config) -> bool:
        """Return whether queries, keys and values have biases."""
        return bool(config[self.has_qkv_bias]) if isinstance(self.has_qkv_bias, str) else self.has_qkv_bias

    def layers_without_rope(self, config: Config) -> tuple[bool, ...]:
        """Return for each layer whether it does not rotate queries and keys; empty if all layers do."""
        num_layers, rotates = config["num_hidden_layers"], config.get("no_rope_layers")
        if not self.has_layers_without_rope:
            return ()
        if rotates is None:
            every = config["no_rope_layer_interval"]
            rotates = [(layer + 1) % every for layer in range(num_layers)]
        if len(rotates) < num_layers:
            raise ValueError(f"no_rope_layers has {len(rotates)} entries for {num_layers} layers")
        without = tuple(not rotated for rotated in rotates[:num_layers])
        return without if any(without) else ()


_QWEN: Config = {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28}

FAMILIES: dict[str, Family] = {
    "llama": Family("Llama 2 and 3, SmolLM2"),
    "qwen2": Family(
        "Qwen2, Qwen2.5",
        has_qkv_bias=True,
        window_switch="use_sliding_window",
        first_window_layer="max_window_layers",
        defaults=_QWEN,
    ),
    "qwen3": Family(
        "Qwen3",
        has_qk_norm=True,
        window_switch="use_sliding_window",
        first_window_layer="max_window_layers",
        defaults={**_QWEN, "head_dim": 128},
    ),
    "qwen3_moe": Family(
        "Qwen3 mixtures of experts",
        has_qk_norm=True,
        has_experts=True,
        window_switch="use_sliding_window",
        defaults={**_QWEN, "num_key_value_heads": 4},
    ),
    "mistral": Family(
        "Mistral since v0.2, Nemo, Small (text)", defaults={"num_key_value_heads": 8, "sliding_window": 4096}
    ),
    "seed_oss": Family(
        "Seed-OSS",
        has_qkv_bias="attention_bias",
        defaults={"num_key_value_heads": 8, "head_dim": 128, "attention_bias": True},
    ),
    "smollm3": Family(
        "SmolLM3",
        has_layers_without_rope=True,
        window_switch="use_sliding_window",
        defaults={
            "num_key_value_heads": 4,
            "rope_theta": 2e6,
            "no_rope_layer_interval": 4,
            "tie_word_embeddings": True,
        },
    ),
}
