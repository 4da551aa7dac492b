"""Encode prompts with transformers, which engines use, in a child process: the import takes seconds.

The result is compared with our own token ids.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from brorl_graders.base.foreign import read_json

from nemo_brorl.core.console import get_logger
from nemo_brorl.core.tokenizer import ChatTokenizer
from nemo_brorl.types import Prompt

WALL_S = 60  # seconds; a busy machine may be slow
MAX_REPLY = 1 << 26  # bytes
IS_READ = "the tokenizer is read"  # a line of the child process
NUM_AROUND = 3  # tokens shown around the first difference

log = get_logger(__name__)


def differences(tokenizer: ChatTokenizer, folder: Path, prompts: Sequence[Prompt]) -> list[str]:
    """Return a sentence if transformers cannot read the tokenizer, or for each prompt that it encodes to other tokens.

    Prompts with tools are left out. Without transformers there are no differences.
    """
    if importlib.util.find_spec("transformers") is None:
        return []
    asked: list[Prompt] = []
    # A model without a template has a format of our own, which transformers does not know.
    if tokenizer.chat_template is not None:
        asked = [prompt for prompt in prompts if tokenizer.prompt_ids(prompt.messages) == list(prompt.token_ids)]
    request = {
        "folder": str(folder),
        "template": tokenizer.chat_template,
        "arguments": dict(tokenizer.template.arguments),
        "date": tokenizer.template.date,
        "conversations": [list(map(dict, prompt.messages)) for prompt in asked],
    }
    encoded = _encoded(request)
    if isinstance(encoded, str):
        return [f"transformers, and so an engine, cannot read the tokenizer in {folder}: {encoded}"]
    found = []
    for prompt, other in zip(asked, encoded, strict=False):
        ours = list(prompt.token_ids)
        if ours != other:
            pairs = zip(ours, other, strict=False)
            place = next((at for at, (one, two) in enumerate(pairs) if one != two), min(len(ours), len(other)))
            part = slice(max(0, place - NUM_AROUND), place + NUM_AROUND)
            found.append(
                f"{prompt.uid}: transformers, and so another engine, reads other tokens from token {place} on: "
                f"{_pieces(tokenizer, other[part])}, here {_pieces(tokenizer, ours[part])}. Save the tokenizer again"
            )
    return found


def _pieces(tokenizer: ChatTokenizer, token_ids: Sequence[int]) -> list[str | None]:
    return [tokenizer.backend.id_to_token(token_id) for token_id in token_ids]


def _encoded(request: Mapping[str, Any]) -> list[list[int]] | str:
    """Return the token ids of conversations from a child process, or why transformers cannot read the tokenizer."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "nemo_brorl.prompts.other_encoding"]
    try:
        done = subprocess.run(
            command, input=json.dumps(request).encode(), capture_output=True, env=variables, timeout=WALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        log.warning("prompts were not compared with those of transformers, which took more than %s s", WALL_S)
        return []
    if done.returncode:
        reason = "".join(done.stderr.decode(errors="replace").strip().splitlines()[-1:])[:300]
        if IS_READ.encode() not in done.stdout:
            return reason
        log.warning("prompts were not compared with those of transformers: %s", reason)
        return []
    encoded: list[list[int]] = read_json(done.stdout.rpartition(b"\n")[2], most_bytes=MAX_REPLY)
    return encoded


def _answer() -> None:
    """Encode the conversations that standard input holds: the main function of the child process."""
    request = read_json(sys.stdin.buffer.read(), most_bytes=MAX_REPLY)
    find_spec = importlib.util.find_spec
    # Tokenizers need no torch, whose import takes four seconds.
    importlib.util.find_spec = lambda name, package=None: None if name == "torch" else find_spec(name, package)
    from transformers import AutoTokenizer
    from transformers.utils import chat_template_utils

    day = datetime.date.today() if request["date"] is None else datetime.date.fromisoformat(request["date"])

    class FixedDay(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> FixedDay:
            return cls.combine(day, datetime.time())

    chat_template_utils.datetime = FixedDay
    tokenizer = AutoTokenizer.from_pretrained(request["folder"], trust_remote_code=False)
    sys.stdout.write(f"{IS_READ}\n")
    sys.stdout.flush()
    encoded = []
    for messages in request["conversations"]:
        ids = tokenizer.apply_chat_template(
            messages,
            chat_template=request["template"],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **request["arguments"],
        )
        encoded.append(list(ids))
    sys.stdout.write("\n" + json.dumps(encoded))


if __name__ == "__main__":
    _answer()
