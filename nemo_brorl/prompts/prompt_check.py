"""Check that the model gets whole prompts, as it was taught to read them, before anything expensive starts.

A chat template may lose the question, leave the assistant's turn closed, or end turns with a token that stops nothing.
Each such run would go on in silence.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_brorl.config.data import TEMPLATE_NAMES, DataConfig
from nemo_brorl.config.rollouts import RolloutsConfig
from nemo_brorl.core.chat_template import names_read
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import ConfigError, ModelError
from nemo_brorl.core.template_files import NO_TEMPLATE
from nemo_brorl.core.tokenizer import ChatTokenizer, stop_tokens_in, vocab_size_of
from nemo_brorl.prompts.other_encoding import differences
from nemo_brorl.types import Prompt

MARK = "brorl7a1c"  # placeholder for a text; no template contains it
NUM_PROMPTS = 20
NUM_SHOWN = 3
MAX_SHOWN = 300  # characters
# Beginnings of conversations under the templates of common models, which this model may not have.
OPENINGS = re.compile(
    r"<\|(im_start|begin_of_text|start_header_id|user|system|start)\|>|<s>|\[INST\]|<start_of_turn>|<｜"
)

# Ends of prompts in which the answer's turn is open already, also those of templates that consist of words alone.
ENDINGS = re.compile(
    r"(\[/INST\]|<start_of_turn>model|<\|(assistant|end_header_id)\|>|<｜Assistant｜>|#+ ?(Response|Answer|Assistant):"
    r"|\b(Assistant|ASSISTANT):)\s*(<think>)?\s*$"
)
MIN_SHARE = 0.75  # smallest share of a model's vocabulary that its own tokenizer has
SMALL_VOCABULARY = 4096  # a smaller one is that of a toy, and may have any room

log = get_logger(__name__)


def check_prompts(
    tokenizer: ChatTokenizer, folder: Path, prompts: Sequence[Prompt], data: DataConfig, rollouts: RolloutsConfig
) -> None:
    """Check the model's end tokens, its chat template, and the first 20 of some prompts.

    Raises ModelError for end tokens that are none, and ConfigError with the first three faults of the prompts, or logs
    them under data.prompt_check=warn.
    """
    check_stop_tokens(tokenizer, folder)
    tokenizer.with_stops(rollouts.stop_tokens)
    for text in (*unread_arguments(tokenizer), *_small_vocabulary(tokenizer, folder)):
        log.warning("%s", text)
    prompts = prompts[:NUM_PROMPTS]
    faults = [*template_faults(tokenizer, rollouts), *_faults_of(tokenizer, prompts)]
    faults = faults or differences(tokenizer, folder, prompts)
    if not faults:
        return
    shown = "\n".join(f"  - {fault}" for fault in faults[:NUM_SHOWN])
    more = f"\n  and {len(faults) - NUM_SHOWN} more" if len(faults) > NUM_SHOWN else ""
    text = f"the first {len(prompts)} prompts are not what the model was taught to read:\n{shown}{more}"
    if data.prompt_check == "warn":
        log.warning("%s", text)
        return
    raise ConfigError(f"{text}\nMend this, or set data.prompt_check=warn to go on")


def check_stop_tokens(tokenizer: ChatTokenizer, folder: Path) -> None:
    """Raise ModelError unless the tokenizer's end token and those of the model's settings are tokens of the model."""
    end = tokenizer.special_tokens.get("eos_token")
    if end is None or tokenizer.backend.token_to_id(end) is None:
        known = [f"{token} (id {number})" for number, token in sorted(_special(tokenizer).items())]
        is_none = f"{folder} names no eos_token" if end is None else f"eos_token {end!r} is no token of this tokenizer"
        raise ModelError(
            f"{is_none}, so that no response would end. Set eos_token in its tokenizer_config.json; the tokenizer has "
            f"{', '.join(known[:8]) or 'no special token'}"
        )
    name, configured = stop_tokens_in(folder)
    size = vocab_size_of(folder) or tokenizer.vocab_size
    for token_id in configured:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < size:
            raise ModelError(
                f"eos_token_id {token_id} of {name} in {folder} is beyond the vocabulary of {size}: set it to "
                f"{tokenizer.eos_token_id}, the tokenizer's {end}"
            )


def unread_arguments(tokenizer: ChatTokenizer) -> Iterator[str]:
    """Yield each of `data.template_arguments` that the chat template does not read."""
    read = names_read(tokenizer.chat_template) if tokenizer.chat_template and tokenizer.template.arguments else set()
    own = sorted(read - {*TEMPLATE_NAMES, *tokenizer.special_tokens, "raise_exception", "strftime_now"})
    for name in tokenizer.template.arguments:
        if name not in read:
            yield (
                f"data.template_arguments.{name} is not read by the model's chat template, which takes "
                f"{', '.join(own) or 'no arguments'}"
            )


def _small_vocabulary(tokenizer: ChatTokenizer, folder: Path) -> Iterator[str]:
    size = vocab_size_of(folder)
    if size is not None and size >= SMALL_VOCABULARY and tokenizer.vocab_size < MIN_SHARE * size:
        yield (
            f"the tokenizer in {folder} has {tokenizer.vocab_size:,} tokens, and the model knows {size:,}: it may be "
            "the tokenizer of another model"
        )


def template_faults(tokenizer: ChatTokenizer, rollouts: RolloutsConfig) -> Iterator[str]:
    """Yield what is wrong with a model's chat template in a short conversation."""
    if tokenizer.chat_template is None:
        return
    question = [{"role": "user", "content": MARK}]
    prompt, closed = tokenizer.render(question), tokenizer.render(question, is_prompt=False)
    if prompt.count(MARK) != 1:
        yield f"the chat template writes a question {prompt.count(MARK)} times: {_shown(prompt)}"
        return
    answer = MARK[::-1]
    try:
        answered = tokenizer.render([*question, {"role": "assistant", "content": answer}], is_prompt=False)
    except ModelError:
        # Some templates take no answer, as those that know one turn.
        if prompt == closed:
            yield f"the chat template opens no turn of the assistant: {_shown(prompt)}"
        return
    before, found, after = answered.rpartition(answer)
    if not found:
        yield f"the chat template leaves out what the assistant says: {_shown(answered)}"
        return
    if not _is_open(prompt, closed, before):
        yield (
            f"the chat template opens no turn of the assistant (add_generation_prompt): {_shown(prompt)}; an answer "
            f"follows {_shown(before)}"
        )
    yield from _end_faults(tokenizer, after.strip(), rollouts)


def _is_open(prompt: str, closed: str, before: str) -> bool:
    """Return whether a prompt ends where an answer starts, which comes after the text `before`.

    `closed`: the prompt without add_generation_prompt. Templates may add an empty thought to answers or to prompts.
    """
    if before.rstrip() == prompt.rstrip():
        return True
    if prompt == closed:
        return False
    if not (prompt.startswith(closed) and before.startswith(closed)):
        return True
    opening, own = prompt.removeprefix(closed).strip(), before.removeprefix(closed).strip()
    return opening.startswith(own) or own.startswith(opening)


def _end_faults(tokenizer: ChatTokenizer, end: str, rollouts: RolloutsConfig) -> Iterator[str]:
    """Yield what is wrong with the text that a chat template writes after an answer."""
    if not end or any(stop in end for stop in rollouts.stop_strings):
        return
    ids = tokenizer.encode(end)
    stops = tokenizer.with_stops(rollouts.stop_tokens)
    if stops.intersection(ids):
        return
    named = ", ".join(f"{tokenizer.backend.id_to_token(number)} (id {number})" for number in sorted(stops))
    first = tokenizer.backend.decode(ids[:1], skip_special_tokens=False)
    if ids[0] in _special(tokenizer) or len(ids) == 1:
        yield (
            f"a turn ends with {first!r} (id {ids[0]}), which is no stop token ({named}): responses would run to their "
            f"limit. Set 'rollouts.stop_tokens=[\"{first}\"]', or eos_token_id in generation_config.json"
        )
    else:
        line = end.splitlines()[0]
        yield (
            f"a turn ends with {line!r}, which is no token of this tokenizer: nothing would stop there. Set "
            f"'rollouts.stop_strings=[\"{line}\"]', or choose a tokenizer with this token"
        )


def _faults_of(tokenizer: ChatTokenizer, prompts: Sequence[Prompt]) -> Iterator[str]:
    """Yield what is wrong with the texts of prompts under the chat template."""
    marks = tuple(tokenizer.backend.id_to_token(number) or "" for number in tokenizer.marks)
    for prompt in prompts:
        asked = [message for message in prompt.messages if message["role"] != "assistant"]
        for message in asked if tokenizer.template.name != NO_TEMPLATE else ():
            text = message["content"].strip()
            has_marks = text.startswith(marks) or text.endswith(marks)
            is_templated = has_marks or OPENINGS.match(text) or ENDINGS.search(text)
            if is_templated:
                yield (
                    f"{prompt.uid} holds a chat template already: {_shown(text)}. Set data.chat_template=none "
                    'data.answer_instruction="" to send such texts as they are, or give the questions alone'
                )
                break
            # One mark may be what a question is about.
            if sum(map(text.count, filter(None, marks))) > 1:
                yield (
                    f"{prompt.uid}: the {message['role']}'s text holds turns of its own: {_shown(text)}. Leave their "
                    "marks out"
                )
                break
        yield from _lost_characters(tokenizer, prompt)
        if tokenizer.chat_template is None:
            continue
        rendered = tokenizer.render(prompt.messages)
        for message in prompt.messages:
            if message["role"] in ("system", "user") and message["content"].strip() not in rendered:
                yield (
                    f"{prompt.uid}: the chat template does not write the whole text of the {message['role']}: "
                    f"{_shown(rendered)} for {_shown(message['content'])}"
                )
        if tokenizer.render(prompt.messages) != rendered:
            yield f"{prompt.uid}: the chat template writes one conversation in two ways: {_shown(rendered)}"


def _lost_characters(tokenizer: ChatTokenizer, prompt: Prompt) -> Iterator[str]:
    """Yield a sentence if letters, digits or signs of a prompt have no token, or only the one of unknown text."""
    named = (tokenizer.special_tokens.get("unk_token"), getattr(tokenizer.backend.model, "unk_token", None))
    unknown = {tokenizer.backend.token_to_id(token) for token in named if token is not None}
    for message in prompt.messages:
        text = message["content"]
        encoding = tokenizer.backend.encode(text, add_special_tokens=False)
        kept: set[int] = set()
        for token_id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id not in unknown:
                kept.update(range(start, stop))
        lost = [
            char for place, char in enumerate(text) if place not in kept and unicodedata.category(char)[0] in "LNPS"
        ]
        if lost:
            signs = "".join(dict.fromkeys(lost))
            yield (
                f"{prompt.uid}: the tokenizer has no tokens for {_shown(signs)} in {_shown(text)}, and the model would "
                "not see them"
            )
            break


def _special(tokenizer: ChatTokenizer) -> Mapping[int, Any]:
    added = tokenizer.backend.get_added_tokens_decoder()
    return {number: token.content for number, token in added.items() if token.special}


def _shown(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN // 2]} … {text[-MAX_SHOWN // 2 :]}")
