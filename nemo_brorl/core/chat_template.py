"""Render a model's chat template, a program that whoever made the model folder wrote.

Jinja's sandbox keeps a template from everything but its messages, and not from endless loops. So a template renders a
first conversation in a child process with limits of time and memory (`try_template`).
"""

from __future__ import annotations

import datetime
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from brorl_graders.base.foreign import read_json

from nemo_brorl.core.errors import ModelError

if TYPE_CHECKING:
    import jinja2

MAX_TEMPLATE = 1 << 20  # largest template, in bytes
MAX_INDENT = 16  # widest indentation that `tojson` writes
CPU_S = 5  # seconds of CPU for a first conversation
WALL_S = 60  # seconds on the clock, since a busy machine may be slow
MEMORY = 1 << 30  # bytes of address space
HELLO = ({"role": "user", "content": "Hello"},)


def compile_template(source: str, date: str | None = None) -> jinja2.Template:
    """Return a chat template as Hugging Face's chat templates are compiled.

    `date`: the day that it prints (YYYY-MM-DD), None for today. Raises ModelError.
    """
    import jinja2

    if len(source) > MAX_TEMPLATE:
        raise ModelError(f"the model's chat template has {len(source):,} characters, {MAX_TEMPLATE:,} are allowed")
    try:
        return _environment(_day(date)).from_string(_without_generation_tags(source))
    except jinja2.TemplateSyntaxError as error:
        raise ModelError(f"the model's chat template cannot be read: line {error.lineno}: {error.message}") from error
    except Exception as error:
        raise ModelError(f"the model's chat template cannot be read: {type(error).__name__}: {error}") from error


def names_read(source: str) -> set[str]:
    """Return the names of the arguments that a chat template reads."""
    from jinja2.meta import find_undeclared_variables

    return find_undeclared_variables(_environment(_day(None)).parse(_without_generation_tags(source)))


def render(
    template: jinja2.Template,
    messages: Sequence[Mapping[str, str]],
    special_tokens: Mapping[str, str],
    tools: Sequence[Mapping[str, Any]] = (),
    is_prompt: bool = True,
    arguments: Mapping[str, Any] | None = None,
) -> str:
    """Return a conversation as text; a prompt ends where the assistant's response starts.

    `arguments`: further names that the template reads, such as `enable_thinking`. Raises ModelError when the template
    refuses the conversation, fails, or writes what is no text.
    """
    import jinja2

    try:
        names = {**special_tokens, **(arguments or {})}
        text = template.render(
            {**names, "messages": messages, "tools": list(tools) or None, "add_generation_prompt": is_prompt}
        )
        text.encode()
        return text
    except jinja2.TemplateError as error:
        raise ModelError(f"the model's chat template refuses the prompt: {error}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ModelError(f"the model's chat template fails at the prompt: {reason}") from error


@lru_cache(maxsize=8)
def _tried(request: str) -> str:
    """Render a first conversation in a child process, and return why that failed, or an empty text."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "nemo_brorl.core.chat_template"],
            input=request,
            capture_output=True,
            text=True,
            errors="replace",
            env=variables,
            timeout=WALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the model's chat template has not ended after {WALL_S} s"
    if done.returncode < 0:
        return f"the model's chat template takes more than {CPU_S} s or {MEMORY >> 20} MiB for one short message"
    return done.stderr.strip()[-500:] if done.returncode else ""


def try_template(source: str, special_tokens: Mapping[str, str], arguments: Mapping[str, Any] | None = None) -> None:
    """Render a short conversation with a chat template, in a child process with 5 s of CPU and 1 GiB of memory.

    A template may refuse the conversation, since some need other messages. Raises ModelError when it does not end in
    time, needs more memory, or fails.
    """
    request = {"source": source, "special_tokens": dict(special_tokens), "arguments": dict(arguments or {})}
    reason = _tried(json.dumps(request))
    if reason:
        raise ModelError(f"{reason}. Set policy.model to another model, or mend its chat template.")


def _answer() -> None:
    """Render the conversation that standard input holds: the main function of the child process."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    request = read_json(sys.stdin.buffer.read(), most_bytes=8 * MAX_TEMPLATE)
    import jinja2

    try:
        template = compile_template(request["source"])
        render(template, HELLO, request["special_tokens"], arguments=request["arguments"])
    except ModelError as error:
        if not isinstance(error.__cause__, jinja2.TemplateError):
            sys.exit(str(error))


def _day(date: str | None) -> datetime.datetime:
    """Return the first moment of a day: of the time of day a template may print nothing that changes."""
    day = datetime.date.today() if date is None else datetime.date.fromisoformat(date)
    return datetime.datetime.combine(day, datetime.time())


def _environment(day: datetime.datetime) -> jinja2.Environment:
    """Return the Jinja environment that Hugging Face chat templates expect.

    It is sandboxed, trims blocks, and has `tojson`, `raise_exception`, and `strftime_now`, which prints `day`.
    """
    import jinja2
    import jinja2.sandbox

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    # Not `**options`: json.dumps calls a `cls` or `default`, which the sandbox would not see.
    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        if indent is not None and not (isinstance(indent, int) and indent <= MAX_INDENT):
            raise jinja2.TemplateError(f"tojson: indent={indent!r:.80} is no number up to {MAX_INDENT}")
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = day.strftime
    return environment


def _without_generation_tags(template: str) -> str:
    """Return a chat template whose `{% generation %}` blocks are always rendered.

    The tags mark the assistant's text for loss masks, which prompts do not need.
    """
    opened = re.sub(r"(\{%-?)\s*generation\s*(-?%\})", r"\1 if true \2", template)
    return re.sub(r"(\{%-?)\s*endgeneration\s*(-?%\})", r"\1 endif \2", opened)


if __name__ == "__main__":
    _answer()
