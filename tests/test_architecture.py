"""Rules of docs/explanation/architecture.md beside those about imports, which import-linter holds (pyproject.toml)."""

from __future__ import annotations

import ast
import re

from scripts.module_map import FOLDERS
from tests.support.source_tree import GRADERS, PACKAGE, ROOT, imports, modules, name, tree

# Entries of nemo_brorl/, lower shelves first. A module imports from its own folder and from lower shelves.
SHELVES = ("types", "ports", *FOLDERS)
MAX_ENTRIES = 15

# Modules that import code by its name. The settings give these names; `graders/brorl_graders/base/names.py` has those
# that data may choose.
IMPORTS_BY_NAME = {
    "brorl_graders.environments.agent",
    "brorl_graders.environments.registry",
    "brorl_graders.processes.fork_server",
    "brorl_graders.verifiers.registry",
}
# Packages that an environment with the graders alone lacks (`make test HOUSE=graders`), the backend's tests among them.
NOT_BESIDE_GRADERS = {"nemo_brorl", "brorl_lab", "brorl_launcher", "tests", "ray", "torch", "vllm"}
REGISTRIES = ("brorl_graders.environments.registry", "brorl_graders.verifiers.registry")


def test_the_top_level_is_two_pages_and_folders() -> None:
    # Not folders: an older checkout may have left some with compiled files.
    files = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
    entries = {path.parts[0] for path in files if not path.name.startswith("__") or len(path.parts) > 1}
    assert entries == {*SHELVES[2:], "types.py", "ports.py"}
    assert len(entries) <= MAX_ENTRIES


def test_the_module_map_names_every_folder() -> None:
    text = (ROOT / "docs" / "modules.md").read_text(encoding="utf-8")
    assert [shelf for shelf in SHELVES if not re.search(rf"^(## {shelf}/|- `{shelf}\.py`)", text, re.MULTILINE)] == []


def test_only_the_registries_go_from_a_name_to_a_verifier_or_an_environment() -> None:
    """Their `find` refuses what no setting names, and nobody else calls it."""
    wrong = []
    for module, path in modules().items():
        calls = {ast.unparse(node.func) for node in ast.walk(tree(path)) if isinstance(node, ast.Call)}
        imported = {dotted for _, dotted in imports(path)}
        is_imported = any(f"{registry}.find" in imported for registry in REGISTRIES)
        if module not in REGISTRIES and (is_imported or "registry.find" in calls):
            wrong.append(module)
    assert wrong == []


def test_tests_and_benches_of_the_graders_know_the_graders_alone() -> None:
    house = GRADERS.parent
    wrong = []
    for path in sorted([*house.glob("tests/**/*.py"), *house.glob("bench/**/*.py")]):
        for line, dotted in imports(path):
            if dotted.partition(".")[0] in NOT_BESIDE_GRADERS:
                wrong.append(f"{name(path)}:{line}: {dotted}")
    assert wrong == []


def test_few_modules_import_code_by_its_name() -> None:
    users = set()
    for module, path in modules().items():
        imported = {dotted for _, dotted in imports(path)}
        if "brorl_graders.base.components.import_function" in imported:
            users.add(module)
    assert users == IMPORTS_BY_NAME


def test_an_error_with_a_message_for_the_user_is_no_builtin_error() -> None:
    """A handler of ValueError around a parser would swallow it, or word it anew."""
    bases = {}
    for path in modules().values():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = [ast.unparse(base) for base in node.bases]
    found = {"BroRLError"}
    ours: set[str] = set()
    while found - ours:
        ours |= found
        found = {kind for kind, above in bases.items() if ours.intersection(above)}
    assert {"ModelError", "RecordError", "NoTorchError"} <= ours
    assert {kind: bases[kind] for kind in ours if not ours.union({"Exception"}).issuperset(bases[kind])} == {}
