"""Files of a stranger name code, addresses and secrets: rows, benchmarks, stored runs, checkpoints, environments."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from brorl_graders.base.names import allowed
from brorl_graders.base.payload import Deadlines
from brorl_graders.base.settings import Endpoint
from brorl_graders.environments.agent import Agent
from brorl_graders.environments.host import EpisodeHost
from brorl_graders.environments.protocol import EpisodeStep
from brorl_graders.processes.process_pool import ProcessPool
from brorl_graders.services.remote_scores import RemoteScores, ServiceCall
from brorl_lab.commands import replay
from brorl_lab.commands.rescore import prompt_for_verifier

from graders.tests.support.names import allow_also
from graders.tests.support.scoring_service import scores_by, serving
from lab.tests.commands.test_trusted_functions import foreign_run
from nemo_brorl.config.data import SourceConfig
from nemo_brorl.config.load import load_config
from nemo_brorl.config.rewards import OwnVerifierConfig, ServicesConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import BroRLError, ConfigError, DataError, NotAllowedError
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.evaluation.benchmarks import read_benchmarks
from nemo_brorl.prompts.file_tables import first_rows
from nemo_brorl.prompts.questions import BadRow, Question
from nemo_brorl.prompts.row_formats import columns_of, row_formats
from nemo_brorl.prompts.sources import make_source
from nemo_brorl.scoring.grader_settings import configure
from nemo_brorl.types import Prompt
from tests.support.source_tree import ROOT

pytestmark = pytest.mark.slow

MODULE = "code_of_a_stranger"
NAME = f"{MODULE}:score"
SECRET = "s3cr3t-of-this-test"
NO_ENGINES = ("generation.max_model_len=2048", "data.max_prompt_tokens=400")


@dataclass(frozen=True)
class Stranger:
    """A module that leaves a mark as soon as it is imported, and files that name it."""

    folder: Path

    @property
    def mark(self) -> Path:
        return self.folder / "mark"

    def rows(self, name: str, *rows: dict[str, Any]) -> Path:
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def settings(self, *overrides: str) -> BroRLConfig:
        """Settings of a run that trusts nobody but this package."""
        config = load_config("brorl_cpu", [*NO_ENGINES, *overrides])
        configure(config)
        return config


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stranger:
    lines = (
        "from pathlib import Path",
        "from brorl_graders.environments.protocol import Environment",
        f"Path({str(tmp_path / 'mark')!r}).touch()",
        "score = lambda payload, response: 1.0",
        "class Game(Environment):",
        "    def reset(self, task, seed): return 'go'",
        "    def step(self, action): return None",
    )
    (tmp_path / f"{MODULE}.py").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    return Stranger(tmp_path)


ROW = {"prompt": "2+2?", "answer": "4", "verifier": NAME}
HONEST = {"prompt": "1+1?", "answer": "2"}


def score(verifier: str, payload: dict[str, Any], response: str = "4") -> float | None:
    """Score a response as a worker does, in a child process."""
    pool = ProcessPool(Deadlines(20.0))
    try:
        (found,) = pool.score(verifier, payload, [response])
        return found
    finally:
        pool.close()


def train_question(stranger: Stranger, row: dict[str, Any], *overrides: str) -> Question:
    path = stranger.rows("train", row)
    files = ("data.source=jsonl", f"data.path={path}", "data.held_out_fraction=0")
    config = stranger.settings(*files, *overrides)
    return make_source(config.data, "train", 1).question(0)


def a_row(stranger: Stranger) -> None:
    question = train_question(stranger, ROW, "data.verifier=math")
    score(question.verifier, dict(question.payload))


def a_row_that_may_choose(stranger: Stranger) -> None:
    question = train_question(stranger, ROW, "data.columns.verifier=verifier")
    score(question.verifier, dict(question.payload))


def a_part_of_a_composite(stranger: Stranger) -> None:
    row = {**HONEST, "parts": [{"verifier": NAME}]}
    question = train_question(stranger, row, "data.verifier=composite", "+data.columns.payload.parts=parts")
    score(question.verifier, dict(question.payload))


def a_held_out_file(stranger: Stranger) -> None:
    train, held_out = stranger.rows("train", HONEST), stranger.rows("held_out", ROW)
    config = stranger.settings("data.source=jsonl", f"data.path={train}", f"data.held_out_path={held_out}")
    question = make_source(config.data, "held_out", 1).question(0)
    score(question.verifier, dict(question.payload))


def a_benchmark(stranger: Stranger) -> None:
    path = stranger.rows("benchmark", ROW)
    config = stranger.settings(f"evaluation.benchmarks=[{{name: b, path: {path}}}]")
    tokenizer = load_tokenizer(ROOT / "models" / "sums")
    (benchmark,) = read_benchmarks(config.evaluation, config.data, config.rollouts, tokenizer)
    score(benchmark.prompts[0].verifier, dict(benchmark.prompts[0].payload))


def a_store(stranger: Stranger) -> None:
    stranger.settings()
    prompt = prompt_for_verifier(Prompt("train/0", "sums", NAME, (1, 2), {"question": "q"}), None, {})
    score(prompt.verifier, dict(prompt.payload))


def a_checkpoint(stranger: Stranger) -> None:
    """Prompts that a checkpoint asks again go to a worker as they were written."""
    stranger.settings()
    score(NAME, {"question": "q"})


def a_replay(stranger: Stranger) -> None:
    run = foreign_run(stranger.folder, "algorithm.loss", NAME)
    replay.main([str(run), "--step", "1"])


def environment_step(stranger: Stranger, name: str, settings: dict[str, Any], task: dict[str, Any]) -> None:
    host = EpisodeHost()
    try:
        host.step([EpisodeStep("train/0", name, settings, task, 7, ("4",))])
    finally:
        host.close()


def an_environment_that_retries(stranger: Stranger) -> None:
    stranger.settings("data.environment=verify_and_retry")
    task = {"text": "2+2?", "verifier": NAME, "payload": {}}
    environment_step(stranger, "verify_and_retry", {}, task)


def an_environment_of_a_checkpoint(stranger: Stranger) -> None:
    stranger.settings("data.environment=mastermind")
    environment_step(stranger, f"{MODULE}:Game", {}, {})


def an_agents_command_of_a_checkpoint(stranger: Stranger) -> None:
    stranger.settings("data.environment=agent", "+data.environment_settings.command=true")
    environment_step(stranger, "agent", {"command": f"touch {stranger.mark}"}, {})


def an_agents_answer(stranger: Stranger) -> None:
    stranger.settings("data.environment=agent", "+data.environment_settings.command=true")
    agent = Agent(command="true")
    agent._task = {"verifier": NAME, "payload": {}}
    agent._reward("4", "4")


WAYS = (
    a_row,
    a_row_that_may_choose,
    a_part_of_a_composite,
    a_held_out_file,
    a_benchmark,
    a_store,
    a_checkpoint,
    a_replay,
    an_environment_that_retries,
    an_environment_of_a_checkpoint,
    an_agents_command_of_a_checkpoint,
    an_agents_answer,
)


@pytest.mark.parametrize("way", WAYS)
def test_code_that_data_names_is_not_run(way: Callable[[Stranger], None], stranger: Stranger) -> None:
    with suppress(BroRLError):
        way(stranger)
    assert not stranger.mark.exists()


def test_the_same_code_runs_where_the_settings_name_it(stranger: Stranger) -> None:
    own = f"rewards.verifiers=[{{name: '{NAME}'}}]"
    question = train_question(stranger, ROW, "data.columns.verifier=verifier", own)
    assert score(question.verifier, dict(question.payload), "anything") == 1.0
    assert stranger.mark.exists()


def test_a_row_that_names_code_ends_the_start_with_row_name_and_setting(stranger: Stranger) -> None:
    """However many bad rows are allowed."""
    with pytest.raises(DataError) as raised:
        train_question(stranger, ROW, "data.columns.verifier=verifier", "data.max_bad_rows=99")
    message = str(raised.value)
    assert "train.jsonl, line 1: verifier 'code_of_a_stranger:score' is not in the settings" in message
    assert "set rewards.verifiers=[{name: 'code_of_a_stranger:score'}]" in message


def test_a_row_chooses_among_the_verifiers_of_this_package(stranger: Stranger) -> None:
    question = train_question(stranger, {**ROW, "verifier": "math"}, "data.columns.verifier=verifier")
    assert question.verifier == "math"


def test_a_row_is_no_verifiers_choice_beside_the_settings_own(stranger: Stranger) -> None:
    with pytest.raises(ConfigError, match="both say who scores a row: set one of them"):
        stranger.settings("data.verifier=math", "data.columns.verifier=verifier")


def test_brackets_without_end_are_a_bad_row_for_whoever_looks_at_a_file(tmp_path: Path) -> None:
    path = tmp_path / "deep.jsonl"
    path.write_text("[" * 200_000 + "\n")
    (row,) = first_rows(path, columns_of(row_formats(SourceConfig()), {}), 20)
    assert isinstance(row, BadRow)


# ---- addresses and keys
@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PROBE_SECRET", SECRET)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return SECRET


def asked_scores(verifier: str, payload: dict[str, Any]) -> list[float | None]:
    remote = RemoteScores(ServicesConfig(max_attempts=1))
    try:
        return remote.judge(ServiceCall(verifier, payload, ()), ["4"]).scores
    finally:
        remote.close()


def test_an_address_that_data_names_is_not_asked(stranger: Stranger, secret: str) -> None:
    stranger.settings()
    refusal = pytest.raises(NotAllowedError, match=r"rewards.services.endpoints=\[{name: NAME, url: 'http://127")
    with serving(scores_by(lambda text: 1.0)) as service, refusal:
        asked_scores(service.url, {"api_key_variable": "PROBE_SECRET"})
    assert service.requests == []


def test_a_payload_names_neither_the_variable_of_a_key_nor_where_it_goes(stranger: Stranger, secret: str) -> None:
    with serving(scores_by(lambda text: 1.0)) as ours, serving(scores_by(lambda text: 0.0)) as theirs:
        allow_also(endpoints=[Endpoint(name="quality", url=ours.url)])
        payload = {"url": theirs.url, "api_key_variable": "PROBE_SECRET", "template": "{answer}", "model": "m"}
        assert asked_scores("quality", payload) == [1.0]
    assert theirs.requests == []
    assert secret not in str(ours.headers)


def test_a_key_goes_to_its_own_address_and_no_other(stranger: Stranger, secret: str) -> None:
    with serving(scores_by(lambda text: 1.0)) as paid, serving(scores_by(lambda text: 1.0)) as free:
        keyed = Endpoint(name="paid", url=paid.url, api_key_variable="PROBE_SECRET")
        allow_also(endpoints=[keyed, Endpoint(name="free", url=free.url)])
        asked_scores("paid", {})
        asked_scores("free", {})
    assert [headers["Authorization"] for headers in paid.headers] == [f"Bearer {secret}"]
    assert ["Authorization" in headers for headers in free.headers] == [False]


# ---- the environment of children
def environment_of(payload: object, response: str) -> tuple[float, str]:
    """Score 1, with the names of all environment variables as the reason."""
    return 1.0, " ".join(os.environ)


OWN = f"{__name__}:{environment_of.__name__}"


def variables_of_a_child(config: BroRLConfig) -> set[str]:
    configure(config)
    pool = ProcessPool(Deadlines(20.0))
    try:
        verdicts = pool.judge(OWN, {}, ["4"])
    finally:
        pool.close()
    assert verdicts.scores == [1.0]
    return set(verdicts.reasons[0].split())


def test_a_grading_child_sees_no_variable_that_nobody_named(monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", SECRET)
    config = BroRLConfig()
    config.rewards.verifiers = [OwnVerifierConfig(OWN)]
    seen = variables_of_a_child(config)
    assert "PATH" in seen
    assert seen.isdisjoint({"RAY_AUTH_TOKEN", "PROBE_SECRET"})


def test_a_grading_child_sees_what_the_settings_name(secret: str) -> None:
    config = BroRLConfig()
    config.rewards.verifiers = [OwnVerifierConfig(OWN)]
    config.rewards.environment_variables = ["PROBE_SECRET"]
    assert "PROBE_SECRET" in variables_of_a_child(config)


def test_an_agents_command_sees_no_variable_that_nobody_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, secret: str
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", SECRET)
    seen = tmp_path / "seen"
    agent = Agent(command=f"sh -c 'env > {seen}'")
    with suppress(Exception):
        asyncio.run(agent.reset({}, 7))
    assert "OPENAI_API_KEY=" in seen.read_text()
    assert SECRET not in seen.read_text()


def test_children_learn_neither_addresses_nor_variables_of_keys() -> None:
    from brorl_graders.base.names import VARIABLE, child_environment

    endpoint = Endpoint(name="judge", url="https://host/v1?key=1", model="m", api_key_variable="KEY")
    allow_also(endpoints=[endpoint])
    assert allowed().endpoints["judge"] == endpoint
    told = json.loads(child_environment()[VARIABLE])["endpoints"]["judge"]
    assert (told["name"], told["url"], told["api_key_variable"]) == ("judge", "", None)
