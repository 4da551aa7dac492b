"""Write the planner's output for the shipped recipes into docs/planner.md, between the markers there; a test compares
the two.

python scripts/planner_page.py
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

from nemo_brorl.launcher.planner.command import main as plan

PAGE = Path(__file__).resolve().parents[1] / "docs" / "planner.md"
RECIPES = ("brorl_64gpu", "brorl_7b", "brorl_32b", "brorl_qwen3_30b_a3b")


def output(name: str, num_proposals: int = 3) -> str:
    """What `brorl plan --config-name NAME` prints, without spaces at the ends of lines."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        plan(["--config-name", name, "--propose", str(num_proposals)])
    return "\n".join(line.rstrip() for line in printed.getvalue().splitlines()).rstrip()


def main() -> None:
    """Replace what is between `<!-- NAME -->` and the end of the code block behind it."""
    text = PAGE.read_text(encoding="utf-8")
    for name in RECIPES:
        block = f"<!-- {name} -->\n```\n{output(name)}\n```"
        text = re.sub(rf"<!-- {name} -->\n```\n.*?\n```", lambda _, block=block: block, text, flags=re.DOTALL)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
