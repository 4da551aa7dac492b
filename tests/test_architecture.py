"""The rules of docs/architecture.md that a machine can check: who imports whom, and who owns a heavy library."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from scripts.module_map import FOLDERS
from tests.support.source_tree import (
    PACKAGE,
    ROOT,
    cycles,
    import_graph,
    imports,
    launcher_files,
    module_of,
    modules,
    name,
    package_files,
    tree,
)

# Entries of nemo_brorl/, lower shelves first. A module imports from its own folder and from lower shelves.
SHELVES = ("types", "ports", *FOLDERS)
MAX_ENTRIES = 15

# Heavy libraries have one owner each, as paths below the package.
OWNERS = {
    "megatron": "policy",
    "transformer_engine": "policy",
    "vllm": "generation",
    "nemo": "commands/nemo_app.py",
    "lightning": "commands/nemo_app.py",
    "matplotlib": "commands/figures.py",
}
# Planning code answers at once: torch is not imported here, not even inside a function.
TORCH_FREE = (
    "types.py",
    "ports.py",
    "config",
    "core/errors.py",
    "core/console.py",
    "core/model_shape.py",
    "core/object_store.py",
    "commands/run.py",
    "rollouts",
    "generation/placement",
    "weights/broadcast.py",
    "weights/buckets.py",
    "weights/incoming.py",
    "weights/publication.py",
    "weights/receivers.py",
    "weights/source.py",
    "algorithm/packing.py",
    "algorithm/reference_reset.py",
    "training/trainer.py",
)
# Modules that import code by its name. The settings give these names; `graders/brorl_graders/names.py` has those that
# data may choose.
IMPORTS_BY_NAME = {
    "brorl_graders.environments.agent",
    "brorl_graders.environments.registry",
    "brorl_graders.processes.fork_server",
    "brorl_graders.verifiers.registry",
}
REGISTRIES = ("brorl_graders.environments.registry", "brorl_graders.verifiers.registry")
DOCTOR_MAY_IMPORT = ("nemo_brorl.core.", "nemo_brorl.prompts.", "nemo_brorl.scoring.", "nemo_brorl.evaluation.")
LAUNCHER_MAY_IMPORT = (
    "nemo_brorl.config.",
    "nemo_brorl.core.errors.",
    "nemo_brorl.core.files.",
    "nemo_brorl.core.machine.",
    "nemo_brorl.core.model_folder.",
    "nemo_brorl.core.console.",
    "nemo_brorl.core.step_time.",
    "nemo_brorl.core.model_shape.",
    "nemo_brorl.core.private_folder.",
    "nemo_brorl.core.recorded_yaml.",
    "nemo_brorl.core.environment_values.",
)


def entry(path: Path) -> str:
    """The entry of nemo_brorl/ that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def is_below(path: Path, place: str) -> bool:
    return path.is_relative_to(PACKAGE / place)


def test_the_top_level_is_two_pages_and_folders() -> None:
    files = [path.relative_to(PACKAGE) for path in package_files()]  # not what an older checkout has left compiled
    entries = {path.parts[0] for path in files if not path.name.startswith("__") or len(path.parts) > 1}
    assert entries == {*SHELVES[2:], "types.py", "ports.py"}
    assert len(entries) <= MAX_ENTRIES


def test_the_module_map_names_every_folder() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert [shelf for shelf in SHELVES if not re.search(rf"`{shelf}(/`|`|\.py`)", text)] == []


def test_no_module_imports_itself_by_a_detour() -> None:
    """Imports inside functions and under `TYPE_CHECKING` count."""
    assert cycles(import_graph()) == []


def test_a_cycle_would_be_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}) == [["a", "b", "c"]]


def test_imports_go_down_the_shelves() -> None:
    level = {shelf: index for index, shelf in enumerate(SHELVES)}
    wrong = []
    for path in package_files():
        own = entry(path)
        for line, imported in imports(path):
            module = module_of(imported)
            other = module.split(".")[1] if module and module.startswith("nemo_brorl.") else own
            if own in level and other != own and level[other] >= level[own]:
                wrong.append(f"{name(path)}:{line} imports {imported}, which is not on a lower shelf")
    assert not wrong, "\n".join(wrong)


def test_the_backend_imports_no_other_house_but_the_graders() -> None:
    wrong = []
    for module, targets in import_graph().items():
        others = {target for target in targets if not target.startswith(("nemo_brorl", "brorl_graders"))}
        if others and module.startswith("nemo_brorl"):
            wrong.append(f"{module} imports {sorted(others)}")
    assert not wrong, "\n".join(wrong)


def test_heavy_libraries_are_imported_by_their_owner_only() -> None:
    wrong = []
    for path in package_files():
        for line, imported in imports(path):
            owner = OWNERS.get(imported.split(".")[0])
            if owner is not None and not is_below(path, owner):
                wrong.append(f"{name(path)}:{line} imports {imported}, which belongs to {owner}")
    assert not wrong, "\n".join(wrong)


def test_planning_code_does_not_import_torch() -> None:
    wrong = []
    for path in package_files():
        if any(is_below(path, place) for place in TORCH_FREE):
            wrong += [f"{name(path)}:{line}" for line, imported in imports(path) if imported.split(".")[0] == "torch"]
    assert not wrong, "\n".join(wrong)


def test_the_launcher_knows_only_the_configuration() -> None:
    wrong = []
    for path in launcher_files():
        for line, imported in imports(path):
            may_import = LAUNCHER_MAY_IMPORT
            if "doctor" in path.parts:
                may_import += DOCTOR_MAY_IMPORT
            if imported.startswith("nemo_brorl.") and not imported.startswith(may_import):
                wrong.append(f"{name(path)}:{line} imports {imported}")
    assert not wrong, "\n".join(wrong)


def test_the_launcher_needs_only_what_a_login_node_has() -> None:
    """It runs where jobs are submitted, maybe without the stack: only what runs inside the job may import that.
    The doctor runs where the job does."""
    allowed = {"nemo_brorl", "brorl_launcher", "omegaconf", "hydra", "yaml", *sys.stdlib_module_names}
    inside = {"ray_watch.py": {"ray"}}
    wrong = []
    for path in launcher_files():
        if "doctor" in path.parts:
            continue
        known = allowed | inside.get(path.name, set())
        wrong += [
            f"{name(path)}:{line} {imported}" for line, imported in imports(path) if imported.split(".")[0] not in known
        ]
    assert not wrong, "\n".join(wrong)


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


def test_few_modules_import_code_by_its_name() -> None:
    users = set()
    for module, path in modules().items():
        imported = {dotted for _, dotted in imports(path)}
        if "nemo_brorl.core.components.import_function" in imported:
            users.add(module)
    assert users == IMPORTS_BY_NAME
