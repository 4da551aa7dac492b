"""Make random models of real shapes as Hugging Face folders.

They are written tensor by tensor in bf16. 1.5 billion numbers take seconds.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from nemo_brorl.core.model_shape import ModelShape, hf_shapes, read_model_shape

_COMMON = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "use_sliding_window": False,
    "dtype": "bfloat16",
    "bos_token_id": None,
    "eos_token_id": None,  # nothing ends a response, so that all have the length that was asked for
}
_QWEN2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}

# DeepSeek-R1-Distill-Qwen-1.5B (the paper's) and Qwen2.5-0.5B, by their config.json.
QWEN_1_5B = _COMMON | _QWEN2 | {
    "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151936, "max_position_embeddings": 131072, "tie_word_embeddings": False,
}  # fmt: skip
QWEN_0_5B = _COMMON | _QWEN2 | {
    "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936, "max_position_embeddings": 32768, "tie_word_embeddings": True,
}  # fmt: skip

# Every size is a multiple of 16, as FP8 wants it; heads of 64.
_SMALL = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
          "num_key_value_heads": 2,
          "vocab_size": 512, "max_position_embeddings": 4096}  # fmt: skip
_MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": []}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2 tied": _COMMON | _QWEN2 | _SMALL | {"tie_word_embeddings": True},
    "qwen2": _COMMON | _QWEN2 | _SMALL | {"tie_word_embeddings": False},
    "qwen3": _COMMON | _SMALL | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 64,
                                 "attention_bias": False, "tie_word_embeddings": True},
    "llama": _COMMON | _SMALL | {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "attention_bias": False,
                                 "mlp_bias": False, "tie_word_embeddings": False},
    "qwen3 mixture": _COMMON | _SMALL | _MOE | {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"],
                                                "head_dim": 64,
                                                "attention_bias": False, "tie_word_embeddings": False},
}  # fmt: skip
TINY = _COMMON | _QWEN2 | _SMALL | {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 128, "tie_word_embeddings": False,
}  # fmt: skip


def make_model(folder: Path, config: Mapping[str, Any], seed: int = 0) -> Path:
    """Write a folder with this config.json and random weights, unless it exists, and return it.

    Matrices have a standard deviation of 0.8 / sqrt(hidden size), that of a usual initialisation at 1,536. The weights
    of norms are distributed around one.
    """
    if (folder / "config.json").exists():
        return folder
    aside = folder.with_name(folder.name + ".part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    (aside / "config.json").write_text(json.dumps(dict(config), indent=1))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator(device).manual_seed(seed)
    scale = 0.8 / config["hidden_size"] ** 0.5
    tensors = {}
    for name, size in hf_shapes(read_model_shape(aside)).items():
        noise = torch.randn(size, generator=generator, device=device)
        tensors[name] = (1 + 0.1 * noise if "norm" in name else scale * noise).bfloat16().cpu()
    save_file(tensors, aside / "model.safetensors", metadata={"format": "pt"})
    aside.rename(folder)
    return folder


def with_tokenizer(folder: Path) -> Path:
    """Add the tests' tokenizer of single characters to a model's folder, and return the folder.

    vLLM needs a tokenizer. This one has no token that ends a response.
    """
    from tests.support.tiny_model import make_tokenizer

    settings = folder / "tokenizer_config.json"
    if not settings.exists():
        make_tokenizer(folder)
        known = json.loads(settings.read_text())
        known.pop("eos_token", None)
        settings.write_text(json.dumps(known))
    return folder


def layer_parameters(shape: ModelShape) -> int:
    """Count the parameters in the matrices of all layers that one token is multiplied with.

    Embedding and head are left out. Of a mixture only the chosen experts count.
    """
    share = shape.moe.experts_per_token / shape.moe.num_experts if shape.moe else 1.0
    total = 0.0
    for name, size in hf_shapes(shape).items():
        if len(size) == 2 and ".layers." in name:
            total += size[0] * size[1] * (share if ".experts." in name else 1.0)
    return round(total)


def weight_bytes(shape: ModelShape) -> int:
    """Return the bytes of all weights in bf16."""
    return sum(2 * int(torch.Size(size).numel()) for size in hf_shapes(shape).values())
