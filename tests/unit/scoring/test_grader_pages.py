"""What pages, examples and recipes say of the graders is so."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml
from brorl_graders.environments.protocol import Action, Step
from brorl_graders.environments.registry import ENVIRONMENTS, make_environment
from brorl_graders.verifiers.code import code
from brorl_graders.verifiers.registry import VERIFIERS

from graders.tests.support.names import allow_also
from graders.tests.support.play import agent_played
from scripts import verifiers_page
from tests.support.source_tree import ROOT

pytestmark = pytest.mark.slow

QUESTION = {"text": "2 + 2 =", "verifier": "exact_match", "payload": {"answer": "4"}}


def test_every_verifier_is_described_for_users() -> None:
    text = (ROOT / "docs" / "reference" / "verifiers.md").read_text(encoding="utf-8")
    assert [name for name in VERIFIERS if f"`{name}`" not in text] == []


def test_the_page_of_built_in_verifiers_is_current() -> None:
    assert verifiers_page.PAGE.read_text(encoding="utf-8") == verifiers_page.page(), "run `make docs`"


def test_the_pages_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "howto" / "environments.md").read_text(encoding="utf-8")
    source, _ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "my_game.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    allow_also(environments=[("my_game:GuessTheNumber", {"highest": 10})])
    game = make_environment("my_game:GuessTheNumber", {"highest": 10})
    assert game.task(12) == {"number": 3}
    assert game.reset({"number": 3}, 0) == "Guess my number from 1 to 10. Write digits only."
    assert [game.step(Action(text)) for text in ("2", "5", "3")] == [
        Step("higher"),
        Step("lower"),
        Step(reward=1.0, terminated=True),
    ]


def test_the_page_names_every_environment() -> None:
    page = (ROOT / "docs" / "howto" / "environments.md").read_text(encoding="utf-8")
    assert [name for name in ENVIRONMENTS if f"| `{name}` |" not in page] == []


def test_the_table_of_environments_has_their_settings() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith("| `agent` |")]
    assert row.startswith('| `agent` | `run=""`, `command=""`, `max_turns=8` | An environment that runs an agent,')


def test_the_pages_agent_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "howto" / "environments.md").read_text(encoding="utf-8")
    _, source = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "page_agent.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    _, steps = agent_played({"run": "page_agent:run"}, [Action("5"), Action("4")], QUESTION)
    assert steps == [Step(({"role": "user", "content": "No."},)), Step(reward=1.0, terminated=True)]


def test_the_example_of_an_agent_finds_the_endpoint_in_its_environment() -> None:
    command = f"{sys.executable} {ROOT / 'examples' / 'agent.py'}"
    actions = [Action(f"<answer>{number}</answer>") for number in (5, 4)]
    first, steps = agent_played({"command": command}, actions, QUESTION)
    assert first == ({"role": "user", "content": "2 + 2 ="},)
    assert steps == [Step(({"role": "user", "content": "No."},)), Step(reward=1.0, terminated=True)]


def test_starter_code_of_live_code_bench_has_the_names_that_it_uses() -> None:
    recipe = yaml.safe_load((ROOT / "conf" / "evaluation.yaml").read_text(encoding="utf-8"))
    benchmarks = {benchmark["name"]: benchmark for benchmark in recipe["evaluation"]["benchmarks"]}
    options = benchmarks["livecodebench"]["verifier_options"]
    payload = {"inputs": ["[3, 1, 2]\n2"], "outputs": ["3"], "fn_name": "largest", **options}
    starter = "class Solution:\n    def largest(self, a: List[int], k: Optional[int] = None) -> int:\n"
    program = f"{starter}        return nlargest(1, a)[0] if k else -inf"
    earned, reason = code.score(payload, f"```python\n{program}\n```")
    assert earned == 1.0
    assert reason == "imported for the program: List, Optional, inf, nlargest"
