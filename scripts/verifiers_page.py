"""Write docs/built_in_verifiers.md from the verifiers' modules: `python scripts/verifiers_page.py` (`make docs`)."""

from __future__ import annotations

from pathlib import Path

from brorl_graders.base.payload import Key
from brorl_graders.verifiers.registry import VERIFIERS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "built_in_verifiers.md"
HEAD = """# Built-in verifiers

Made from the modules in `graders/brorl_graders/verifiers/` by `make docs`; a test asserts that it is current.

A verifier scores a response by the prompt's payload, one JSON object. Columns of the data row fill the payload, and
`data.verifier_options` overrides the columns. Loading data checks payloads. The key `timeout_s` in any payload is the
verifier's deadline in seconds. The page [Verifiers](reference/verifiers.md) explains how to choose, combine and trust
verifiers, and [where the answer is read](reference/verifiers.md#where-the-answer-is-read).
"""


def page() -> str:
    """Return the text of docs/built_in_verifiers.md."""
    lines = [HEAD]
    for name, verifier in VERIFIERS.items():
        lines += [f"## {name}", "", verifier.description, "", "| key | values | meaning |", "|---|---|---|"]
        lines += [f"| `{key.name}` | {values(key)} | {key.meaning} |" for key in verifier.keys]
        lines.append("")
    return "\n".join(lines)


def values(key: Key) -> str:
    """Return the choices or the default of a key, or whether a payload must have the key."""
    if key.is_required:
        return "required"
    if key.choices:
        default, *others = [f"`{choice}`" for choice in key.choices]
        return ", ".join([f"{default} (default)", *others])
    return f"`{key.default}` (default)" if key.default else "optional"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
