"""Files of conversations: their rows as examples, with the held-out ones, and rows that cannot be used."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nemo_brorl.config.data import DataConfig
from nemo_brorl.config.sft import SftConfig
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import BroRLError, DataError
from nemo_brorl.prompts.columns import ABSENT, column_of, value_at
from nemo_brorl.prompts.file_tables import Tables, open_tables
from nemo_brorl.prompts.find_files import find_files
from nemo_brorl.prompts.order import permuted
from nemo_brorl.prompts.question_keys import low_hash, normal_form
from nemo_brorl.prompts.questions import BadRow, Row, hash_of, is_held_out
from nemo_brorl.prompts.row_questions import is_wanted
from nemo_brorl.training.supervised.conversations import Conversations
from nemo_brorl.training.supervised.examples import Example

log = get_logger(__name__)

COLUMNS = ("messages", "prompt", "response", "task")
ROLES = ("system", "user", "assistant", "tool")
NUM_SHOWN = 5  # rows that a message names

Pair = tuple[str, list[Example]]  # (text before the first answer, examples of the conversation)


@dataclass(frozen=True)
class ExampleFile:
    """The examples of files, tokenised and held in memory: five bytes per token."""

    train: tuple[Example, ...]
    held_out: tuple[Example, ...]
    num_conversations: int  # conversations in `train` and `held_out`
    num_left_out: int  # rows that cannot be used or are too long
    num_cut: int

    def batch(self, step: int, size: int, seed: int) -> list[Example]:
        """Return training examples [step · size, (step + 1) · size) of the endless sequence of shuffled epochs."""
        num = len(self.train)
        chosen = []
        first = step * size
        for index in range(first, first + size):
            epoch, position = divmod(index, num)
            key = hash_of(f"{seed}/{epoch}")
            place = permuted(position, num, key)
            chosen.append(self.train[place])
        return chosen

    @property
    def fingerprint(self) -> str:
        """Hash of all tokens of the fine-tuning data, to notice that the data changed."""
        digest = hashlib.blake2b(digest_size=8)
        for example in (*self.train, *self.held_out):
            digest.update(example.prompt_ids.tobytes())
            digest.update(example.response_ids.tobytes())
        return digest.hexdigest()


def read_examples(
    data: DataConfig,
    sft: SftConfig,
    conversations: Conversations,
) -> ExampleFile:
    """Read the conversations of `data.path` for supervised fine-tuning.

    Those that are too long are cut or left out (`sft.too_long`). A fraction of the conversations is held out, by a hash
    of the text before the first answer, or `data.held_out_path` is read. Raises DataError when a file is missing or
    empty, or too many rows cannot be used.
    """
    assert data.path is not None, "checked with the settings"
    reader = _ConversationReader(data, sft, conversations)
    pairs = reader.read(data.path)
    train: list[Pair] = []
    held_out: list[Pair] = []
    held_out_pairs: list[Pair] = []  # conversations of `data.held_out_path`
    if data.held_out_path is not None:
        held_out_pairs = reader.read(data.held_out_path)
    held_out_forms = {normal_form(question) for question, _ in held_out_pairs}
    fraction = 0.0 if held_out_pairs else data.held_out_fraction
    deciding: dict[str, str] = {}  # one text of each normal form, whose hash decides the side of all
    for question, _ in pairs:
        form = normal_form(question)
        deciding[form] = min(question, deciding.get(form, question), key=low_hash)
    for pair in pairs:
        form = normal_form(pair[0])
        # Questions of the held-out file are not trained on, even if they are in this file, too.
        if form in held_out_forms:
            continue
        if is_held_out(deciding[form], fraction):
            held_out.append(pair)
        else:
            train.append(pair)
    held_out += held_out_pairs
    if not train:
        raise DataError(
            f"{data.path} leaves nothing to train on: all of its {len(pairs)} conversations are held out. Add more, "
            "or lower data.held_out_fraction."
        )
    return ExampleFile(
        train=_flat(train),
        held_out=_flat(held_out),
        num_conversations=len(train) + len(held_out),
        num_left_out=reader.num_left_out,
        num_cut=reader.num_cut,
    )


def _flat(pairs: Sequence[Pair]) -> tuple[Example, ...]:
    flat: list[Example] = []
    for _, examples in pairs:
        flat += examples
    return tuple(flat)


class _ConversationReader:
    """Reader of conversation files, which counts the rows that could not be used."""

    def __init__(
        self,
        data: DataConfig,
        sft: SftConfig,
        conversations: Conversations,
    ) -> None:
        self.data = data
        self.sft = sft
        self.conversations = conversations
        self.num_left_out = 0
        self.num_cut = 0

    def read(self, path: str) -> list[Pair]:
        """Return the conversations in the data file or files of a path.

        Raises DataError for more bad rows than `data.max_bad_rows`, and for conversations that are too long under
        sft.too_long=refuse.
        """
        files = find_files(self.data.source, path, self.data.dataset_split)
        layout = self.data.columns
        paths = [layout.prompt, layout.answer, layout.task, *self.data.only, *COLUMNS]
        columns = {column_of(path) for path in paths if path}
        tables = open_tables(files, sorted(columns))
        pairs: list[Pair] = []
        bad: list[str] = []
        too_long: list[str] = []
        for number, row in tables.scan():
            if not isinstance(row, BadRow) and not is_wanted(row, self.data.only):
                continue
            try:
                pair = self._pair(row)
            except BroRLError as error:
                bad.append(f"{tables.locate_row(number)}: {error}")
                if len(bad) >= self.data.max_bad_rows + NUM_SHOWN:
                    break
                continue
            # A conversation is too long if one of its examples is, because they are packed separately.
            longest = max(example.num_tokens for example in pair[1])
            if longest <= self.sft.max_tokens:
                pairs.append(pair)
                continue
            too_long.append(f"{tables.locate_row(number)}: {longest:,} tokens")
            pairs += self._shortened(pair)
        self._judge(path, bad, too_long, tables)
        if not pairs:
            raise DataError(f"{path} is empty: none of its {len(tables)} rows can be trained on")
        return pairs

    def _pair(self, row: Row) -> Pair:
        """Convert a row of a data file to the text before the first answer and the row's training examples.

        Raises BroRLError, which says what is wrong with the row.
        """
        if isinstance(row, BadRow):
            raise DataError(row.reason)
        columns = self.data.columns
        messages = messages_of(row, columns.prompt, columns.answer)
        task = value_at(row, columns.task or "task")
        if not isinstance(task, str):
            task = "sft"
        examples = self.conversations.examples(messages, task)
        contents = []
        for message in messages:
            if message["role"] == "assistant":
                break
            contents.append(message["content"])
        return "\n\n".join(contents), examples

    def _shortened(self, pair: Pair) -> Iterator[Pair]:
        """Yield the start of a conversation that is too long, or nothing if the start has no token to train on.

        Nothing is yielded either unless `sft.too_long` is `cut`.
        """
        kept: list[Example] = []
        if self.sft.too_long == "cut":
            for example in pair[1]:
                shorter = shortened(example, self.sft.max_tokens)
                if shorter is not None:
                    kept.append(shorter)
        if kept:
            self.num_cut += 1
            yield pair[0], kept
        else:
            self.num_left_out += 1

    def _judge(
        self,
        path: str,
        bad: Sequence[str],
        too_long: Sequence[str],
        tables: Tables,
    ) -> None:
        allowed = self.data.max_bad_rows
        if len(bad) > allowed:
            raise DataError(
                f"{path} has rows that cannot be used, more than data.max_bad_rows={allowed}: {_first(bad)}"
            )
        if bad:
            log.warning("%s: %d rows were left out: %s", path, len(bad), _first(bad))
        self.num_left_out += len(bad)
        if too_long and self.sft.too_long == "refuse":
            raise DataError(
                f"{path}: {len(too_long):,} of {len(tables):,} conversations are longer than sft.max_tokens="
                f"{self.sft.max_tokens} ({_first(too_long)}). Raise it, or set sft.too_long=cut (their end is left "
                "out) or drop."
            )


def shortened(example: Example, max_tokens: int) -> Example | None:
    """Return the first tokens of a training example, or None if the loss counts none of them."""
    room = max_tokens - len(example.prompt_ids)
    if room <= 0:
        return None
    has_loss = None if example.has_loss is None else example.has_loss[:room]
    return replace(example, response_ids=example.response_ids[:room], has_loss=has_loss)


def messages_of(
    row: Mapping[str, Any],
    prompt_path: str | None,
    answer_path: str | None,
) -> list[dict[str, str]]:
    """Return the conversation in a row of a data file: `messages`, or `prompt` (a text or messages) and `response`.

    `prompt_path` and `answer_path` name other columns to read. Raises DataError.
    """
    path = prompt_path or "messages"
    conversation = value_at(row, path)
    if prompt_path is None and conversation in (ABSENT, None):
        path = "prompt"
        conversation = value_at(row, path)
    if isinstance(conversation, str):
        conversation = [{"role": "user", "content": conversation}]
    if not isinstance(conversation, list) or not conversation:
        raise DataError(
            f"'{path}' is {_shown(conversation)}: write messages (a list of role and content), or prompt and response"
        )
    if answer_path or path != "messages":
        answer_path = answer_path or "response"
        content = value_at(row, answer_path)
        answer = {"role": "assistant", "content": content}
        conversation = [*conversation, answer]
    messages = [_message(message, answer_path or path) for message in conversation]
    roles = [message["role"] for message in messages]
    if "assistant" not in roles:
        raise DataError("no turn is the assistant's: there is nothing to train on")
    if roles[0] == "assistant" or roles[:2] == ["system", "assistant"]:
        raise DataError("the conversation begins with the assistant. Add the message that it answers.")
    # The loss counts no token after the last turn of the assistant.
    last = len(roles) - roles[::-1].index("assistant")
    return messages[:last]


def _message(message: Any, path: str) -> dict[str, str]:
    role = message.get("role") if isinstance(message, Mapping) else None
    if role not in ROLES:
        shown = _shown(message if role is None else role)
        raise DataError(f"the role {shown} is not known: write {', '.join(ROLES)}")
    content = message.get("content")
    if not _is_text(content) or (role == "assistant" and not content.strip()):
        raise DataError(f"'{path}' has {_shown(content)} as a text of the {role}: write a text that is not empty")
    return {"role": role, "content": content}


def _is_text(value: Any) -> bool:
    """Return True for a string without half of a surrogate pair, which no tokenizer takes."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _first(reasons: Sequence[str]) -> str:
    more = "; …" if len(reasons) > NUM_SHOWN else ""
    return "; ".join(reasons[:NUM_SHOWN]) + more


def _shown(value: Any) -> str:
    if value is ABSENT:
        return "missing"
    return f"{value!r:.80}"
