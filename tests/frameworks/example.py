"""The examples of graders/README.md, which the programs of this folder run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

README = Path(__file__).parents[2] / "graders" / "README.md"


def run_example(framework: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the README's example of a framework with these names, and return the names after it."""
    text = README.read_text(encoding="utf-8")
    [section] = re.findall(rf"(?s)### {framework}\n\n```python\n(.*?)```", text)
    exec(compile(section, f"{README}: {framework}", "exec"), names)
    return names
