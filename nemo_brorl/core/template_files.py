"""Read a model's chat templates: one, or several with names, of which a setting chooses one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brorl_graders.base.foreign import RecordError, record_text

from nemo_brorl.core.chat_template import MAX_TEMPLATE
from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.model_folder import as_model_error, model_object

DEFAULT = "default"
NO_TEMPLATE = "none"
FOLDER = "additional_chat_templates"


@dataclass(frozen=True)
class TemplateSettings:
    """Which chat template of a model writes the prompts, and with which arguments."""

    name: str | None = None  # None: the model's default; NO_TEMPLATE: prompts are sent as they are
    arguments: Mapping[str, Any] = field(default_factory=dict)
    date: str | None = None  # day that the template prints, YYYY-MM-DD; None: today


BY_DEFAULT = TemplateSettings()
# For a tokenizer that writes no prompts.
DECODES = TemplateSettings(NO_TEMPLATE)


def templates_in(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates of a model folder by name.

    As in transformers, templates in files of their own replace those in tokenizer_config.json (`settings`).
    """
    paths = {path.stem: path for path in sorted((folder / FOLDER).glob("*.jinja"))}
    main = folder / "chat_template.jinja"
    if main.exists():
        paths.setdefault(DEFAULT, main)
    found: dict[str, Any] = {name: _text(path) for name, path in paths.items()}
    if not found:
        given = settings.get("chat_template")
        if isinstance(given, list):
            found = {str(item.get("name")): item.get("template") for item in given if isinstance(item, dict)}
        elif given is not None:
            found = {DEFAULT: given}
    for template in found.values():
        if not isinstance(template, str):
            raise ModelError(f"the chat template in {str(folder)!r} is no text: {template!r:.80}")
    return found


def prints_date(folder: Path) -> bool:
    """Return whether a chat template of the model in a folder uses today's date."""
    templates = templates_in(folder, model_object(folder / "tokenizer_config.json"))
    return any("strftime_now" in template for template in templates.values())


def choose_template(templates: Mapping[str, str], wanted: str | None, folder: Path) -> str | None:
    """Return the wanted chat template, or None for a model without templates. Raises ModelError."""
    if wanted == NO_TEMPLATE or (wanted is None and not templates):
        return None
    chosen = templates.get(wanted or DEFAULT)
    if chosen is not None:
        return chosen
    names = ", ".join(sorted(templates))
    if wanted is None:
        raise ModelError(
            f"the model in {str(folder)!r} has several chat templates and none is its default: set data.chat_template "
            f"to one of {names}"
        )
    raise ModelError(
        f"data.chat_template={wanted}: the model in {str(folder)!r} has no such chat template: set one of "
        f"{names or NO_TEMPLATE}, or null"
    )


def _text(path: Path) -> str:
    try:
        return record_text(path, MAX_TEMPLATE)
    except (OSError, RecordError) as error:
        raise as_model_error(path, error) from error
