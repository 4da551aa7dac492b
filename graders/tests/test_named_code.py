"""Functions and classes of a user's own, looked up in a child process before a run starts."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from brorl_graders import named_code
from brorl_graders.named_code import HERE, UNSEEN, WRONG, Fault, NamedCode, look_up, source_hash
from brorl_graders.verifiers.reward_functions import OTHERS

OTHERS_KNOWN = f"Other arguments that are known: {OTHERS}. "
SCORE = "def score(payload, response): ...\n"
MODULES = {
    "good": """
from dataclasses import dataclass

from brorl_graders import Environment


@dataclass
class Params:
    tolerance: float = 0.25


@dataclass
class Needed:
    limit: int


def near(payload, response, params: Params):
    return 1.0


def limited(payload, response, params: Needed):
    return 1.0


def alone(response):
    return 1.0


def keywords(*, payload, response):
    return 1.0


class Grader:
    def __call__(self, payload, response):
        return 1.0


class Game(Environment):
    pass


grader = Grader()
shorter = lambda payload, response: 1.0
number = 3
""",
    "lacks": "\nimport not_there\n" + SCORE,
    "syntax": "def score(payload, response)\n    return 1.0\n",
    "indented": "def score(payload, response):\nreturn 1.0\n",
    "imports_syntax": "import syntax\n\n\ndef score(payload, response):\n    return 1.0\n",
    "raises": "def begin():\n    raise ValueError('one\\ntwo')\n\n\nbegin()\n",
    "relative": "from .helper import score\n",
    "exits": "import sys\n\nsys.exit(3)\n",
    "interrupts": "raise KeyboardInterrupt\n",
    "unprintable": "class Bad(BaseException):\n    def __str__(self):\n        raise ValueError\n\n\nraise Bad\n",
    "package/__init__": "",
    "package/rewards": "def score(payload, response):\n    return 1.0\n",
    "prints": "import os\n\nprint('[1]' * 99999)\nos.write(1, b'x')\nos.write(2, b'x')\n" + SCORE,
    "starts": "import threading, time\n\nthreading.Thread(target=time.sleep, args=(60,)).start()\n" + SCORE,
    "ends": "import os\n\nos._exit(0)\n" + SCORE,
    "hangs": "import os, pathlib, time\n"
    "pathlib.Path(__file__).with_name('pid').write_text(str(os.getpid()))\ntime.sleep(60)\n"
    + SCORE
    + "class Grader: ...\n",
    "asks": "import os\n\nos.environ['MY_KEY']\n" + SCORE,
}


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in MODULES.items():
        path = tmp_path / "code" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "code")
    return tmp_path / "code"


def verifier(name: str, **params: Any) -> NamedCode:
    return NamedCode("data.verifier", name, "payload, response", "workers", params)


def found(*names: str, variables: tuple[str, ...] = ()) -> list[Fault | None]:
    return look_up([verifier(name) for name in names], (), variables)


def words_of(*names: NamedCode) -> list[str]:
    return [fault.words for fault in look_up(names, (), ()) if fault is not None]


def test_functions_that_can_score_pass_and_the_caller_imports_none_of_them() -> None:
    names = ("good:near", "good:grader", "good:shorter", "package.rewards:score", "math", "composite")
    assert found(*names) == [None] * len(names)
    assert not {"good", "package", "package.rewards"} & sys.modules.keys()


def test_what_fails_is_told_with_the_line_of_the_users_own_code(modules: Path) -> None:
    expected = {
        "lacks:score": ("lacks.py, line 2: No module named 'not_there'. Install it", HERE),
        "syntax:score": ("syntax.py, line 1: expected ':'", WRONG),
        "indented:score": ("indented.py, line 2: expected an indented block", WRONG),
        "imports_syntax:score": ("syntax.py, line 1: expected ':'", WRONG),
        "raises:begin": ("raises.py, line 2: ValueError: one. `python -c 'import raises'`", HERE),
        "relative:score": ("relative.py, line 1: attempted relative import with no known parent package", HERE),
        "exits:sys": ("exits.py, line 3: SystemExit: 3", HERE),
        "interrupts:score": ("interrupts has no score", WRONG),
        "unprintable:Bad": ("it is a class", WRONG),
    }
    faults = found(*expected)
    for (words, kind), fault in zip(expected.values(), faults, strict=True):
        assert fault is not None
        assert (words in fault.words, fault.kind) == (True, kind), fault
    assert str(modules / "lacks.py") in str(faults[0])


def test_names_that_are_not_there_are_told_with_those_that_are() -> None:
    near, nothing, no_module, no_part, word, spelling, environment = words_of(
        verifier("good:nearr"),
        verifier("good:compute"),
        verifier("not_here:score"),
        verifier("package.reward:score"),
        verifier("exact_mach"),
        verifier("Multiple-Choice"),
        NamedCode("data.environment", "chess", "", "both"),
    )
    assert "good has no nearr, but Params, Needed, near, limited" in near
    assert near.endswith("Set data.verifier=good:near")
    assert nothing.endswith("Write `def compute(payload, response)` there")
    assert no_module.startswith("there is no module not_here. Set package.module:name, and put the folder of not_here")
    assert no_part.startswith("there is no module package.reward.")
    assert word.startswith("nothing has this name. Did you mean exact_match? Set one of composite, code, exact_match")
    assert "Did you mean multiple_choice?" in spelling
    assert word.endswith("or your own as package.module:name")
    assert "calculator" in environment


def test_a_file_or_a_dot_for_an_import_path_is_answered_with_the_path_to_set() -> None:
    words = words_of(*map(verifier, ("good.near", "./good.py:near", "/there/good.py:near", "rewards/good.py:near")))
    paths = ["good:near", "good:near", "good:near", "rewards.good:near"]
    wanted = [f"it is no import path. Set data.verifier={path}, with its folder on PYTHONPATH" for path in paths]
    assert words == wanted


def test_a_thing_of_the_wrong_kind_is_refused_with_what_to_write() -> None:
    words = words_of(
        verifier("good:Grader"),
        verifier("good:number"),
        verifier("good:alone"),
        verifier("good:keywords"),
        NamedCode("data.environment", "good:Grader", "", "both"),
        NamedCode("data.environment", "good:Game", "", "both"),
        NamedCode("trainer.observers.0.name", "good:Params", "run_folder", "driver"),
    )
    assert words == [
        "it is a class. Write `def Grader(payload, response)`, or name an object of it",
        "it is of type int and no function. Write `def number(payload, response)`",
        f"it takes (response) and is called with (payload, response): too many positional arguments. {OTHERS_KNOWN}"
        "Write `def alone(payload, response)`",
        "it takes (*, payload, response) and is called with (payload, response): too many positional arguments. "
        f"{OTHERS_KNOWN}Write `def keywords(payload, response)`",
        "it is no class derived from brorl_graders.Environment. Write `class Grader(Environment)`",
    ]


def test_parameters_are_those_that_the_function_takes() -> None:
    unknown, text, lacks = words_of(
        verifier("good:near", tolerence=1),
        verifier("good:near", tolerance="wide"),
        verifier("good:limited"),
    )
    assert "tolerence" in unknown
    assert unknown.endswith("good:near takes tolerance: float = 0.25")
    assert "'wide'" in text
    assert "limit" in lacks
    assert words_of(verifier("good:limited", limit=2), verifier("good:near", tolerance=1)) == []


def test_code_that_prints_or_starts_threads_disturbs_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    assert found("prints:score", "starts:score") == [None, None]
    assert capfd.readouterr() == ("", "")


def test_code_that_ends_its_process_is_refused_and_names_after_it_are_read() -> None:
    good, ends, misspelt, other = found("good:near", "ends:score", "good:nearr", "good:near")
    assert ends is not None
    assert ends.words.startswith("its import ends the process, with exit code 0")
    assert misspelt is not None
    assert "good has no nearr" in misspelt.words
    assert (good, other) == (None, None)


def test_code_that_is_imported_too_slowly_is_looked_up_in_its_source(
    modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named_code, "DEADLINE_S", 4.0)
    start = time.monotonic()
    late, *rest = found("hangs:score", "hangs:scor", "hangs:Grader", "lacks:scores")
    assert time.monotonic() - start < 50
    assert late == Fault("its import had not ended after 4 s, so only its source was read", UNSEEN)
    assert [fault.words.partition(".")[0] if fault else "" for fault in rest] == [
        "hangs has no scor, but score, Grader",
        "it is a class",
        "lacks has no scores, but score",
    ]
    with pytest.raises(ProcessLookupError):
        os.kill(int((modules / "pid").read_text()), 0)


def test_code_that_scores_sees_the_variables_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "k")
    (fault,) = found("asks:score")
    assert fault == Fault("MY_KEY is unset where it runs. Set rewards.environment_variables=[MY_KEY]")
    assert found("asks:score", variables=("MY_KEY",)) == [None]
    assert look_up([NamedCode("algorithm.loss", "asks:score", "batch, config", "driver")], (), ()) == [None]


def test_workers_also_search_the_folder_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside.py").write_text("def score(first, second):\n    ...\n")
    monkeypatch.chdir(tmp_path)
    assert found("beside:score") == [None]
    loss = NamedCode("algorithm.loss", "beside:score", "batch, config", "driver")
    assert words_of(loss) == [
        "there is no module beside on PYTHONPATH, but one in this folder. Set PYTHONPATH=. before the command"
    ]
    assert look_up([loss], [str(tmp_path)], ()) == [None]


def test_a_file_beside_the_command_does_not_take_the_place_of_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise ValueError\n")
    monkeypatch.chdir(tmp_path)
    assert found("good:near") == [None]


def test_only_a_fault_of_this_machine_is_open_for_a_run_elsewhere() -> None:
    faults = [Fault("", kind) for kind in (WRONG, HERE, UNSEEN)]
    assert [fault.is_open(is_elsewhere=False) for fault in faults] == [False, False, True]
    assert [fault.is_open(is_elsewhere=True) for fault in faults] == [False, True, True]


def test_the_hash_of_a_source_covers_the_modules_beside_it_that_it_imports(tmp_path: Path) -> None:
    for name, text in {"own": "from near import half\n", "near": "half = 0.5\n", "other": "x = 1\n"}.items():
        (tmp_path / f"{name}.py").write_text(text)

    def hashed() -> str:
        return source_hash("own:score", [str(tmp_path)])

    first = hashed()
    (tmp_path / "other.py").write_text("x = 2\n")
    assert hashed() == first != ""
    (tmp_path / "near.py").write_text("half = 0.25\n")
    second = hashed()
    (tmp_path / "own.py").write_text("from near import half\n\n")
    assert len({first, second, hashed()}) == 3
    assert source_hash("not_here:score", [str(tmp_path)]) == ""


def test_a_source_in_folders_without_init_files_has_a_hash(tmp_path: Path) -> None:
    module = tmp_path / "mine" / "rewards" / "short.py"
    module.parent.mkdir(parents=True)
    module.write_text("def score(payload, response):\n    return 1.0\n")
    assert source_hash("mine.rewards.short:score", [str(tmp_path)]) != ""
    assert source_hash("mine.rewards.long:score", [str(tmp_path)]) == ""
