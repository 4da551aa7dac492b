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
class NormNames:
    """Names of a layer's norms in a checkpoint. An empty name means that there is no such norm."""

    before_attention: str = "input_layernorm"
    after_attention: str = ""
    before_mlp: str = "post_attention_layernorm"
    after_mlp: str = ""


LLAMA_NORMS = NormNames()


@dataclass(frozen=True)
class Family:
    """What a family's layers have that Llama's have not."""

    models: str  # the public models, for readers
    has_qkv_bias: bool | str = False  # a text names the key of config.json that says it
    has_qk_norm: bool = False
    has_joint_qk_norm: bool = False  # True: one norm over the queries of all heads, and one over the keys
    norms: NormNames = LLAMA_NORMS
    has_experts: bool = False
    has_fused_mlp: bool = False  # True: one tensor mlp.gate_up_proj
    has_interleaved_rope: bool = False  # True: dimensions 2i and 2i + 1 are a pair, and some may not rotate
    has_multipliers: bool = False  # embeddings, sublayers, attention and logits have factors
    has_layers_without_rope: bool = False  # no_rope_layers lists 0 for a layer that does not rotate
    # Key without which sliding_window does nothing. Without such a key its number is enough, also in families in which
    # transformers ignores it, because vLLM follows it.
    window_switch: str = ""
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
    "granite": Family(
        "Granite 3 (dense)",
        has_multipliers=True,
        defaults={
            "embedding_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "attention_multiplier": 1.0,
            "logits_scaling": 1.0,
        },
    ),
    "olmo2": Family(
        "OLMo 2",
        has_joint_qk_norm=True,
        norms=NormNames("", "post_attention_layernorm", "", "post_feedforward_layernorm"),
    ),
    "glm4": Family(
        "GLM-4 of 2025 (dense), Z1",
        has_qkv_bias="attention_bias",
        has_fused_mlp=True,
        has_interleaved_rope=True,
        norms=NormNames(
            "input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"
        ),
        defaults={"num_key_value_heads": 2, "head_dim": 128, "attention_bias": True, "partial_rotary_factor": 0.5},
    ),
}

_STATE = "a recurrent state, which hundreds of responses to one prompt cannot share"
# The nearest family, what the policy lacks, and the model types that need it.
_LACKS = (
    ("qwen3", "a window by layer", "exaone4 gemma3 gemma3_text gemma3n gemma4"),
    ("llama", "a window by layer and capped logits", "gemma2"),
    ("mistral", "a window by layer", "ministral"),
    ("olmo2", "a window by layer", "olmo3"),
    ("qwen3_moe", "a window by layer and attention sinks", "gpt_oss"),
    ("qwen3", _STATE, "nemotron_h qwen3_5"),
    ("qwen3_moe", _STATE, "jamba qwen3_5_moe qwen3_next"),
    ("granite", _STATE, "bamba granitemoehybrid"),
    ("llama", _STATE, "falcon_h1 lfm2 mamba2"),
    ("qwen3_moe", "latent attention (MLA)", "deepseek_v2 deepseek_v3"),
    ("llama", "latent attention (MLA)", "minicpm3"),
    ("qwen3_moe", "experts that every token visits", "glm4_moe qwen2_moe"),
    ("qwen3_moe", "experts other than Qwen3's", "minimax_m2 mixtral olmoe phimoe"),
    ("granite", "experts other than Qwen3's", "granitemoe"),
    ("qwen2", "images beside text", "qwen2_5_vl qwen2_vl"),
    ("qwen3", "images beside text", "qwen3_vl"),
    ("mistral", "images beside text", "mistral3"),
    ("llama", "images beside text", "llama4"),
    ("llama", "attention and MLP side by side", "cohere cohere2 gpt_neox phi"),
    ("llama", "one tensor for queries, keys and values", "phi3"),
    ("llama", "LayerNorm", "gpt2 nemotron opt stablelm starcoder2"),
    ("olmo2", "LayerNorm", "olmo"),
    ("llama", "an MLP without a SiLU gate", "apertus arcee gemma"),
)
LACKING: dict[str, tuple[str, str]] = {}  # part and nearest family by model type
for _nearest, _part, _others in _LACKS:
    LACKING |= dict.fromkeys(_others.split(), (_part, _nearest))


def why_unknown(model_type: str) -> str:
    """Return why a model type is in no row of the table: what is missing, and which family is the nearest."""
    if model_type not in LACKING:
        return f"supported are {', '.join(FAMILIES)}"
    part, nearest = LACKING[model_type]
    return f"missing is {part}. The nearest family is {nearest} ({FAMILIES[nearest].models})"
