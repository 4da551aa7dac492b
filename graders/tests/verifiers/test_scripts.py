"""Test scripts in the styles of data sets: right programs earn 1, wrong programs and cheats nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from brorl_graders.base.settings import CodeLimits
from brorl_graders.verifiers.code import code
from brorl_graders.verifiers.code.scripts import read_script

pytestmark = pytest.mark.slow

STYLES = Path(__file__).parents[1] / "support" / "assertion_styles.txt"


class Style(NamedTuple):
    """A script, a program that it holds of and one that it does not."""

    right: str
    script: str
    entry_point: str
    wrong: str

    @property
    def payload(self) -> dict[str, Any]:
        tests = {"script": self.script}
        return {"tests": tests | {"entry_point": self.entry_point} if self.entry_point else tests}


def read_styles() -> dict[str, Style]:
    blocks = re.split(r"^=== (.+)\n", STYLES.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    styles: dict[str, Style] = {}
    for name, block in zip(blocks[::2], blocks[1::2], strict=True):
        right, rest = block.split("--- test\n")
        script, wrong = rest.split("--- wrong\n")
        script, _, entry = script.partition("--- entry ")
        styles[name] = Style(right, script, entry.strip(), wrong)
    return styles


ALL = read_styles()
# Programs that solve nothing: NAMES are those that a script asks for.
CHEATS = {
    "equal to everything": """
class E:
    def __init__(self, *a, **k): pass
    def __call__(self, *a, **k): return self
    def __eq__(self, o): return True
    def __ne__(self, o): return False
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    def __bool__(self): return True
    def __hash__(self): return 0
    def __add__(self, o): return self
    __radd__ = __sub__ = __rsub__ = __mul__ = __getitem__ = __abs__ = __enter__ = __add__
    def __exit__(self, *e): return True
    def __iter__(self): return iter(())
    def __next__(self): raise StopIteration
    def __len__(self): return 0
    def __float__(self): return 0.0
    def __getattr__(self, name):
        if name.startswith('__'): raise AttributeError(name)
        return self
for name in NAMES: globals()[name] = E()
""",
    "numbers that claim to be others": """
class N(int):
    __eq__ = __le__ = __ge__ = lambda s, o: True
    __ne__ = lambda s, o: False
    __sub__ = __rsub__ = __abs__ = lambda s, *o: 0
    __hash__ = int.__hash__
    def __new__(cls, *a, **k): return int.__new__(cls, 0)
for name in NAMES: globals()[name] = N
""",
    "forged answers": """
import os, json
for _ in range(50):
    os.write(5, b'["value", 1, [], ""]\\n')
    os.write(3, b'["done", null, 0]\\n')
os._exit(0)
""",
    "forged answer of names": """
import os
os.write(5, b'["value", [], [], ""]\\n["value", {"name": "builtins.object"}, [], ""]\\n')
while os.read(4, 65536): pass
""",
    "forged names": """
import json, os
function = {"mine": [0, "function"]}
names = [*NAMES, "set", "sorted", "abs", "len", "isinstance", "all", "any", "__builtins__", "np", "math"]
os.write(5, (json.dumps(["value", [[name, function] for name in names], [], ""]) + chr(10)).encode())
for _ in range(20):
    os.write(5, b'["value", true, [], ""]\\n')
while os.read(4, 65536): pass
""",
    "exit": "import os\nfor name in NAMES: globals()[name] = lambda *a, **k: os._exit(0)",
    "system exit": "import sys\nfor name in NAMES: globals()[name] = lambda *a, **k: sys.exit(0)",
    "skipped test": """
import unittest
def skip(*a, **k): raise unittest.SkipTest('no')
for name in NAMES: globals()[name] = skip
""",
    "patched builtins": """
import builtins, operator, math, unittest
for module in (builtins, operator, math):
    for name in ('all', 'any', 'sorted', 'set', 'abs', 'len', 'isinstance', 'eq', 'isclose'):
        if hasattr(module, name): setattr(module, name, lambda *a, **k: True)
unittest.TestCase.assertEqual = lambda *a: None
for name in NAMES: globals()[name] = lambda *a, **k: True
""",
    "caller's frames": """
import sys
def look(*a, **k):
    frame = sys._getframe(1)
    while frame:
        for name in ('exp', 'y', 'expected', 'results', 'results'):
            if name in frame.f_locals: return frame.f_locals[name]
        frame = frame.f_back
for name in NAMES: globals()[name] = look
""",
    "nothing": "",
    "none": "for name in NAMES: globals()[name] = lambda *a, **k: None",
    "empty list": "for name in NAMES: globals()[name] = lambda *a, **k: []",
}


@pytest.fixture(scope="module", autouse=True)
def settings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(code.VARIABLE, "")
        code.configure(CodeLimits(test_timeout_s=30), 100)
        yield
        code.close()


def score(payload: dict[str, Any], program: str) -> float:
    assert list(code.check(payload)) == []
    return code.score(payload, f"```python\n{program}\n```")


def test_the_corpus_is_large() -> None:
    assert len(ALL) >= 60


@pytest.mark.parametrize("name", ALL)
def test_a_right_program_earns_all_and_a_wrong_one_nothing(name: str) -> None:
    style = ALL[name]
    assert (score(style.payload, style.right), score(style.payload, style.wrong)) == (1.0, 0.0)


@pytest.fixture(scope="module")
def soon(settings: None) -> None:
    """A test ends soon: one that walks to the end of a cheat's list would never end."""
    code.close()  # a process that is there keeps the time that it was started with
    code.configure(CodeLimits(test_timeout_s=3), 100)


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_earns_nothing_in_any_style(cheat: str, soon: None) -> None:
    earned = []
    for name, style in ALL.items():
        names = read_script(style.script, style.entry_point).names
        program = f"NAMES = {names!r}\n{CHEATS[cheat]}"
        if score(style.payload, program) > 0:
            earned.append(name)
    assert earned == []
