"""No task of the installed Reasoning Gym runs a response as Python; right answers earn what the library gives them."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any

import pytest
from brorl_graders.processes import child
from brorl_graders.verifiers import exact_match, reasoning_gym
from brorl_graders.verifiers.registry import VERIFIERS

from graders.tests.support.gym_questions import gym_payloads

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of tasks that parse an odd answer
]

MARK = "setattr(__import__('sys'), 'executed_answers', 1)"  # seen in the interpreter when it has run
NUM_QUESTIONS = 18
LIST_TASKS = ("spiral_matrix", "binary_matrix", "n_queens", "string_insertion")
NUMBER_TASKS = ("countdown", "puzzle24")  # of which the library reads 6.0 as two numbers, and lets // divide
SYMPY_TASKS = ("countdown", "puzzle24", "polynomial_multiplication", "simple_integration", "intermediate_integration")

# Each task's default settings and harder ones.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "spiral_matrix": [{}, {"min_n": 12, "max_n": 16}],
    "binary_matrix": [{}, {"min_n": 12, "max_n": 16}],
    "n_queens": [{}, {"n": 6, "max_remove": 5}],
    "string_insertion": [{}, {"min_string_length": 30, "max_string_length": 60}],
    "countdown": [{}, {"min_numbers": 9, "max_numbers": 12, "max_target": 5000}],
    "puzzle24": [{}, {"operators": ["+", "*"]}],
    "polynomial_multiplication": [
        {},
        {"allow_multivariate_polynomials": True, "allow_cross_variable_product": True, "variables": ["a", "b", "x"]},
    ],
    "simple_integration": [{}, {"max_terms": 12, "max_degree": 40, "max_bounds": 1000}],
    "intermediate_integration": [{}, {"linear_upper_bound": 50, "max_linear_degree": 9, "outer_constant_max": 40}],
}


@pytest.fixture(autouse=True)
def no_answer_has_run() -> Iterator[None]:
    yield
    assert vars(sys).pop("executed_answers", None) is None


def task_names() -> list[str]:
    from reasoning_gym.factory import DATASETS

    return sorted(set(DATASETS) - {"composite"})


@cache
def payload_of(name: str) -> Mapping[str, Any]:
    return gym_payloads(name, num=1, seed=1)[0]


@cache
def payloads_of(name: str) -> list[Mapping[str, Any]]:
    drawn = [gym_payloads(name, NUM_QUESTIONS, seed=2, config=config) for config in SETTINGS[name]]
    return list(chain.from_iterable(drawn))


def score(payload: Mapping[str, Any], given: str) -> float:
    return reasoning_gym.score(payload, f"<answer>{given}</answer>")


def library_score(payload: Mapping[str, Any], given: str) -> float:
    """What the task's own scorer gives, without the checks of the verifier. For answers of this file only."""
    from reasoning_gym.factory import create_dataset

    return float(create_dataset(payload["dataset"], **payload["config"], seed=0, size=1).score_answer(given, payload))


def shapes(right: str) -> Iterator[str]:
    """The mark alone, in lists, texts, calls and formulas, and in the place of parts of a right answer."""
    yield from (MARK, f" {MARK} ", f"({MARK})", f"[{MARK}]", f"[[{MARK}]]", f"[[{MARK}, 'Q'], ['_']]", f"({MARK},)")
    yield from (f"<b>{MARK}</b>", f"`{MARK}`", f'"{MARK}"', f'["{MARK}"]', f'{{"a": "{MARK}"}}', f"{{'a': {MARK}}}")
    yield from (f"f'{{{MARK}}}'", f"'{{0}}'.format({MARK})", f"24 + 0*bool({MARK})", f"(lambda: {MARK})()")
    yield from (f"[0 for _ in [{MARK}]]", f"(a := {MARK})", f"x = {MARK}", f"1 if {MARK} else 0")
    yield from (f"{right} + {MARK}", f"{right}\n{MARK}", f"{MARK}\n{right}", f"{right} if {MARK} else 0")
    yield f"[{right}, {MARK}]"
    words = [match.span() for match in re.finditer(r"\w+", right)]
    for start, end in (*words[:2], *words[len(words) // 2 :][:1], *words[-1:]):
        yield right[:start] + MARK + right[end:]


def runs_answers(name: str) -> bool:
    """Whether a task has run the mark, or was about to."""
    payload = payload_of(name)
    own = payload["answer"] if isinstance(payload["answer"], str) else json.dumps(payload["metadata"])
    try:
        for given in shapes(own[:2000]):
            score(payload, given)
    except RuntimeError:
        return True
    return vars(sys).pop("executed_answers", None) is not None


def test_no_task_of_the_library_runs_an_answer() -> None:
    names = task_names()
    assert len(names) > 100
    assert [name for name in names if runs_answers(name)] == []


@pytest.fixture
def gcd_scored_by(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[str], float]], None]]:
    """Puts a function in the place of the gcd task's scorer."""
    from reasoning_gym.factory import DATASETS

    def put(scorer: Callable[[str], float]) -> None:
        monkeypatch.setattr(DATASETS["gcd"][0], "score_answer", lambda self, given, entry: scorer(given))
        reasoning_gym._score_answer.cache_clear()

    yield put
    reasoning_gym._score_answer.cache_clear()


def test_a_task_that_begins_to_run_answers_fails_and_runs_nothing(gcd_scored_by: Callable[..., None]) -> None:
    def scorer(given: str) -> float:
        try:
            return float(eval(given) == 2)
        except (RuntimeError, SyntaxError):
            return 0.0

    gcd_scored_by(scorer)
    assert score(payload_of("gcd"), "2") == 1.0  # a literal does nothing
    with pytest.raises(RuntimeError, match="task gcd runs answers as Python"):
        score(payload_of("gcd"), MARK)
    assert runs_answers("gcd")
    assert eval("1 + int('1')") == 2  # code outside a score may compile


def test_a_task_may_import_a_module(gcd_scored_by: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", "/nowhere")  # so that there is no compiled module
    gcd_scored_by(lambda given: len(importlib.import_module("this").d) / 52)
    assert score(payload_of("gcd"), "2") == 1.0


CHILD = "brorl_graders.processes.child"
TAKEOVER = f"[setattr(__import__('sys').modules['{CHILD}'], 'score_and_reason', (lambda *a: (1.0, '')))]"
ANY = "__import__('unittest.mock').mock.ANY"
FRAME_READ = "__import__('sys')._getframe(1).f_locals['entry']['answer'].split()"
OTHER_FRAME = "__import__('sys')._getframe(2).f_locals['entry']['metadata']['valid_answers'][0]"
ORACLES = (ANY, f"[{ANY}]", FRAME_READ, OTHER_FRAME, f"[{FRAME_READ}]", "answer", "entry['answer']", "[entry]")


def test_a_response_cannot_take_the_scoring_process_over() -> None:
    before, spiral = child.score_and_reason, dict(payload_of("spiral_matrix"))
    try:
        assert score(spiral, TAKEOVER) == 0.0
        assert child.score_and_reason is before
    finally:
        child.score_and_reason = before
    assert exact_match.score({"answer": "5"}, "<answer>7</answer>") == 0.0
    assert VERIFIERS["math"].score({"answer": "5"}, "\\boxed{6}") == 0.0
    assert score(spiral, "<answer>wrong</answer>") == 0.0


@pytest.mark.parametrize("name", [*LIST_TASKS, *SYMPY_TASKS])
@pytest.mark.parametrize("given", ORACLES)
def test_an_answer_that_reads_the_right_one_earns_nothing(name: str, given: str) -> None:
    assert score(payload_of(name), given) == 0.0


@pytest.mark.parametrize("name", [*LIST_TASKS, *SYMPY_TASKS])
def test_the_tasks_own_answers_are_right(name: str) -> None:
    for payload in payloads_of(name):
        assert score(payload, payload["answer"]) == 1.0


def as_list(payload: Mapping[str, Any]) -> str:
    """The right answer as a Python list."""
    rows = [row.split() for row in payload["answer"].splitlines()]
    if payload["dataset"] == "n_queens":
        return repr(rows)
    if payload["dataset"] == "string_insertion":
        return repr(list(payload["answer"]))
    numbers = [[int(cell) for cell in row] for row in rows]
    return repr(numbers if payload["dataset"] == "binary_matrix" else numbers[0])


@pytest.mark.parametrize("name", LIST_TASKS)
def test_lists_earn_what_the_library_gives(name: str) -> None:
    for payload in payloads_of(name):
        given = as_list(payload)
        forms = (
            given,
            given.replace("[", "(").replace("]", ",)"),
            given.replace(", ", ","),
            given.replace("'", '"'),
            f"{given}\n",
        )
        earned = [score(payload, form) for form in forms]
        assert earned == [library_score(payload, form.strip()) for form in forms]
        assert earned[0] == (0.5 if name == "n_queens" else 0.1)


def formulas(right: str) -> Iterator[str]:
    """Other ways to write a right formula, and some wrong ones."""
    spaced = right.replace("*", " * ").replace(" *  * ", "**")
    yield from (f"({right})", right.replace(" ", ""), spaced, f"1*({right})", f"+({right})", f"-(-({right}))")
    yield from (right.replace("+ C", "+ k"), right.replace("+ C", ""), f"({right})/1", right.replace("/", "//"))
    yield from (right.replace("**", "^"), right.replace("*", "×"), f"{right} = 24", right.replace("log", "ln"))
    yield from (right.replace("exp(x)", "E**x"), f"{right}.0", f"{right} + 1")
    yield from (re.sub(r"\*\*(\d+)", r"**(\1)", right), re.sub(r"(\d+)/(\d+)", r"(\1/\2)", right))


def is_integrated(payload: Mapping[str, Any]) -> bool:
    """Whether the entry's own answer is one. A tenth of intermediate_integration's wrap the question in Integral()."""
    return "Integral" not in payload["answer"]


@pytest.mark.parametrize("name", SYMPY_TASKS)
def test_formulas_that_are_right_earn_what_the_library_gives(name: str) -> None:
    for payload in list(filter(is_integrated, payloads_of(name)))[::9]:
        forms = [payload["answer"], *formulas(payload["answer"])]
        if name in NUMBER_TASKS:
            forms = [form for form in forms if "//" not in form and not form.endswith(".0")]
        ours = [score(payload, given) for given in forms]
        theirs = [library_score(payload, given) for given in forms]
        scored = zip(forms, ours, theirs, strict=True)
        assert [form for form, our, their in scored if our not in (their, 0.0) or (our == 0.0 and their == 1.0)] == []
        assert ours.count(1.0) >= 5


BOMBS = (
    *("9**9**9", "(9**999)**999", "((((9**99)**99)**99)**99)", "2**2**2**2**2**2", "x**9**9**9", "9**-9**-9**-99"),
    *("(x - x + 9)**(10**9)", "(x + 1)**(2**40)", "9**(9.9*9**99)", "9" * 10**6, "9" * 5000, "1/0." + "0" * 5000 + "1"),
    *("1e999999999", "1e9", "9.e9", "0xffff", "1_0", "1j", "1 << 10**10", "[0]*10**10", "'a'*10**10"),
    *("[" * 10_000 + "]" * 10_000, "(" * 10_000 + "1" + ")" * 10_000, "(" * 10_000, "-" * 20_000 + "1"),
    *("+".join("1" * 20_000), "**".join("9" * 9000), "sin(" * 9000 + "x" + ")" * 9000),
    *("1," * 10**6, "not " * 5000 + "1"),
    *("[*range(10**10)]", "factorial(10**9)", "gamma(10**9)", "4!", "4!!!!!!!!", "0.[3]"),
)
PROGRAMS = (
    *("lambda: 1", "(lambda x: x)(1)", "[x for x in (1, 2)]", "x.args", "(1).real", "x()", "sin.diff(x)", "sin"),
    *("exec('1')", "N(1)", "S(1)", "sin(x, evaluate=False)", "log(*(1, 2))", "log(**{})", "f'{1}'", "f'{open}'"),
    *("'%s' % 1", "(x := 1)", "1 if 1 else 2", "x[0]", "1; 2", "x = 1", "1 == 1", "1 or 1", "1\n2", "x\\\n+1", "1 # 1"),
    *("True", "None", "1 + False"),
    *("\0", "1\0", "\ud800", "b'a'", "...", "await x", "yield x", "{1: 2}", "{1, 2}", "é", "٣"),
    *("Symbol('x')", "sympify('1')", "parse_expr('1')", "Integer(1)", "open", "print(1)"),
)


@pytest.mark.parametrize("name", [*LIST_TASKS, *SYMPY_TASKS])
def test_bombs_and_programs_earn_nothing_and_raise_nothing(name: str) -> None:
    assert [given[:40] for given in (*BOMBS, *PROGRAMS) if score(payload_of(name), given) != 0.0] == []


ODD = [
    *(("prime_factorization", "abc"), ("prime_factorization", "2 × x"), ("prime_factorization", "9" * 5000)),
    *(("boxnet", "[1]"), ("boxnet", "0"), ("game_of_life", "{}"), ("coin_flip", "1e999")),
    ("propositional_logic", "¬" * 5000),
]


@pytest.mark.parametrize(("name", "given"), ODD)
def test_an_odd_answer_is_a_wrong_one(name: str, given: str) -> None:
    assert score(payload_of(name), given) == 0.0


def test_an_entry_that_lacks_what_its_task_reads_fails() -> None:
    with pytest.raises(KeyError, match="solution"):
        score({**payload_of("mini_sudoku"), "metadata": {}}, "1 2 3 4")
