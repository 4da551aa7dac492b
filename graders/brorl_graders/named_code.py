"""Look up functions and classes that settings name as `package.module:name`, before anything expensive starts.

A child process imports them, so code that hangs, prints or ends its process harms nobody. If it takes too long, only
the source of a module is read.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import inspect
import json
import os
import pkgutil
import re
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, NamedTuple

from brorl_graders.base.components import LIBRARIES, is_import_path, with_params
from brorl_graders.base.environment_values import plain
from brorl_graders.base.errors import ConfigError
from brorl_graders.base.names import CHILD_VARIABLES, allowed
from brorl_graders.given import GIVEN_REWARD, kept_reward
from brorl_graders.verifiers.reward_functions import scoring

DEADLINE_S = 20.0  # for the import of all names
WRONG, HERE, UNSEEN = "wrong", "here", "unseen"  # wrong everywhere, no import on this machine, only its source was read
OURS = ("brorl_graders", "brorl_lab", "brorl_launcher", "nemo_brorl")
SCORES = "payload, response"  # arguments of a function that scores, which may also have those of other frameworks
# A function as newcomers write it: by a file or with a dot.
IN_FILE = re.compile(r"(?P<module>[\w./]+?)(?:\.py:|:|\.)(?P<name>[A-Za-z_]\w*)")
MAX_TEXT = 300  # characters of an exception's message


class NamedCode(NamedTuple):
    """A function or class that a setting names, and its use in a run."""

    setting: str
    name: str
    arguments: str  # of a call, as in "payload, response"; "": a class derived from `Environment`
    imported_by: str  # driver, workers, or both
    params: Mapping[str, Any] = {}

    @property
    def remedy(self) -> str:
        """Advice to define what a setting may name."""
        name = self.name.rpartition(":")[2]
        return f"Write `def {name}({self.arguments})`" if self.arguments else f"Write `class {name}(Environment)`"


class Fault(NamedTuple):
    """What is wrong with a name, or why it is not known (UNSEEN)."""

    words: str
    kind: str = WRONG

    def is_open(self, is_elsewhere: bool) -> bool:
        """Return whether the name may be right all the same, in a run on another machine if `is_elsewhere`."""
        return self.kind == UNSEEN or (is_elsewhere and self.kind == HERE)


def look_up(names: Sequence[NamedCode], folders: Sequence[str], variables: Sequence[str]) -> list[Fault | None]:
    """Return what is wrong with each name, or None. Built-in names and code of this project start no process.

    `folders` are searched after `sys.path`. Code that scores sees the usual environment variables and `variables` only.
    """
    path = [*sys.path, *folders]
    own = [named for named in names if is_import_path(named.name) and named.name.split(".")[0] not in OURS]
    found = iter(_ask_child(own, path, [*CHILD_VARIABLES, *variables]) if own else ())
    return [next(found) if named in own else _in_source(named, path) for named in names]


def _ask_child(names: Sequence[NamedCode], path: Sequence[str], variables: Sequence[str]) -> list[Fault | None]:
    request = json.dumps([[named._replace(params=plain(dict(named.params))) for named in names], path, variables])
    with (
        tempfile.TemporaryFile() as reports,
        subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(reports.fileno())],
            pass_fds=[reports.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        ) as child,
    ):
        try:
            child.communicate(request.encode(), DEADLINE_S)
            end = Fault(f"its import ends the process, with exit code {child.returncode}. Take that out of it")
        except subprocess.TimeoutExpired:
            end = Fault(f"its import had not ended after {DEADLINE_S:g} s, so only its source was read", UNSEEN)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        reports.seek(0)
        found = [fault and Fault(*fault) for fault in map(json.loads, reports)]
    rest = [_in_source(named, path) for named in names[len(found) :]]
    return [*found, *(fault or end for fault in rest[:1]), *rest[1:]]


def _in_source(named: NamedCode, path: Sequence[str]) -> Fault | None:
    """Return what is wrong with a name, as far as its module's source tells. Imports nothing."""
    module, _, name = named.name.partition(":")
    if not is_import_path(named.name):
        return _not_built_in(named)
    if named.name == GIVEN_REWARD and kept_reward() is None:
        return Fault("it was an object of a Python program. Pass it to nemo_brorl.Session or train again, as reward=")
    missing, file = _file_of(module, path)
    if missing:
        return Fault(_no_module(module, missing), HERE)
    if not file.endswith(".py"):
        return None
    try:
        nodes: list[ast.AST] = [*ast.parse(Path(file).read_bytes(), file).body]
    except (SyntaxError, ValueError, OSError) as error:
        return _failed(module, error)
    defined: dict[str, ast.AST] = {}
    for node in nodes:
        names = [getattr(node, key, None) for key in ("id", "name", "asname")]
        is_read = isinstance(getattr(node, "ctx", None), ast.Load)
        defined.update({word: node for word in names if word and not is_read})
        if not hasattr(node, "body") or isinstance(node, ast.If | ast.Try | ast.With):
            nodes += ast.iter_child_nodes(node)
    if name not in defined and defined.keys().isdisjoint(("*", "__getattr__")):
        return _no_name(named, [known for known, node in defined.items() if hasattr(node, "body")])
    return _is_class(named) if isinstance(defined.get(name), ast.ClassDef) else None


def _file_of(module: str, path: Sequence[str]) -> tuple[str, str]:
    """Return the part of a module's name that is in no folder of `path`, or "", and its file. Imports nothing."""
    first, *rest = module.split(".")
    specs = (finder.find_spec(first, [*path]) for finder in sys.meta_path)
    spec, known = next(filter(None, specs), None), first
    for part in rest:
        if spec is None:
            break
        known = f"{known}.{part}"
        spec = _spec_within(known, list(spec.submodule_search_locations or []))
    return (known, "") if spec is None else ("", spec.origin or "")


def _spec_within(module: str, places: Sequence[str]) -> ModuleSpec | None:
    """Return where a module of a package is, or None. `sys.meta_path` would want its package imported."""
    folders: list[str] = []
    for place in places:
        finder = pkgutil.get_importer(place)
        spec = None if finder is None else finder.find_spec(module)
        if spec is None:
            continue
        if spec.loader is not None:
            return spec
        folders += spec.submodule_search_locations or []
    if not folders:
        return None
    # A folder without `__init__.py`, of which other places may have a part.
    whole = ModuleSpec(module, None, is_package=True)
    whole.submodule_search_locations = folders
    return whole


def source_hashes(folders: Sequence[str]) -> dict[str, str]:
    """Return hashes of the sources of all functions that may score, by name. They are searched on `sys.path` first."""
    given = kept_reward()
    hashes = {name: source_hash(name, [*sys.path, *folders]) for name in allowed().verifiers}
    return hashes | ({GIVEN_REWARD: given[1]} if given and GIVEN_REWARD in hashes else {})


def source_hash(name: str, path: Sequence[str]) -> str:
    """Return a hash of the source of a named function's module and of the modules in its folder that it imports, or "".

    It is "" where the folders of `path` have no such source.
    """
    sources: dict[Path, bytes] = {}
    waiting = [Path(_file_of(name.partition(":")[0], path)[1])]
    while waiting:
        file = waiting.pop()
        if file.suffix != ".py" or file in sources or not file.is_file():
            continue
        sources[file] = file.read_bytes()
        with suppress(SyntaxError, ValueError):
            for node in ast.walk(ast.parse(sources[file])):
                names = [alias.name for alias in getattr(node, "names", ()) if isinstance(alias, ast.alias)]
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                waiting += [file.with_name(f"{word.rpartition('.')[2]}.py") for word in names if word]
    written = b"\0".join(sources[file] for file in sorted(sources))
    return hashlib.sha256(written).hexdigest()[:16] if sources else ""


def _imported(named: NamedCode, path: Sequence[str], unseen: Collection[str]) -> Fault | None:
    """Import a name, and return what is wrong with it. `unseen` are environment variables that its module lacks."""
    module, _, name = named.name.partition(":")
    try:
        found = importlib.import_module(module)
        if not hasattr(found, name):
            own = [known for known, value in vars(found).items() if getattr(value, "__module__", "") == module]
            return _no_name(named, own)
        return _misfit(named, getattr(found, name))
    except ConfigError as error:
        return Fault(str(error))
    except BaseException as error:  # noqa: BLE001 a user's module may raise anything
        key = str(error).strip("'") if isinstance(error, KeyError) else ""
        if key in unseen:
            return Fault(f"{key} is unset where it runs. Set rewards.environment_variables=[{key}]")
        return _in_source(named, path) or _failed(module, error)


def _misfit(named: NamedCode, value: Any) -> Fault | None:
    """Return why an imported object is not what its setting wants. Raises ConfigError for wrong parameters."""
    if not named.arguments:
        from brorl_graders.environments.protocol import Environment

        is_one = isinstance(value, type) and issubclass(value, Environment)
        return None if is_one else Fault(f"it is no class derived from brorl_graders.Environment. {named.remedy}")
    if isinstance(value, type) and (fault := _is_class(named)):
        return fault
    if not callable(value):
        return Fault(f"it is of type {type(value).__name__} and no function. {named.remedy}")
    function = with_params("params", named.name, value, named.params)
    if named.arguments == SCORES:
        try:
            scoring(function)
        except ConfigError as error:
            return Fault(f"{error}. {named.remedy}")
        return None
    signature = inspect.signature(function)
    try:
        signature.bind(*named.arguments.split(", "))
    except TypeError as error:
        return Fault(f"it takes {signature} and is called with ({named.arguments}): {error}. {named.remedy}")
    return None


def _is_class(named: NamedCode) -> Fault | None:
    """Return the fault of a class, unless an environment or an object for the driver is wanted, which it may make."""
    if not named.arguments or named.imported_by == "driver":
        return None
    return Fault(f"it is a class. {named.remedy}, or name an object of it")


def _not_built_in(named: NamedCode) -> Fault | None:
    from brorl_graders.environments.registry import ENVIRONMENTS
    from brorl_graders.verifiers.registry import VERIFIERS

    known = [] if named.imported_by == "driver" else [*(VERIFIERS if named.arguments else ENVIRONMENTS)]
    if named.name in known:
        return None
    if (path := IN_FILE.fullmatch(named.name)) and named.arguments:
        file = Path(path["module"])
        module = file.name if file.is_absolute() else ".".join(part for part in file.parts if part != "..")
        return Fault(
            f"it is no import path. Set {named.setting}={module}:{path['name']}, with its folder on PYTHONPATH"
        )
    choices = f"one of {', '.join(known)}, or your own as " if known else ""
    near = difflib.get_close_matches(named.name.lower().replace("-", "_").strip(":"), known, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return Fault(f"nothing has this name.{hint} Set {choices}package.module:name")


def _no_name(named: NamedCode, known: Sequence[str]) -> Fault:
    module, _, name = named.name.partition(":")
    public = [word for word in known if not word.startswith("_")]
    near = difflib.get_close_matches(name, public, 1)
    remedy = f"Set {named.setting}={module}:{near[0]}" if near else f"{named.remedy} there"
    return Fault(f"{module} has no {name}, but {', '.join(public) or 'nothing else either'}. {remedy}")


def _no_module(module: str, missing: str) -> str:
    if Path(*module.split(".")).with_suffix(".py").is_file():
        return (
            f"there is no module {missing} on PYTHONPATH, but one in this folder. Set PYTHONPATH=. before the command"
        )
    folder = f"put the folder of {module.partition('.')[0]} on PYTHONPATH"
    return f"there is no module {missing}. Set package.module:name, and {folder}"


def _failed(module: str, error: BaseException) -> Fault:
    """Describe the exception of an import, with its innermost line that is neither ours nor a library's."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    text = traceback.format_exception_only(error)[0].partition("\n")[0][:MAX_TEXT]
    if isinstance(error, SyntaxError):
        frames.append((error.filename or "", error.lineno))
    if isinstance(error, ImportError | SyntaxError):
        text = error.msg or text
    for file, line in reversed(frames):
        if not file.startswith(("<", __file__, *LIBRARIES)):
            text = f"{os.path.relpath(file) if Path(file).is_relative_to(Path.cwd()) else file}, line {line}: {text}"
            break
    remedy = f"`python -c 'import {module}'` shows the whole error"
    if isinstance(error, ModuleNotFoundError):
        remedy = "Install it, or put its folder on PYTHONPATH"
    return Fault(f"{text}. {remedy}", WRONG if isinstance(error, SyntaxError) else HERE)


def main(arguments: Sequence[str]) -> None:
    """Run the child process: import the names of standard input, and report one line for each."""
    signal.alarm(2 * int(DEADLINE_S))  # ends it where the parent was killed
    names, path, variables = json.load(sys.stdin)
    everything, here = dict(os.environ), str(Path.cwd())
    seen = {name: value for name, value in everything.items() if name in variables}
    for named in (NamedCode(*name) for name in names):
        os.environ.clear()
        os.environ.update(everything if named.imported_by == "driver" else seen)
        # Ray's workers also search the folder in which the driver was started.
        sys.path[:] = [here, *path] if named.imported_by == "workers" else path
        fault = _imported(named, sys.path, everything.keys() - os.environ.keys())
        os.write(int(arguments[0]), json.dumps(fault).encode() + b"\n")
    os._exit(0)  # without waiting for threads


if __name__ == "__main__":
    main(sys.argv[1:])
