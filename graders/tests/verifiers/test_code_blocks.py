"""Right programs in the forms in which models write responses earn 1, wrong ones in the same forms nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from brorl_graders.base.settings import CodeLimits
from brorl_graders.verifiers.code import code
from brorl_graders.verifiers.code.code import extract_program
from brorl_graders.verifiers.code.scripts import usual_imports

pytestmark = pytest.mark.slow


def indented(text: str, prefix: str) -> str:
    return "\n".join(prefix + line for line in text.split("\n"))


LABELS = [
    "python",
    "Python",
    "PYTHON",
    "py",
    "python3",
    "py3",
    "",
    " python",
    "python ",
    "python:solution.py",
    'python title="solution.py"',
    "python {.numberLines}",
    "{.python}",
    "{python}",
    "{.python .numberLines}",
    'python linenums="1"',
    "python3.11",
    "Python 3",
    "solution.py",
    "python\r",
]
# %s is the block.
FRAMES = {
    "alone": "%s",
    "between texts": "Here is my solution:\n\n%s\n\nIt takes O(n) time.",
    "right behind a text": "Answer:\n%s\nDone.",
    "behind thinking": "<think>\nMaybe `f`?\n```python\nprint('no')\n```\n</think>\n\n%s",
    "in answer tags": "<answer>\n%s\n</answer>",
    "under a heading": "## Solution\n\n%s\n\n## Complexity\n\n- Time: O(1)\n",
    "behind a first attempt": "```python\nraise SystemExit(1)\n```\nThat fails. Instead:\n%s",
    "before what it prints": "%s\n\nOutput:\n```\n3\n```",
    "before a shell command": "%s\n\nRun it:\n```bash\npython solution.py\n```",
    "behind other code": "```cpp\nint main() {}\n```\nIn Python:\n%s",
    "with a byte order mark": "\ufeff%s",
    "with carriage returns": "CRLF%s",
    "behind code in a line": "Use `sum` and ``map``.\n%s\nDo not use ``` here.",
    "behind a formula": "$$\\sum_i a_i$$\n%s\n$\\blacksquare$",
    "between rules": "---\n%s\n---",
    "behind a table": "| a | b |\n|---|---|\n| 1 | 2 |\n%s",
}
# How a block is written, by its label and its program.
BLOCKS: dict[str, Callable[[str, str], str]] = {
    "backticks": lambda label, program: f"```{label}\n{program}\n```",
    "tildes": lambda label, program: f"~~~{label}\n{program}\n~~~",
    "four backticks": lambda label, program: f"````{label}\n{program}\n````",
    "blank lines": lambda label, program: f"```{label}\n\n\n{program}\n\n\n```",
    "blanks behind the fence": lambda label, program: f"```{label}  \n{program}\n```  ",
    "in a list": lambda label, program: "1. So:\n\n" + indented(f"```{label}\n{program}\n```", "   "),
    "in a deep list": lambda label, program: "- a\n  - b\n" + indented(f"```{label}\n{program}\n```", "    "),
    "on a list's mark": lambda label, program: f"- ```{label}\n" + indented(f"{program}\n```", "  "),
    "indented by tabs": lambda label, program: indented(f"```{label}\n{program}\n```", "\t"),
    "program indented alone": lambda label, program: f"```{label}\n" + indented(program, "    ") + "\n```",
    "in a quote": lambda label, program: indented(f"```{label}\n{program}\n```", "> "),
    "with a mark of its own": lambda label, program: f"```{label}\n\ufeff{program}\n```",
}
READ = "map(int, input().split())"
RIGHT = {
    "prints": f"a, b = {READ}\nprint(a + b)",
    "reads a file": "numbers = open('/dev/stdin').read().split()\nprint(sum(map(int, numbers)))",
    "main": f"def main():\n    a, b = {READ}\n    print(a + b)\n\nif __name__ == '__main__':\n    main()",
    "future": f"from __future__ import annotations\ndef f(a: int | str) -> int: return sum(a)\nprint(f({READ}))",
    "line separators": f"t = '\u2028\x0b\x0c\x1c\x85'\nassert len(t) == 5\nprint(sum({READ}))",
    "fence in a text": (
        f"def f(a):\n    '''Sum.\n\n    ```python\n    f([1])\n    ```\n    '''\n    return sum(a)\nprint(f({READ}))"
    ),
    "own source": (
        f"import inspect\ndef f(a):\n    return sum(a)\nassert 'sum(a)' in inspect.getsource(f)\nprint(f({READ}))"
    ),
    "processes": (
        "from multiprocessing import Pool\nif __name__ == '__main__':\n    with Pool(2) as pool:\n"
        "        print(sum(pool.map(int, input().split())))"
    ),
}
WRONG = "a, b = map(int, input().split())\nprint(a - b)"
PAYLOAD = {"tests": {"inputs": ["1 2"], "outputs": ["3"]}, "setup": "from typing import *"}


def responses(program: str) -> Iterator[tuple[str, str]]:
    """(Name, response): every label alone and between texts, every frame with every block."""
    forms = [(label, "alone", "backticks") for label in LABELS]
    forms += [("python", frame, block) for frame, block in itertools.product(FRAMES, BLOCKS)]
    forms += [(label, "between texts", "tildes") for label in LABELS]
    for label, frame, block in forms:
        response = FRAMES[frame].replace("%s", BLOCKS[block](label, program))
        if response.startswith("CRLF"):
            response = response.removeprefix("CRLF").replace("\n", "\r\n")
        yield f"{label!r} {frame}, {block}", response


@pytest.fixture(scope="module", autouse=True)
def settings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(code.VARIABLE, "")
        code.configure(CodeLimits(test_timeout_s=30), 60)
        yield
        code.close()


def test_right_programs_earn_all_in_every_form() -> None:
    forms = list(responses(RIGHT["prints"]))
    wronged = [name for name, response in forms if code.score(PAYLOAD, response) != 1.0]
    assert len(forms) >= 200 and wronged == []


def test_wrong_programs_earn_nothing_in_any_form() -> None:
    assert [name for name, response in responses(WRONG) if code.score(PAYLOAD, response) != 0.0] == []


@pytest.mark.parametrize("name", RIGHT)
def test_right_programs_of_every_kind_earn_all(name: str) -> None:
    forms = [response for form, response in responses(RIGHT[name]) if form.startswith("'python' alone")]
    assert len(forms) >= 10
    assert [code.score(PAYLOAD, response) for response in forms] == [1.0] * len(forms)


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("```python\na\n```python\nb\n```", "b\n"),  # an end is missing
        ("```python\na\n```\n```python\nb", "a\n"),  # cut off
        ("```text\na\n```", None),
        ("~~~\na\n```\nb\n~~~", "a\n```\nb\n"),
        ("````python\na\n```\nb\n````", "a\n```\nb\n"),
        ("no block", None),
    ],
)
def test_blocks_end_where_their_fence_says(response: str, program: str | None) -> None:
    assert extract_program(response) == program


def test_the_block_that_defines_what_is_tested_comes_before_examples_of_its_use() -> None:
    response = "```python\ndef f(x): return x\n```\nFor example:\n```python\nprint(f(1))\n```"
    payload: dict[str, Any] = {"tests": ["assert f(2) == 2"]}
    assert code.score(payload, response) == 1.0
    assert extract_program(response) == "print(f(1))\n"


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("It is ```python\n```python\nprint(6)", "print(6)\n"),
        ("> ```py\n> print(6)", "print(6)\n"),
        ("[PYTHON]print(6)[/PYTHON]", "print(6)\n"),
        ("[PYTHON]print(5)[/PYTHON] or rather [PYTHON]print(6)", "print(6)\n"),
        ("<code>print(6)</code>", "print(6)\n"),
        ("```python\nprint('<code>5</code>')\n```", "print('<code>5</code>')\n"),
        ("```python\nprint(6)\n```\nThen I try\n```python\nprint(", "print(6)\n"),
        ("```js\nprint(6)", None),
    ],
)
def test_a_program_without_a_complete_block_is_read_to_its_end(response: str, program: str | None) -> None:
    assert extract_program(response) == program


def test_usual_names_are_imported_for_a_program_that_has_them_not() -> None:
    program = "def f(x: int) -> List[int]:\n    heap = [2 * x]\n    heapq.heapify(heap)\n    return deepcopy(heap)\n"
    assert list(usual_imports(program)) == ["List", "deepcopy", "heapq"]
    assert usual_imports("import heapq\nfrom copy import deepcopy\nList = list\n" + program) == {}
    assert usual_imports(program, "import heapq, copy\nList, deepcopy = list, copy.copy") == {}
    assert usual_imports("def f(:") == {}
    payload = {"tests": {"fn_name": "f", "inputs": [[3]], "outputs": [[6]]}}
    assert code.score(payload, f"```python\n{program}```") == (1.0, "imported for the program: List, deepcopy, heapq")


def test_a_program_may_print_a_number_of_any_length() -> None:
    payload = {"inputs": ["5000\n"], "outputs": ["1" + 5000 * "0" + "\n"]}
    assert code.score(payload, "```python\nprint(10 ** int(input()))\n```") == 1.0
    assert code.score(payload, "```python\nprint(10 ** int(input()) + 1)\n```") == 0.0
