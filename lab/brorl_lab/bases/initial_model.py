"""Write a small Qwen2 model with random weights as a Hugging Face folder, without torch, and a tokenizer for it.

The tokenizer is byte-level BPE over the tasks' own text. Text is split into words as Qwen2 splits it, because that is
how `AutoTokenizer` reads the tokenizer of a Qwen2 model, whatever its files say. So every digit is a token of its own,
and numbers of any length are spelled the same way. `<answer>` and `</answer>` are single tokens but not special ones:
decoding keeps them, and the verifier looks for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from nemo_brorl.config.sft import NewModelConfig
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.core.files import share_as_usual

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

INITIAL_STD = 0.02  # GPT-2's and Qwen2's initializer_range
END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END)
ANSWER_TAGS = ("<answer>", "</answer>")
BYTES = 256

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# For bases that see a tool: tools by name and parameters, calls as Hermes and Qwen write them.
TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n"
    "{% for tool in tools %}{{ tool['function']['name'] }}"
    "({{ tool['function']['parameters']['properties'] | join(', ') }})\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] %}"
    "<tool_call>{\"name\": \"{{ call['function']['name'] }}\", "
    "\"arguments\": {{ call['function']['arguments'] | tojson }}}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_initial_model(
    folder: Path,
    new: NewModelConfig,
    *,
    eos_id: int,
    pad_id: int,
    seed: int,
) -> int:
    """Write a model with random weights in Hugging Face format, and return its number of parameters.

    The files are config.json, generation_config.json and model.safetensors. Projections back into the residual stream
    are scaled by 1 / sqrt(2 · layers), as in GPT-2.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = qwen2_config(new, eos_id=eos_id, pad_id=pad_id)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    stopping = {"eos_token_id": eos_id, "pad_token_id": pad_id, "bos_token_id": pad_id}
    (folder / "generation_config.json").write_text(json.dumps(stopping, indent=1))
    random = np.random.default_rng(seed)
    tensors: dict[str, NDArray[np.float32]] = {}
    for name, shape in qwen2_shapes(new).items():
        tensors[name] = initial_tensor(name, shape, new.num_layers, random)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    share_as_usual(folder / "model.safetensors")
    return sum(tensor.size for tensor in tensors.values())


def qwen2_config(
    new: NewModelConfig,
    *,
    eos_id: int,
    pad_id: int,
) -> dict[str, Any]:
    """Return the config.json of a Qwen2ForCausalLM with tied embeddings."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": new.hidden_size,
        "intermediate_size": new.intermediate_size,
        "num_hidden_layers": new.num_layers,
        "num_attention_heads": new.num_attention_heads,
        "num_key_value_heads": new.num_key_value_heads,
        "vocab_size": new.vocab_size,
        "max_position_embeddings": new.max_position_embeddings,
        "hidden_act": "silu",
        "initializer_range": INITIAL_STD,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "torch_dtype": "float32",
        "bos_token_id": pad_id,
        "eos_token_id": eos_id,
        "pad_token_id": pad_id,
    }


def qwen2_shapes(new: NewModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of all tensors of a Qwen2 model, in Hugging Face's order."""
    hidden = new.hidden_size
    inner = new.intermediate_size
    head = hidden // new.num_attention_heads
    key_value = head * new.num_key_value_heads
    shapes: dict[str, tuple[int, ...]] = {}
    shapes["model.embed_tokens.weight"] = (new.vocab_size, hidden)
    for layer in range(new.num_layers):
        prefix = f"model.layers.{layer}"
        attention = f"{prefix}.self_attn"
        shapes[f"{attention}.q_proj.weight"] = (hidden, hidden)
        shapes[f"{attention}.k_proj.weight"] = (key_value, hidden)
        shapes[f"{attention}.v_proj.weight"] = (key_value, hidden)
        shapes[f"{attention}.q_proj.bias"] = (hidden,)
        shapes[f"{attention}.k_proj.bias"] = (key_value,)
        shapes[f"{attention}.v_proj.bias"] = (key_value,)
        shapes[f"{attention}.o_proj.weight"] = (hidden, hidden)
        shapes[f"{prefix}.mlp.gate_proj.weight"] = (inner, hidden)
        shapes[f"{prefix}.mlp.up_proj.weight"] = (inner, hidden)
        shapes[f"{prefix}.mlp.down_proj.weight"] = (hidden, inner)
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    return shapes


def initial_tensor(
    name: str,
    shape: tuple[int, ...],
    num_layers: int,
    random: np.random.Generator,
) -> NDArray[np.float32]:
    """Return the initial values of a weight tensor: ones for norms, zeros for biases, else random normal values."""
    if name.endswith("norm.weight"):
        return np.ones(shape, np.float32)
    if name.endswith(".bias"):
        return np.zeros(shape, np.float32)
    std = INITIAL_STD
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        std /= np.sqrt(2 * num_layers)  # a projection back into the residual stream
    values = random.standard_normal(shape) * std
    return values.astype(np.float32)


def build_tokenizer(texts: Iterable[str], vocab_size: int, template: str = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on `texts`, with a vocabulary of `vocab_size` tokens in all.

    Whole rendered prompts are the best texts. Equal texts give an equal tokenizer. Raises ConfigError when `vocab_size`
    has no room for all bytes, the special tokens and the answer tags.
    """
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

    smallest = BYTES + len(SPECIAL_TOKENS) + len(ANSWER_TAGS)
    if vocab_size < smallest:
        raise ConfigError(
            f"sft.new.vocab_size={vocab_size} is too small for a byte-level tokenizer; set {smallest} or more"
        )
    qwen2 = Qwen2Tokenizer().backend_tokenizer
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = qwen2.normalizer
    tokenizer.pre_tokenizer = qwen2.pre_tokenizer
    tokenizer.decoder = qwen2.decoder
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(ANSWER_TAGS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in ANSWER_TAGS])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=IM_END, pad_token=END_OF_TEXT)
    wrapped.chat_template = template
    return wrapped
