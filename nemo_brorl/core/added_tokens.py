"""Add the tokens that stand beside `tokenizer.json`, as transformers does when it loads a tokenizer.

They are in `added_tokens_decoder` of tokenizer_config.json, or else in added_tokens.json and special_tokens_map.json.
Named tokens (`pad_token`) and further special tokens that the vocabulary lacks follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.model_folder import model_object

if TYPE_CHECKING:
    import tokenizers

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
FURTHER = ("additional_special_tokens", "extra_special_tokens")
END = "eos_token"


def token_text(token: Any) -> str | None:
    """Return the text of a token that a settings file of a model names, or None for what is no token."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) and text else None


def add_tokens_beside(
    backend: tokenizers.Tokenizer, folder: Path, settings: Mapping[str, Any], vocab_size: int | None
) -> None:
    """Add to a tokenizer the tokens of a model folder that its `tokenizer.json` lacks, or has with other flags.

    A named token whose id would be beyond the model's `vocab_size` is left out, and so is an end token that is none:
    the model has never seen it. Raises ModelError where the given id of a token is not the one that it gets.
    """
    there = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    for text, (flags, token_id) in _numbered(folder, settings).items():
        old = there.get(text)
        if old is not None and all(getattr(old, name) == flags[name] for name in FLAGS):
            continue
        _add(backend, text, flags)
        got = backend.token_to_id(text)
        if got != token_id:
            raise ModelError(
                f"{folder} gives the token {text!r} the id {token_id}, and in its tokenizer.json it is {got}: save the "
                "tokenizer again with transformers, or use the files of the model that it was made for"
            )
        there[text] = backend.get_added_tokens_decoder()[got]
    for name, text in _unnumbered(folder, settings):
        is_new = backend.token_to_id(text) is None
        is_beyond = vocab_size is not None and backend.get_vocab_size() >= vocab_size
        if text in there or (is_new and (name == END or (is_beyond and name not in FURTHER))):
            continue
        _add(backend, text, dict.fromkeys(FLAGS, False) | {"special": True})
        there[text] = backend.get_added_tokens_decoder()[backend.token_to_id(text)]


def _add(backend: tokenizers.Tokenizer, text: str, flags: Mapping[str, bool]) -> None:
    from tokenizers import AddedToken

    backend.add_tokens([AddedToken(text, **flags)])


def _numbered(folder: Path, settings: Mapping[str, Any]) -> dict[str, tuple[dict[str, bool], int]]:
    """Return the added tokens whose id is written, in the order of their ids, each with its flags."""
    given = settings.get("added_tokens_decoder")
    found = {}
    try:
        if isinstance(given, dict):
            for number, token in sorted(given.items(), key=lambda entry: int(entry[0])):
                flags = {name: bool(token.get(name, False)) for name in FLAGS}
                flags["normalized"] = bool(token.get("normalized", not flags["special"]))
                found[str(token["content"])] = (flags, int(number))
            return found
        special = {text for _, text in _unnumbered(folder, settings)}
        known = {token["content"] for token in _in_tokenizer(folder)}
        for text, number in sorted(model_object(folder / "added_tokens.json").items(), key=lambda entry: entry[1]):
            # What tokenizer.json says about a token counts for more.
            if text not in known:
                flags = dict.fromkeys(FLAGS, False) | {"special": text in special, "normalized": text not in special}
                found[text] = (flags, int(number))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"the added tokens in {str(folder)!r} cannot be read: {error!r:.200}") from error
    return found


def _in_tokenizer(folder: Path) -> Sequence[Mapping[str, Any]]:
    return model_object(folder / "tokenizer.json").get("added_tokens") or ()


def _unnumbered(folder: Path, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield setting and text of the special tokens that settings name without an id."""
    merged = dict(settings)
    if "added_tokens_decoder" not in settings:
        merged = {**settings, **model_object(folder / "special_tokens_map.json")}
    lists = []
    for name, value in merged.items():
        if name in FURTHER:
            lists += [(name, each) for each in (value.values() if isinstance(value, dict) else value or ())]
        elif name.endswith("_token") and token_text(value) is not None:
            yield name, str(token_text(value))
    for name, value in lists:
        text = token_text(value)
        if text is not None:
            yield name, text
