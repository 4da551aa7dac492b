"""Load a model's tokenizer without transformers: `tokenizers` and `jinja2` load in 0.1 s, AutoTokenizer in 5 s.

Driver, verifier children and warm-up all use it. For a folder without `tokenizer.json` (an old SentencePiece model),
transformers converts the tokenizer. A model without a chat template gets plain text, see `ChatTokenizer.prompt_ids`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brorl_graders.base.foreign import record_text

from nemo_brorl.core.chat_template import MAX_TEMPLATE, compile_template, render, try_template
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.model_folder import as_model_error, model_object

if TYPE_CHECKING:
    import jinja2
    import tokenizers

log = get_logger(__name__)

Messages = Sequence[Mapping[str, str]]  # messages with role and content
Tools = Sequence[Mapping[str, Any]]  # functions by name, each with a JSON schema of its parameters

MAX_GROWTH = 1000  # most characters that a normalizer may write for one
_OLD_FILES = frozenset(["tokenizer.model", "spiece.model", "vocab.json", "vocab.txt"])
SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True)
class ChatTokenizer:
    """A tokenizer with the model's chat template.

    `special_tokens` maps bos_token, eos_token, pad_token and unk_token (those the model has) to their text. Templates
    use them.
    """

    backend: tokenizers.Tokenizer
    chat_template: str | None
    special_tokens: Mapping[str, str]

    @property
    def vocab_size(self) -> int:
        """Largest token id plus one, added tokens included."""
        vocabulary = self.backend.get_vocab(with_added_tokens=True)
        return max(vocabulary.values()) + 1

    @property
    def eos_token_id(self) -> int:
        """Id of the token that ends a response."""
        return self._special_id("eos_token")

    @property
    def pad_token_id(self) -> int:
        """Id of the padding token, or of the end token for a model without a padding token."""
        return self._special_id("pad_token" if "pad_token" in self.special_tokens else "eos_token")

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`, without added special tokens."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of a response, without special tokens."""
        return self.backend.decode(list(token_ids), skip_special_tokens=True)

    def prompt_ids(
        self,
        question: str | Messages,
        system_prompt: str | None = None,
        tools: Tools = (),
    ) -> list[int]:
        """Return the token ids of a conversation that ends where the assistant's response starts.

        `question` is the user's text, or whole messages. A system prompt from the settings replaces one in the
        messages, and an empty one removes it. Without a chat template the text is the model's own beginning-of-text
        token, the messages with blank lines between them, and a line break.
        """
        if self.chat_template is None:
            messages = conversation(question, system_prompt)
            text = "\n\n".join(message["content"] for message in messages)
            return self.backend.encode(f"{text}\n", add_special_tokens=True).ids
        return self.encode(self.render(question, system_prompt, tools=tools))

    def render(
        self,
        question: str | Messages,
        system_prompt: str | None = None,
        is_prompt: bool = True,
        tools: Tools = (),
    ) -> str:
        """Return a conversation as text; a prompt ends where the assistant's response starts.

        Raises ModelError when the chat template refuses it (some know no system role).
        """
        messages = conversation(question, system_prompt)
        try:
            return render(self._template, messages, self.special_tokens, tools, is_prompt)
        except ModelError as error:
            hint = ""
            if system_prompt:
                hint = "; set data.system_prompt=null"
            elif len(messages) > 1:
                hint = '; set data.system_prompt=""'
            raise ModelError(f"{error}{hint}") from error

    @cached_property
    def _template(self) -> jinja2.Template:
        assert self.chat_template is not None, "prompt_ids renders only models that have a template"
        return compile_template(self.chat_template)

    def _special_id(self, name: str) -> int:
        token = self.special_tokens.get(name)
        token_id = None if token is None else self.backend.token_to_id(token)
        if token_id is None:
            raise ModelError(f"the tokenizer has no {name} (found {token!r}); set it in tokenizer_config.json")
        return token_id


def conversation(question: str | Messages, system_prompt: str | None) -> list[dict[str, str]]:
    """Return the messages of a question, which is a user's text or a conversation.

    `system_prompt` replaces the question's own system prompt, and an empty one removes it.
    """
    if isinstance(question, str):
        question = [{"role": "user", "content": question}]
    messages = []
    if system_prompt:
        messages.append({"role": "system", "content": system_prompt})
    for message in question:
        if system_prompt is None or message["role"] != "system":
            messages.append(dict(message))
    return messages


def load_tokenizer(folder: Path | str, is_tried: bool = False) -> ChatTokenizer:
    """Load the tokenizer of a Hugging Face model folder.

    The chat template is tried in a child process, unless another process of the run has done that. Raises ModelError
    when the folder or its tokenizer is missing, unreadable, or has more tokens than the model.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelError(
            f"model folder {str(folder)!r} does not exist; set policy.model to a Hugging Face model folder"
        )
    settings = model_object(folder / "tokenizer_config.json")
    tokenizer = ChatTokenizer(
        _load_backend(folder), _chat_template(folder, settings), _special_tokens(folder, settings)
    )
    if tokenizer.chat_template is None:
        log.warning("%s has no chat template: prompts are plain text", folder)
    elif not is_tried:
        try_template(tokenizer.chat_template, tokenizer.special_tokens)
    _check_fits_model(tokenizer, folder)
    return tokenizer


def _load_backend(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.exists():
        return _convert_backend(folder)
    from tokenizers import Tokenizer

    settings = model_object(path)
    if "model" not in settings:
        raise ModelError(f"{path} is not a tokenizer: it has no 'model' entry")
    growth = _growth(settings.get("normalizer"))
    if growth > MAX_GROWTH:
        raise ModelError(
            f"{path}: its normalizer writes up to {growth:,.0f} characters for one, {MAX_GROWTH} are allowed"
        )
    try:
        backend = Tokenizer.from_file(str(path))
        backend.encode("1 + 1")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ModelError(f"{path} is not a tokenizer: {error}") from error
    return backend


def _growth(normalizer: Any) -> int:
    """Return how many characters a tokenizer's replacements may write for one. A library without memory aborts."""
    if not isinstance(normalizer, dict):
        return 1
    growth = max(len(str(normalizer.get("content", ""))), 1)
    parts = normalizer.get("normalizers")
    for part in parts if isinstance(parts, list) else ():
        growth *= _growth(part)
    return growth


def _convert_backend(folder: Path) -> tokenizers.Tokenizer:
    """Convert the tokenizer of a model that ships only SentencePiece or vocabulary files, which is slow."""
    names = sorted(path.name for path in folder.iterdir())
    if not _OLD_FILES.intersection(names):
        found = ", ".join(names[:10]) or "nothing"
        raise ModelError(
            f"model folder {str(folder)!r} has no tokenizer (tokenizer.json, tokenizer.model); it holds {found}"
        )
    from transformers import AutoTokenizer

    try:
        # Without this argument, transformers asks on the terminal whether code of the folder may run.
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False).backend_tokenizer
    except Exception as error:
        raise ModelError(f"the tokenizer in {str(folder)!r} cannot be read: {error}") from error


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Return a model's chat template, from its own file or from tokenizer_config.json, where it may be a list."""
    path = folder / "chat_template.jinja"
    template = settings.get("chat_template")
    if path.exists():
        try:
            template = record_text(path, MAX_TEMPLATE)
        except (OSError, ValueError) as error:
            raise as_model_error(path, error) from error
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise ModelError(f"the chat template in {str(folder)!r} is no text: {template!r:.80}")
    return template


def _special_tokens(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    merged = {**model_object(folder / "special_tokens_map.json"), **settings}
    special_tokens = {}
    for name in SPECIAL_TOKEN_NAMES:
        token = merged.get(name)
        if isinstance(token, dict):
            token = token.get("content")
        if token is None:
            continue
        if not isinstance(token, str):
            raise ModelError(
                f"the {name} in {str(folder)!r} is no text: {token!r:.80}; set it in tokenizer_config.json"
            )
        special_tokens[name] = token
    return special_tokens


def _check_fits_model(tokenizer: ChatTokenizer, folder: Path) -> None:
    model = model_object(folder / "config.json")
    text_config = model.get("text_config")
    part = text_config if isinstance(text_config, dict) else {}
    model_vocab = model.get("vocab_size", part.get("vocab_size"))
    if isinstance(model_vocab, int) and tokenizer.vocab_size > model_vocab:
        raise ModelError(
            f"the tokenizer in {str(folder)!r} does not fit its model: it has {tokenizer.vocab_size} tokens, the "
            f"model's vocab_size is {model_vocab}; use the tokenizer the model was trained with"
        )
