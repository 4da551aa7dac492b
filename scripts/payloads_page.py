"""Write docs/payloads.md from the verifiers' modules: `python scripts/payloads_page.py` (`make docs`)."""

from __future__ import annotations

from pathlib import Path

from brorl_graders.base.payload import Key
from brorl_graders.verifiers.registry import VERIFIERS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "payloads.md"
HEAD = """# Payloads of verifiers

Made from the modules in `graders/brorl_graders/verifiers/` by `make docs`; a test asserts that it is current.

A prompt's payload is one JSON object, which the prompt's [verifier](reference/verifiers.md) reads. Columns of the data
row fill the payload, and `data.verifier_options` overrides the columns. Loading data checks the payloads of built-in
verifiers. `timeout_s` in a payload is [the verifier's deadline](reference/verifiers.md#where-verifiers-run) in seconds.
"""


def page() -> str:
    """Return the text of docs/payloads.md."""
    lines = [HEAD]
    for name, verifier in VERIFIERS.items():
        lines += [f"## {name}", "", verifier.summary, "", "| key | values | meaning |", "|---|---|---|"]
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
