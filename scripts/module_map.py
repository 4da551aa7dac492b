"""Write docs/modules.md from the modules' docstrings: `python scripts/module_map.py` (`make docs`).

Folders have the first paragraph of their docstring, modules the first sentence. A test asserts that the page is
current.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "modules.md"
FOLDERS = (
    "core",
    "config",
    "algorithm",
    "cluster",
    "scoring",
    "prompts",
    "weights",
    "generation",
    "policy",
    "rollouts",
    "evaluation",
    "training",
    "commands",
)
HEAD = """# Module map

Made from the modules' docstrings by `make docs`; a test asserts that it is current. The way of a rollout through these
modules is in `docs/explanation/architecture.md`. Folders stand in the order of imports: a module imports from its own
folder and from folders above it.
"""


def page() -> str:
    """Return the text of docs/modules.md."""
    package = ROOT / "nemo_brorl"
    lines = [HEAD, "## nemo_brorl/", ""]
    lines += [_row(package / name, package) for name in ("types.py", "ports.py", "__main__.py")]
    for folder in FOLDERS:
        lines += ["", *_section(package / folder)]
    return "\n".join(lines) + "\n"


def _section(folder: Path) -> list[str]:
    """Return the heading and table of a folder, with its sub-folders in the same table."""
    lines = [f"## {folder.name}/", "", first_paragraph(folder / "__init__.py"), ""]
    modules = sorted(folder.rglob("*.py"), key=lambda path: (path.parent != folder, path))
    for path in modules:
        if path.name != "__init__.py":
            lines.append(_row(path, folder))
        elif path.parent != folder:
            lines.append(f"- **{path.parent.relative_to(folder)}/** {first_sentence(path)}")
    return lines


def _row(path: Path, folder: Path) -> str:
    return f"- `{path.relative_to(folder)}` {first_sentence(path)}"


def first_paragraph(path: Path) -> str:
    """Return the first paragraph of a module's docstring, joined into one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def first_sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring, on one line.

    Text after a colon or semicolon is left out, and so are the arguments of a command.
    """
    sentence = re.split(r"\. |; |: ", first_paragraph(path))[0]
    sentence = re.sub(r"(`brorl [a-z-]+) [^`]*`", r"\1`", sentence)
    return sentence.removesuffix(".")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
