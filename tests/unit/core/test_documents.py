"""Pages at the top and in docs/ name only what is there: files, scripts, modules, commands, settings, metrics."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest
from brorl_lab.metric_registry import GROUPS, undeclared_names

from nemo_brorl.__main__ import COMMANDS
from nemo_brorl.config.schema import groups, settings

ROOT = Path(__file__).resolve().parents[3]
WITH_A_PAGE = ("lab/studies/cluster_model", "bench/gpu", "launcher/brorl_launcher/planner", "tests/attacks")
BESIDE_CODE = [ROOT / folder / "README.md" for folder in WITH_A_PAGE]
AT_THE_TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "AGENTS.md")]
PAGES = sorted([*AT_THE_TOP, *BESIDE_CODE, *(ROOT / "docs").rglob("*.md")])
FOLDERS = (
    "nemo_brorl",
    "launcher",
    "lab",
    "graders",
    "bench",
    "scripts",
    "tests",
    "conf",
    "slurm",
    "requirements",
    "docs",
)
FILE_NAMES = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")}

A_FILE = re.compile(r"(?<![\w./*-])((?:[\w.]+/)*[\w]+\.(?:py|sh))\b")
A_TREE = re.compile(r"`((?:nemo_brorl|launcher|lab|graders|bench|tests|scripts|slurm|conf)/[\w./]*\w/?)`")
A_PAGE = re.compile(r"(?<![\w./-])docs/(?:\w+/)*\w+\.md")
A_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
A_LINK_TO_A_HEADING = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")
A_HEADING = re.compile(r"^#+ (.+?)(?: \{#([\w-]+)\})?$", re.MULTILINE)
A_MODULE = re.compile(r"python -m ((?:bench|nemo_brorl)(?:\.\w+)+)")
A_COMMAND = re.compile(r"(?:`|^ *|&& )brorl (?!help)([a-z][a-z-]*)", re.MULTILINE)
SECTIONS = {group.path.replace("[]", "") for group in groups()}
SETTINGS = SECTIONS | {path.replace("[]", "") for path in settings()}
MAPPINGS = tuple(f"{path}." for path, setting in settings().items() if setting.is_mapping)
A_SETTING = re.compile(r"`\+?([a-z_]+(?:\.[a-z_0-9]+)+)(?=[=:`])")
OF_EARLIER_RUNS = {"dynamic_sampling.max_rounds"}  # settings that a command of docs/results.md had when it was run
A_METRIC = re.compile(rf"`((?:{'|'.join(GROUPS)})/[a-z_0-9]+)`")
OF_A_USER = ("my_", "conf/site/NAME")  # examples


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


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings as MkDocs makes them: plain letters, hyphens for spaces."""
    found = set()
    for heading, name in A_HEADING.findall(page.read_text(encoding="utf-8")):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        ascii_only = unicodedata.normalize("NFKD", shown).encode("ascii", "ignore").decode()
        words = re.sub(r"[^\w\s-]", "", ascii_only).strip().lower()
        found.add(name or re.sub(r"[-\s]+", "-", words))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_heading_that_is_linked_exists(page: Path) -> None:
    links = A_LINK_TO_A_HEADING.findall(page.read_text(encoding="utf-8"))
    targets = [(page.parent / path if path else page, anchor) for path, anchor in links]
    missing = [
        f"{path.name}#{anchor}" for path, anchor in targets if path.suffix == ".md" and anchor not in anchors(path)
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_module_and_command_that_is_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    files = [module.replace(".", "/") for module in A_MODULE.findall(text)]
    missing = [path for path in files if not (ROOT / f"{path}.py").exists() and not (ROOT / path).is_dir()]
    missing += [name for name in A_COMMAND.findall(text) if name not in COMMANDS]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_setting_that_is_named_exists(page: Path) -> None:
    missing = []
    for name in A_SETTING.findall(page.read_text(encoding="utf-8")):
        path = re.sub(r"\.\d+(?=\.)", "", name)  # data.domains.0.path
        module = ROOT / "nemo_brorl" / path.rpartition(".")[0].replace(".", "/")
        is_elsewhere = path.partition(".")[0] not in SECTIONS or module.with_suffix(".py").exists()
        if not is_elsewhere and path not in SETTINGS | OF_EARLIER_RUNS and not path.startswith(MAPPINGS):
            missing.append(name)
    assert [name for name in missing if not name.endswith((".py", ".json", ".jsonl", ".md"))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_metric_that_is_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert undeclared_names(A_METRIC.findall(text)) == []


def test_the_loop_in_the_readme_is_that_of_the_example() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = (ROOT / "examples" / "rl_loop.py").read_text(encoding="utf-8")
    shown = readme.partition("## Write your own loop")[2].partition("```python\n")[2].partition("```")[0]
    lines = [line.partition("  #")[0].strip() for line in shown.splitlines()]
    assert len(lines) >= 5
    assert [line for line in lines if line not in example] == []
