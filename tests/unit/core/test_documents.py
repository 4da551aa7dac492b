"""README, CONTRIBUTING and docs/ name only what is there: files, scripts, modules, commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nemo_brorl.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
FOLDERS = ("nemo_brorl", "launcher", "bench", "scripts", "tests", "conf", "slurm", "requirements", "docs")
FILE_NAMES = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")}

A_FILE = re.compile(r"(?<![\w./*-])((?:[\w.]+/)*[\w]+\.(?:py|sh))\b")
A_TREE = re.compile(r"`((?:nemo_brorl|launcher|bench|tests|scripts|slurm|conf)/[\w./]*\w/?)`")
A_PAGE = re.compile(r"(?<![\w./-])docs/\w+\.md")
A_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
A_MODULE = re.compile(r"python -m ((?:bench|nemo_brorl)(?:\.\w+)+)")
A_COMMAND = re.compile(r"(?:`|^ *|&& )brorl ([a-z-]+)", re.MULTILINE)
OF_A_USER = ("my_", "conf/site/NAME", "unpack.py")  # examples, and what `bench.gpu.carry` packs


def is_there(path: str) -> bool:
    """A bare file name may lie anywhere; a path counts from the repository or from the package."""
    if "/" not in path:
        return path in FILE_NAMES
    return any((base / path).exists() for base in (ROOT, ROOT / "nemo_brorl"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_and_page_that_is_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    paths = [*A_FILE.findall(text), *A_TREE.findall(text)]
    named = {path for path in paths if not path.startswith(OF_A_USER)}
    if page.name == "modules.md":  # its rows are relative to their headings, and made from the tree itself
        named = set()
    missing = [path for path in sorted(named | set(A_PAGE.findall(text))) if not is_there(path)]
    missing += [link for link in A_LINK.findall(text) if not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_module_and_command_that_is_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    files = [module.replace(".", "/") for module in A_MODULE.findall(text)]
    missing = [path for path in files if not (ROOT / f"{path}.py").exists() and not (ROOT / path).is_dir()]
    missing += [name for name in A_COMMAND.findall(text) if name not in COMMANDS]
    assert missing == []
