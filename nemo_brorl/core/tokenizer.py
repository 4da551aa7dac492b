"""Load a model's tokenizer without transformers: `tokenizers` and `jinja2` load in 0.1 s, AutoTokenizer in 5 s.

Driver, verifier children and warm-up all use it. For a folder without `tokenizer.json` (an old SentencePiece model),
transformers converts the tokenizer. A model without a chat template gets plain text, see `ChatTokenizer.prompt_ids`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_brorl.core.added_tokens import add_tokens_beside, token_text
from nemo_brorl.core.chat_template import compile_template, render, try_template
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import ConfigError, ModelError
from nemo_brorl.core.model_folder import model_object
from nemo_brorl.core.template_files import BY_DEFAULT, NO_TEMPLATE, TemplateSettings, choose_template, templates_in
from nemo_brorl.core.tokenizer_file import load_backend

if TYPE_CHECKING:
    import jinja2
    import tokenizers

log = get_logger(__name__)

Messages = Sequence[Mapping[str, str]]  # messages with role and content
Tools = Sequence[Mapping[str, Any]]  # functions by name, each with a JSON schema of its parameters

EXAMPLE = tuple(
    {"role": role, "content": "text"} for role in ("system", "user", "assistant", "user")
)  # of it the turn marks of a template are read
MAX_ID = 1 << 31  # an id of a token is below it, because ids are stored in 32 bits
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
    template: TemplateSettings = BY_DEFAULT
    stop_ids: frozenset[int] = frozenset()  # tokens that end a turn, by tokenizer and generation_config.json
    templates: Sequence[str] = ()  # all templates of the model

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

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that depend on the tokens, their ids and the chat template."""
        vocabulary = sorted(self.backend.get_vocab(with_added_tokens=True).items())
        written = json.dumps([vocabulary, self.chat_template]).encode()
        return hashlib.blake2b(written, digest_size=8).hexdigest()

    def with_stops(self, texts: Sequence[str]) -> frozenset[int]:
        """Return the ids of all tokens that end a turn: the model's, and `rollouts.stop_tokens`.

        Raises ConfigError for a text that is no token.
        """
        further = {text: self.backend.token_to_id(text) for text in texts}
        unknown = [text for text, token_id in further.items() if token_id is None]
        if unknown:
            raise ConfigError(
                f"rollouts.stop_tokens={list(texts)}: {unknown[0]!r} is no token of this model. Set "
                f"rollouts.stop_strings=[{json.dumps(unknown[0])}] for a text of several tokens"
            )
        return self.stop_ids | frozenset(further.values())

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`, without added special tokens."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of a response, without the tokenizer's own marks (`marks`).

        Other special tokens stay: `<think>` or `<answer>` may be one, and verifiers read it.
        """
        kept = [token_id for token_id in token_ids if token_id not in self.marks]
        return self.backend.decode(kept, skip_special_tokens=False)

    @cached_property
    def marks(self) -> frozenset[int]:
        """Ids of the special tokens that are no text.

        They begin and end texts, fill them up, replace unknown text, or mark the turns of a chat template.
        """
        named = set(self.special_tokens.values())
        rendered = "".join(_without_empty_tags(self._example(template)) for template in self.templates)
        marks = set()
        for token_id, token in self.backend.get_added_tokens_decoder().items():
            if token.special and (token.content in named or token.content in rendered or token_id in self.stop_ids):
                marks.add(token_id)
        return frozenset(marks)

    @cached_property
    def opens_thought(self) -> bool:
        """Whether a prompt ends with an open `<think>`, so that responses begin inside it."""
        if self.chat_template is None:
            return False
        try:
            return self.render("text").rstrip().endswith("<think>")
        except ModelError:
            return False

    def _example(self, template: str) -> str:
        """Return a conversation of four turns, or of fewer, under a chat template; "" where it refuses all."""
        for messages in (EXAMPLE, EXAMPLE[1:], EXAMPLE[1:2]):
            try:
                return render(compile_template(template), messages, self.special_tokens, is_prompt=False)
            except ModelError:
                continue
        return ""

    def prompt_ids(
        self,
        question: str | Messages,
        system_prompt: str | None = None,
        tools: Tools = (),
    ) -> list[int]:
        """Return the token ids of a conversation that ends where the assistant's response starts.

        `question` is the user's text, or whole messages. A system prompt from the settings replaces one in the
        messages, and an empty one removes it. Without a chat template the text is the model's own beginning-of-text
        token, the messages with blank lines between them, and a line break. Under data.chat_template=none the text is
        sent as it is, with a beginning-of-text token unless it has one.
        """
        if self.chat_template is None:
            messages = conversation(question, system_prompt)
            text = "\n\n".join(message["content"] for message in messages)
            if self.template.name == NO_TEMPLATE:
                has_beginning = text.startswith(self.special_tokens.get("bos_token", "\0"))
                return self.backend.encode(text, add_special_tokens=not has_beginning).ids
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
            return render(self._template, messages, self.special_tokens, tools, is_prompt, self.template.arguments)
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
        return compile_template(self.chat_template, self.template.date)

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


def load_tokenizer(
    folder: Path | str, is_tried: bool = False, template: TemplateSettings = BY_DEFAULT
) -> ChatTokenizer:
    """Load the tokenizer of a Hugging Face model folder.

    The chat templates are tried in a child process, unless another process of the run has done that. Raises ModelError
    when the folder or its tokenizer is missing, unreadable, or has more tokens than the model.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelError(
            f"model folder {str(folder)!r} does not exist; set policy.model to a Hugging Face model folder"
        )
    settings = model_object(folder / "tokenizer_config.json")
    special_tokens = _special_tokens(folder, settings)
    backend = load_backend(folder)
    vocab_size = vocab_size_of(folder)
    add_tokens_beside(backend, folder, settings, vocab_size)
    templates = templates_in(folder, settings)
    tokenizer = ChatTokenizer(
        backend,
        choose_template(templates, template.name, folder),
        special_tokens,
        template,
        _stop_ids(backend, special_tokens, folder),
        tuple(templates.values()),
    )
    if not templates and template.name is None:
        log.warning("%s has no chat template: prompts are plain text", folder)
    for each in () if is_tried else templates.values():
        try_template(each, special_tokens, template.arguments)
    _check_fits_model(tokenizer, folder, vocab_size)
    return tokenizer


def stop_tokens_in(folder: Path) -> tuple[str, list[Any]]:
    """Return the stop tokens of a model folder's settings with the name of their file, as vLLM reads them."""
    name = "generation_config.json"
    if not (folder / name).exists():
        name = "config.json"
    configured = model_object(folder / name).get("eos_token_id")
    if configured is None:
        return name, []
    return name, configured if isinstance(configured, list) else [configured]


def _stop_ids(backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str], folder: Path) -> frozenset[int]:
    ids = [*stop_tokens_in(folder)[1], backend.token_to_id(special_tokens.get("eos_token", ""))]
    return frozenset(token_id for token_id in ids if type(token_id) is int and 0 <= token_id < MAX_ID)


def _special_tokens(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    merged = {**model_object(folder / "special_tokens_map.json"), **settings}
    special_tokens = {}
    for name in SPECIAL_TOKEN_NAMES:
        token = merged.get(name)
        if token is None:
            continue
        text = token_text(token)
        if text is None:
            raise ModelError(
                f"the {name} in {str(folder)!r} is no text: {token!r:.80}; set it in tokenizer_config.json"
            )
        special_tokens[name] = text
    return special_tokens


def vocab_size_of(folder: Path) -> int | None:
    """Return the vocabulary of the model in a folder, None where its config.json does not say."""
    model = model_object(folder / "config.json")
    text_config = model.get("text_config")
    part = text_config if isinstance(text_config, dict) else {}
    size = model.get("vocab_size", part.get("vocab_size"))
    return size if isinstance(size, int) else None


def _check_fits_model(tokenizer: ChatTokenizer, folder: Path, vocab_size: int | None) -> None:
    if vocab_size is not None and tokenizer.vocab_size > vocab_size:
        raise ModelError(
            f"the tokenizer in {str(folder)!r} does not fit its model: it has {tokenizer.vocab_size} tokens, the "
            f"model's vocab_size is {vocab_size}; use the tokenizer the model was trained with"
        )


def _without_empty_tags(text: str) -> str:
    """Return a text without pairs of tags that hold nothing: a template may write `<think></think>` before answers."""
    return re.sub(r"<(\w+)>\s*</\1>", "", text)
