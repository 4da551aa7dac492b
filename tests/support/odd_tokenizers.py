"""Write tokenizer folders as they are found in the wild: five kinds of tokenizers, each with twelve oddities."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEMPLATE = (
    "{% for m in messages %}{{ '<|s|>' + m['role'] + '\n' + m['content'] + '<|e|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|s|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<unk>", "<|end|>", "<|s|>", "<|e|>"]
TEXTS = ["Question: what is 12 + 30? Answer in tags.", "<think> add </think> <answer>42</answer>", "naïve 漢字"] * 40
VOCAB_SIZE = 600

Settings = dict[str, Any]
Oddity = Callable[[Tokenizer, Settings, Path], None]


def byte_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def metaspace_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL))
    return tokenizer


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL))
    return tokenizer


def word_level() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(TEXTS, trainers.WordLevelTrainer(vocab_size=100, special_tokens=SPECIAL))
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>")
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def plain(tokenizer: Tokenizer, settings: Settings, folder: Path) -> None:
    pass


def truncation(tokenizer: Tokenizer, settings: Settings, folder: Path) -> None:
    tokenizer.enable_truncation(8, direction="left")


def padding(tokenizer: Tokenizer, settings: Settings, folder: Path) -> None:
    tokenizer.enable_padding(length=64, pad_id=1, pad_token="<|end|>")
    tokenizer.enable_truncation(24)


def special_tags(tokenizer: Tokenizer, settings: Settings, folder: Path) -> None:
    tokenizer.add_special_tokens(["<think>", "</think>", "<answer>", "</answer>"])


def added_decoder(tokenizer: Tokenizer, settings: Settings, folder: Path) -> None:
    settings["added_tokens_decoder"] = numbered(tokenizer, ["<answer>", "</answer>"])


def added_decoder_with_blanks(tokenizer: Tokenizer, settings: Settings, folder: Path) -> None:
    settings["added_tokens_decoder"] = numbered(tokenizer, ["<answer>", "</answer>"], lstrip=True, rstrip=True)


def other_flags(tokenizer: Tokenizer, settings: Settings, folder: Path) -> None:
    tokenizer.add_tokens([AddedToken("<think>")])
    number = tokenizer.token_to_id("<think>")
    flags = {"special": True, "lstrip": True, "rstrip": True, "normalized": False, "single_word": False}
    settings["added_tokens_decoder"] = {str(number): {"content": "<think>", **flags}}


def added_file(tokenizer: Tokenizer, settings: Settings, folder: Path) -> None:
    first = tokenizer.get_vocab_size()
    (folder / "added_tokens.json").write_text(json.dumps({"</answer>": first + 1, "<answer>": first}))


def additional(tokenizer: Tokenizer, settings: Settings, folder: Path) -> None:
    settings["additional_special_tokens"] = ["<answer>", "</answer>"]


def tokens_map(tokenizer: Tokenizer, settings: Settings, folder: Path) -> None:
    end = {"content": "<|e|>", "lstrip": False, "normalized": False, "rstrip": True, "single_word": False}
    del settings["eos_token"]
    written = {"eos_token": end, "pad_token": "[PAD]", "additional_special_tokens": ["<think>", "</think>"]}
    (folder / "special_tokens_map.json").write_text(json.dumps(written))


def beginning(tokenizer: Tokenizer, settings: Settings, folder: Path) -> None:
    settings["bos_token"] = "<|end|>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|end|> $A", special_tokens=[("<|end|>", tokenizer.token_to_id("<|end|>"))]
    )


def own_names(tokenizer: Tokenizer, settings: Settings, folder: Path) -> None:
    settings["think_token"] = "<think>"
    settings["extra_special_tokens"] = {"answer_token": "<answer>"}


KINDS = (byte_bpe, metaspace_bpe, word_piece, word_level, unigram)
ODDITIES: tuple[Oddity, ...] = (
    plain,
    truncation,
    padding,
    special_tags,
    added_decoder,
    added_decoder_with_blanks,
    other_flags,
    added_file,
    additional,
    tokens_map,
    beginning,
    own_names,
)


def numbered(tokenizer: Tokenizer, texts: list[str], **flags: bool) -> dict[str, dict[str, Any]]:
    """The entries of `added_tokens_decoder` for tokens that the tokenizer has not."""
    first = tokenizer.get_vocab_size()
    all_flags = {"special": False, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False} | flags
    return {str(first + index): {"content": text, **all_flags} for index, text in enumerate(texts)}


def write_odd(folder: Path, oddity: Oddity = plain, kind: Callable[[], Tokenizer] = byte_bpe) -> Path:
    """A model folder without weights, whose tokenizer has one oddity."""
    folder.mkdir(parents=True)
    tokenizer = kind()
    settings: Settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|e|>",
        "pad_token": "<|end|>",
        "chat_template": TEMPLATE,
    }
    oddity(tokenizer, settings, folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": VOCAB_SIZE}))
    return folder


def corpus(root: Path) -> list[Path]:
    """Sixty tokenizer folders below `root`."""
    return [write_odd(root / kind.__name__ / odd.__name__, odd, kind) for kind in KINDS for odd in ODDITIES]
