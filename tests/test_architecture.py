"""Rules of docs/explanation/architecture.md beside those about imports, which import-linter holds (pyproject.toml)."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from scripts.module_map import FOLDERS
from tests.support.source_tree import GRADERS, PACKAGE, ROOT, imports, modules, name, nodes

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
# Modules that parse JSON without `read_json`, and why. Everything else may be a stranger's.
PARSES_JSON = {
    "brorl_graders.base.foreign": "it is read_json",
    "brorl_graders.verifiers.services": "looks for objects within a judge's prose, of bounded length",
    "brorl_graders.verifiers.ifeval.instruction_following": "the constraint is that Python reads the response as JSON",
    "brorl_graders.named_code": "names of our own settings, on a pipe to our own process",
    "brorl_graders.sandbox.confine": "our own request, before any program runs",
    "brorl_graders.sandbox.fork_server": "our own settings on the command line",
    "brorl_graders.sandbox.judge": "our own tests on a pipe that no program has",
    "brorl_graders.sandbox.peer": "the sandbox's own wire, with limits of its own",
    "brorl_graders.sandbox.program_process": "our own program on standard input",
    "brorl_graders.sandbox.sandbox": "the sandbox's own wire, with limits of its own",
    "brorl_graders.sandbox.trial_program": "our own targets on standard input",
}
# Modules that read files without `open_record`, and why. Files of runs, models and checkpoints may be a stranger's.
READS_FILES = {
    "brorl_graders.__main__": "the user's own file",
    "brorl_graders.base.private_folder": "/proc",
    "brorl_graders.named_code": "the source of the user's own module",
    "brorl_graders.processes.channel": "files of messages between our own processes, by their descriptors",
    "brorl_graders.processes.child_process": "/proc",
    "brorl_graders.sandbox.clock": "/proc",
    "brorl_graders.sandbox.linux": "/proc",
    "brorl_graders.sandbox.peer": "the sandbox's pipes",
    "brorl_graders.sandbox.program_process": "our own program, by its descriptor",
    "brorl_graders.sandbox.sandbox": "our own program",
    "brorl_lab.bases.command": "/proc",
    "brorl_lab.commands.sweep": "the user's own file",
    "brorl_lab.page.page": "our own assets",
    "brorl_launcher.doctor.data_files": "the user's own data",
    "brorl_launcher.doctor.job": "what the check has just written",
    "brorl_launcher.doctor.machine": "/sys",
    "brorl_launcher.doctor.versions": "our own source",
    "brorl_launcher.find_run": "settings that a job of the user wrote below the current folder",
    "brorl_launcher.job.ray_node": "logs of the job's own Ray",
    "brorl_launcher.job.ray_ports": "/proc",
    "brorl_launcher.site": "the user's own file",
    "nemo_brorl.core.file_sums": "sums of bytes, in pieces, of files whose sizes were compared",
    "nemo_brorl.core.files": "/proc",
    "nemo_brorl.core.lock": "/proc",
    "nemo_brorl.core.machine": "/proc",
    "nemo_brorl.core.process_memory": "/proc",
    "nemo_brorl.evaluation.answers": "the file that this evaluation writes",
    "nemo_brorl.evaluation.identity": "sums of bytes of weights that were read before",
    "nemo_brorl.evaluation.sample_file": "the file that this evaluation writes",
    "nemo_brorl.generation.engine_arguments": "vLLM's own source",
    "nemo_brorl.prompts.file_tables": "the first bytes of the user's own data",
    "nemo_brorl.prompts.jsonl_table": "the user's own data, mapped",
    "nemo_brorl.training.export": "the marker of a checkpoint that was checked",
    "nemo_brorl.training.machine_record": "/proc",
    "nemo_brorl.training.run_folder": "our own frozen code",
}
WRITES_TO_THE_TERMINAL = {
    "nemo_brorl.core.console": "it is the writer",
    "nemo_brorl.prompts.other_encoding": "answers its parent on a pipe",
    "brorl_launcher.doctor.probe": "answers its parent on a pipe",
    "brorl_graders.__main__": "its two lines are JSON and inert text",
    "brorl_graders.adapters": "prints its own path or address",
    "brorl_graders.sandbox.peer": "a program's output, into the sandbox's file",
    "brorl_graders.sandbox.trial_program": "answers its parent on a pipe",
}
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
        calls = calls_in(path)
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
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = [ast.unparse(base) for base in node.bases]
    found = {"BroRLError"}
    ours: set[str] = set()
    while found - ours:
        ours |= found
        found = {kind for kind, above in bases.items() if ours.intersection(above)}
    assert {"ModelError", "RecordError", "NoTorchError"} <= ours
    assert {kind: bases[kind] for kind in ours if not ours.union({"Exception"}).issuperset(bases[kind])} == {}


@cache
def calls_in(path: Path) -> set[str]:
    return {ast.unparse(node.func) for node in nodes(path) if isinstance(node, ast.Call)}


def test_json_is_parsed_in_one_place() -> None:
    parsers = {"json.loads", "json.load", "json.JSONDecoder"}
    users = {module for module, path in modules().items() if calls_in(path) & parsers}
    assert users - PARSES_JSON.keys() == set()


def test_files_of_folders_that_others_wrote_are_opened_in_one_place() -> None:
    users = set()
    for module, path in modules().items():
        for node in nodes(path):
            if isinstance(node, ast.Call) and _reads_a_file(node):
                users.add(module)
    assert users - READS_FILES.keys() == set()


def _reads_a_file(call: ast.Call) -> bool:
    name = ast.unparse(call.func).rpartition(".")[2]
    if name in ("read_text", "read_bytes"):
        return True
    return name == "open" and any(ast.unparse(argument) in ("'r'", "'rb'", "'ab+'") for argument in call.args)


def test_what_has_digits_alone_can_be_converted() -> None:
    """`²` is a digit to Python and no number to `int`. Names of files and jobs are numbers by `isdecimal`."""
    users = {module for module, path in modules().items() if any(".isdigit" in call for call in calls_in(path))}
    assert {user for user in users if not user.startswith("brorl_graders.verifiers.")} == set()


def test_one_module_writes_to_the_terminal() -> None:
    streams = {"sys.stdout.write", "sys.stderr.write", "sys.stdout.writelines", "sys.stderr.writelines", "print"}
    users = {module for module, path in modules().items() if calls_in(path) & streams}
    assert users - WRITES_TO_THE_TERMINAL.keys() == set()
