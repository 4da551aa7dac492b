"""A random Qwen2 of 0.1 M parameters with a tokenizer beside it, as a Hugging Face folder: real enough for every
component."""

from __future__ import annotations

from pathlib import Path

VOCAB_SIZE = 128
EOS_ID = 1


def make_tiny_model(
    folder: Path, seed: int = 0, is_tied: bool = True, scale: float = 0.3, num_kv_heads: int = 1
) -> Path:
    """Write config, tokenizer and safetensors; weights are drawn with `seed`, large enough that log-probs differ by
    nats."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,  # of 32 dimensions: vLLM's CPU attention has no kernel for fewer
        num_key_value_heads=num_kv_heads,
        max_position_embeddings=512,
        tie_word_embeddings=is_tied,
        initializer_range=scale,
        bos_token_id=None,
        eos_token_id=EOS_ID,
        pad_token_id=0,
    )
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0.0, scale)
            elif "norm" in name:
                parameter.uniform_(0.5, 1.5)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    make_tokenizer(folder)
    return folder


def make_tokenizer(folder: Path) -> None:
    """Write a tokenizer of single bytes beside a model with the vocabulary of `VOCAB_SIZE`.

    It is byte-level, because transformers reads the tokenizer of every Qwen2 model as one.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {"<pad>": 0, "<eos>": EOS_ID, "<unk>": 2}
    for code in (10, *range(32, 127)):
        vocab[{10: "Ċ", 32: "Ġ"}.get(code, chr(code))] = len(vocab)
    for index in range(len(vocab), VOCAB_SIZE):
        vocab[f"<unused{index}>"] = index
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>", chat_template=template
    )
    wrapped.save_pretrained(folder)
