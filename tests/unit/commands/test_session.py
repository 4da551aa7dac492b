"""The Python front door without engines: what it asks of the settings, what it refuses, and its loop on fakes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nemo_brorl import Session, train
from nemo_brorl.commands import session as front_door
from nemo_brorl.commands.run import sized
from nemo_brorl.commands.trackers import MetricFan
from nemo_brorl.commands.train import resume
from nemo_brorl.config.load import CommandLine, load_config, to_yaml
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import BroRLError, CheckpointError, ConfigError, DataError, StarvationError, VerifierError
from nemo_brorl.core.start_report import OnStage, StageReport
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.prompts.sources import Sources
from nemo_brorl.prompts.stream import PromptStream
from nemo_brorl.rollouts.carried_groups import CarriedGroups
from nemo_brorl.training.checkpoint import Checkpoints, RunState
from tests.support.fakes import FailingVerifier, FakeVerifier
from tests.support.loop import fake, make_trainer, small_config
from tests.support.source_tree import ROOT

MODEL = ROOT / "models" / "sums"
ROWS = [{"prompt": f"{number}+1=", "answer": str(number + 1)} for number in range(20)]


def right(row: Any, response: str) -> float:
    return float(str(row["answer"]) in response)


def checked(run: Path, reward: Any = right, data: Any = ROWS, settings: Any = (), **sections: Any) -> BroRLConfig:
    """The settings of a session up to where its processes would start."""
    texts = [*front_door._texts(settings), *front_door._texts(sections)]
    with front_door._checked(MODEL, reward, data, texts, "your_model", run) as (config, _):
        return config


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys, nemo_brorl; print([name for name in sys.modules if name.startswith(('nemo_brorl.', 'numpy'))])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_settings_are_a_mapping_by_dotted_name_or_section_or_texts(tmp_path: Path) -> None:
    by_name = {"rollouts.num_per_prompt": 16, "policy.optim.lr": 2e-5}
    by_section = {"rollouts": {"num_per_prompt": 16}, "policy": {"optim": {"lr": 2e-5}}}
    by_text = ["rollouts.num_per_prompt=16", "policy.optim.lr=2e-5"]
    configs = [checked(tmp_path, settings=given) for given in (by_name, by_section, by_text)]
    configs.append(checked(tmp_path, **by_section))
    for config in configs:
        assert (config.rollouts.num_per_prompt, config.policy.optim.lr) == (16, 2e-5)


@pytest.mark.parametrize(
    "value",
    [
        "plain",
        "it's",
        "a, b=c",
        "back\\slash\\",
        "\\'",
        "line\nbreak",
        "[x]",
        "null",
        "5",
        " blank ",
        "",
        "ü – “quoted”",
    ],
)
def test_texts_arrive_as_they_are(value: str) -> None:
    [text] = front_door._texts({"data.system_prompt": value})
    assert load_config("your_model", [text]).data.system_prompt == value


def test_lists_mappings_and_null_arrive_as_they_are() -> None:
    given = {
        "rewards.timeouts": {"my_reward:score": 30.0, "code": 5.0},
        "evaluation.pass_at_k": [2, 4],
        "data.tasks": [{"name": "gcd", "config": {"max_value": 9}}],
        "data.system_prompt": None,
        "dynamic_sampling.enabled": False,
    }
    config = load_config("your_model", list(front_door._texts(given)))
    assert config.rewards.timeouts == {"my_reward:score": 30.0, "code": 5.0}
    assert (config.evaluation.pass_at_k, config.data.system_prompt) == ([2, 4], None)
    assert (config.data.tasks[0].config, config.dynamic_sampling.enabled) == ({"max_value": 9}, False)


def test_rows_are_a_file_of_the_run_folder_unless_no_run_begins(tmp_path: Path) -> None:
    rows = [{"prompt": "2+3=", "answer": np.int64(5), "steps": np.arange(2)}, *ROWS]
    with front_door._checked(MODEL, right, iter(rows), [], "your_model", tmp_path / "run") as (config, line):
        assert config.data.path == str(tmp_path / "run" / "questions.jsonl")
        first = Path(config.data.path).read_text().splitlines()[0]
        assert json.loads(first) == {"prompt": "2+3=", "answer": 5, "steps": [0, 1]}
        assert load_config(*line) == config
    assert not (tmp_path / "run").exists()


def test_columns_that_json_cannot_hold_are_left_out_and_named_and_dates_are_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    row = {"prompt": "2+3=", "answer": Decimal("5.0"), "made": date(2026, 11, 30), "picture": b"x", "tags": {1}}
    assert json.loads(front_door._lines([row])) == {"prompt": "2+3=", "answer": "5.0", "made": "2026-11-30"}
    assert "the column picture of the data is left out: it holds a value of type bytes" in caplog.text
    assert "the column tags of the data is left out" in caplog.text


class Dataset:
    """What a session reads of a `datasets.Dataset`: it is no list and no mapping, and yields its rows."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns = columns
        self.column_names = [*columns]

    def __len__(self) -> int:
        return len(self.columns[self.column_names[0]])

    def __getitem__(self, key: int | str) -> Any:
        return self.columns[key] if isinstance(key, str) else {name: self.columns[name][key] for name in self.columns}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[number] for number in range(len(self)))


class DatasetDict(dict[str, Dataset]):
    """Splits by name, as `datasets.load_dataset` returns them without `split=`."""


def test_the_rows_of_a_dataset_are_taken_like_a_list_of_rows(tmp_path: Path) -> None:
    dataset = Dataset({name: [row[name] for row in ROWS] for name in ROWS[0]})
    files = []
    for data in (ROWS, dataset):
        with front_door._checked(MODEL, right, data, [], "your_model", tmp_path) as (config, _):
            files.append(Path(config.data.path or "").read_text())
    assert files[0] == files[1] == "".join(json.dumps(row) + "\n" for row in ROWS)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"data": DatasetDict(train=Dataset({"prompt": ["1+1="]}))},
            "data is of type DatasetDict: pass a list of rows",
        ),
        ({"data": []}, "data has no rows"),
        ({"data": "questions.jsonl"}, "data is of type str: pass a list of rows"),
        ({"data": {"prompt": "1+1="}}, "data is of type dict: pass a list of rows"),
        ({"data": 7}, "data is of type int"),
        ({"data": [ROWS[0], "1+1="]}, "data[1] is of type str: pass a mapping"),
        ({"reward": 1.0}, "reward=1.0 is of type float and no function"),
        ({"reward": lambda text: 1.0}, "it takes (text) and is called with (payload, response)"),
        ({"reward": "no_such_module:score"}, "there is no module no_such_module"),
        ({"settings": {"rollouts.num_per_promt": 4}}, "Did you mean rollouts.num_per_prompt"),
        ({"settings": {"rollouts": 4}}, "rollouts is a section with settings of its own"),
        ({"settings": ["rollouts.num_per_prompt"]}, "pass a setting as KEY=VALUE"),
        ({"settings": {"rollouts.num_per_prompt": "many"}}, "must be a whole number"),
    ],
)
def test_bad_input_is_refused_and_leaves_no_folder(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(BroRLError) as caught:
        checked(tmp_path / "run", **given)
    assert words in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("model", "data", "words"),
    [
        (ROOT / "no_model_here", ROWS, "no_model_here"),
        (MODEL, [*ROWS, {"question": "1+1=", "answer": "2"}], "questions.jsonl"),
        (MODEL, [{"prompt": {1}, "answer": "2"}], "has no column prompt; it has answer"),
    ],
)
def test_a_model_that_is_no_folder_and_a_row_without_a_question_end_before_ray_starts(
    model: Path, data: Any, words: str, tmp_path: Path
) -> None:
    import ray

    for start in (Session, train):
        with pytest.raises(BroRLError) as caught:
            start(model, right, data, run=tmp_path / "run")
        assert words in str(caught.value)
    assert not ray.is_initialized()
    assert not (tmp_path / "run").exists()


def test_a_loop_of_ones_own_does_not_overlap_sampling_and_training(tmp_path: Path) -> None:
    settings = {"rollouts.overlap": True, "dynamic_sampling.max_staleness": 1}
    with pytest.raises(ConfigError, match=r"rollouts\.overlap=true is for `train`"):
        Session(MODEL, right, ROWS, settings, run=tmp_path / "run")


STAGES: list[tuple[str, float | None]] = []
Make = Callable[..., Session]


@pytest.fixture
def on_fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a session of a run in one folder, whose engines, verifiers and policy are fakes."""

    def make(verifier: FakeVerifier | None = None, reward: Any = right, **settings: Any) -> Session:
        @contextlib.contextmanager
        def opened(config: BroRLConfig, line: CommandLine, on_stage: OnStage) -> Iterator[Any]:
            with StageReport(Console(), on_stage).measure("engines"):
                trainer = make_trainer(tmp_path / "run", small_config(max_steps=9), verifier=verifier)
            sinks = MetricFan([])
            trainer.row.sink = sinks
            resume(trainer, sinks, tmp_path / "run", Console())
            tokenizer = SimpleNamespace(prompt_ids=lambda text, system: [1] * len(text), decode=str)
            try:
                yield config, SimpleNamespace(tokenizer=tokenizer), None, trainer
            finally:
                (tmp_path / "ended").touch()

        monkeypatch.setattr(front_door, "_opened", opened)
        STAGES.clear()
        return Session(
            MODEL, reward, ROWS, settings, run=tmp_path / "run", on_stage=lambda *stage: STAGES.append(stage)
        )

    return make


def test_a_loop_of_six_lines_trains_and_writes_metrics_and_a_checkpoint(on_fakes: Make, tmp_path: Path) -> None:
    with on_fakes() as session:
        while session.step < 2:
            groups = session.sample()
            metrics = session.update(groups)
        assert session.save(tmp_path / "hf") == tmp_path / "hf"
        assert fake(session._trainer).exports == [tmp_path / "hf"]
    # Two prompts a step, eight rollouts each: every one of train/0 is right, and every second of train/1.
    assert [len(group.rewards) for group in groups] == [8, 8]
    assert [(name, seconds is None) for name, seconds in STAGES] == [("engines", True), ("engines", False)]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[1]["reward/mean"] == metrics["reward/mean"]
    assert rows[0]["reward/mean"] == 0.75
    assert rows[0]["dynamic_sampling/keep_rate"] == 0.5
    assert "validation/pass_at_1" not in rows[1]
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_2"]


def test_a_loop_goes_on_where_an_earlier_one_was_closed(on_fakes: Make, tmp_path: Path) -> None:
    with on_fakes() as session:
        for _ in range(3):
            session.update(session.sample())
        weight = fake(session._trainer).weight
    with on_fakes() as session:
        assert (session.step, fake(session._trainer).weight) == (3, weight)
        assert [group.prompt.uid for group in session.sample(1)] == ["train/6"]


def test_an_error_in_the_loop_ends_the_processes_and_saves_nothing(on_fakes: Make, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), on_fakes() as session:
        session.update(session.sample())
        raise ZeroDivisionError
    assert (tmp_path / "ended").exists()
    assert not (tmp_path / "run" / "checkpoints").exists()
    with on_fakes() as session:
        assert session.step == 0


def test_a_second_session_waits_for_the_first_to_be_closed(on_fakes: Make, tmp_path: Path) -> None:
    session = on_fakes()
    with pytest.raises(ConfigError, match="a session is open in this process"):
        on_fakes()
    session.sample()
    session.close()
    session.close()
    with pytest.raises(ConfigError, match="this session is closed"):
        session.sample()
    on_fakes().close()


def test_groups_that_teach_nothing_make_no_step(on_fakes: Make, tmp_path: Path) -> None:
    with on_fakes(FakeVerifier(period=1)) as session:
        assert session.update(session.sample()) == session.update([]) == {}
        assert (session.step, fake(session._trainer).plans) == (0, [])
        with pytest.raises(StarvationError, match="none of the last 83 groups is informative"):
            while session.step < 1:
                session.update(session.sample(num_prompts=9))
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_reward_that_fails_on_all_responses_ends_the_loop_with_its_words(on_fakes: Make) -> None:
    words = r"no response could be scored.*KeyError: 'answr' \(notebook:3\)"
    failing = FailingVerifier(range(8), "KeyError: 'answr' (notebook:3)")
    with on_fakes(failing) as session, pytest.raises(VerifierError, match=words):
        session.sample()


def test_as_many_prompts_and_rollouts_as_the_call_says(on_fakes: Make) -> None:
    with on_fakes() as session:
        groups = session.sample(num_prompts=5, num_per_prompt=4)
        assert [len(group.rewards) for group in groups] == [4] * 5
        assert session.update(groups)["rollouts/group_size"] == 4.0
        # Those of train/1, 2 and 4 disagree: train/0 and train/3 are all right.
        assert len(fake(session._trainer).plans[0].groups) == 3


def test_a_question_that_is_asked_again_draws_other_numbers(on_fakes: Make) -> None:
    with on_fakes() as session:
        asked: list[Any] = []
        generate = session._trainer.parts.generator.generate
        session._trainer.parts.generator.generate = lambda requests: asked.extend(requests) or generate(requests)  # type: ignore[method-assign]
        assert session.ask("1+1=", num=3) == session.ask("1+1=", num=3, temperature=0.5)
        assert len(session.ask("1+1=", num=3)) == 3
    assert len({request.seed for request in asked}) == 3
    assert [request.sampling.temperature for request in asked] == [1.0, 0.5, 1.0]
    with on_fakes() as session, pytest.raises(DataError, match=r"300 tokens, data\.max_prompt_tokens=256"):
        session.ask("1" * 300)


def weighted(weight: float) -> Callable[[Any, str], float]:
    """A reward that is a closure over a weight."""
    return lambda row, response: weight * right(row, response)


def stream_of(run: Path, weight: float, **settings: Any) -> PromptStream:
    """The questions of a session whose reward is a closure over a weight."""
    texts = [*front_door._texts(settings)]
    with front_door._checked(MODEL, weighted(weight), ROWS, texts, "your_model", run) as (config, _):
        return PromptStream(Sources(config.data).split("train", 1), load_tokenizer(MODEL), config.data)


def test_a_run_goes_on_with_the_same_function_alone_unless_the_settings_accept_another(tmp_path: Path) -> None:
    state = stream_of(tmp_path, 1.0).state_dict()
    stream_of(tmp_path, 1.0).load_state_dict(state)
    with pytest.raises(CheckpointError, match=r"\(the function reward=\).*data\.changed_rows=accept"):
        stream_of(tmp_path, 0.5).load_state_dict(state)
    stream = stream_of(tmp_path, 0.5, **{"data.changed_rows": "accept"})
    stream.load_state_dict(state)
    assert stream.accepted_changes == ["the function reward="]


def saved_run(run: Path, max_steps: int) -> None:
    """The files of a run that stopped after step 3, with a reward of weight 1."""
    state = {"sampling": {"prompts": stream_of(run, 1.0).state_dict()}}
    checkpoints = Checkpoints(run / "checkpoints", keep=1)
    (checkpoints.begin(RunState(3, state, CarriedGroups())) / "weights").touch()
    checkpoints.commit(3)
    (run / "metrics.jsonl").write_text('{"step": 3, "reward/mean": 0.5}\n')
    with front_door._checked(MODEL, weighted(1.0), ROWS, [f"trainer.max_steps={max_steps}"], "your_model", run) as made:
        (run / "config.yaml").write_text(to_yaml(sized(made[0], Console())[0]))


@pytest.mark.parametrize("max_steps", [3, 9])
def test_another_function_or_other_rows_end_a_resume_before_processes_start_also_of_a_finished_run(
    max_steps: int, tmp_path: Path
) -> None:
    settings, stages = {"trainer.max_steps": max_steps}, set()

    def resume_with(weight: float, rows: Any) -> None:
        on_stage = lambda name, seconds: stages.add(name)  # noqa: E731
        train(MODEL, weighted(weight), rows, settings, run=tmp_path, on_stage=on_stage)

    saved_run(tmp_path, max_steps)
    with pytest.raises(CheckpointError, match=r"\(the function reward=\).*data\.changed_rows=accept"):
        resume_with(0.5, ROWS)
    with pytest.raises(CheckpointError, match=r"\(data\.path: .*\).*data\.changed_rows=accept"):
        resume_with(1.0, [*ROWS, {"prompt": "20+1=", "answer": "21"}])
    assert len((tmp_path / "questions.jsonl").read_text().splitlines()) == len(ROWS)
    assert stages == ({"imports", "inputs"} if max_steps == 9 else set())


def test_a_finished_run_is_returned_for_its_own_function_and_for_one_that_the_settings_accept(tmp_path: Path) -> None:
    saved_run(tmp_path, max_steps=3)
    for weight, changed_rows in ((1.0, "refuse"), (0.5, "accept")):
        settings = {"trainer.max_steps": 3, "data.changed_rows": changed_rows}
        rows = train(MODEL, weighted(weight), ROWS, settings, run=tmp_path)
        assert rows == [{"step": 3, "reward/mean": 0.5}]


def test_the_run_folder_holds_a_hash_of_the_function_and_no_pickle(on_fakes: Make, tmp_path: Path) -> None:
    marker = "known to this closure alone"
    with on_fakes(reward=lambda row, response: float(response == marker)) as session:
        session.update(session.sample())
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 3
    assert [path.name for path in files if marker.encode() in path.read_bytes()] == []


def test_a_finished_run_returns_its_metrics_and_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    folder = Checkpoints(run / "checkpoints", keep=1).begin(RunState(3, {}, CarriedGroups()))
    (folder / "weights").touch()
    Checkpoints(run / "checkpoints", keep=1).commit(3)
    (run / "metrics.jsonl").write_text('{"step": 3, "reward/mean": 0.5}\n')
    (run / "config.yaml").write_text(to_yaml(checked(run, **{"trainer.max_steps": 3})))
    rows = train(MODEL, right, ROWS, trainer={"max_steps": 3}, run=run)
    assert rows == [{"step": 3, "reward/mean": 0.5}]
