"""A run whose last step is saved says so, from its checkpoints alone."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import pytest

from graders.tests.support.names import allow_also
from nemo_brorl.commands import train as command
from nemo_brorl.config.data import DataConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.prompts.sources import Sources
from nemo_brorl.prompts.stream import PromptStream
from nemo_brorl.rollouts.carried_groups import CarriedGroups
from nemo_brorl.training.checkpoint import Checkpoints, RunState
from nemo_brorl.training.finished_run import finished_line, saved_step
from nemo_brorl.training.run_folder import claim_run_folder
from tests.support.loop import make_trainer, small_config
from tests.unit.prompts.files import write_jsonl
from tests.unit.prompts.test_stream import word_tokenizer


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six steps, validated after each third one."""
    folder = tmp_path_factory.mktemp("runs") / "a run"
    make_trainer(folder, small_config()).fit()
    return folder


def test_a_finished_run_names_its_steps_its_score_and_what_to_do_next(finished: Path) -> None:
    line = finished_line(finished, 6, "trainer.max_steps")
    assert line is not None
    assert line.startswith(f"{finished} is complete: 6 of 6 steps, ")
    assert "→" in line
    assert "More: trainer.max_steps=12." in line
    assert line.endswith(f"Look: brorl report {shlex.quote(str(finished))}")


def test_a_run_with_steps_left_goes_on(finished: Path) -> None:
    assert finished_line(finished, 7, "trainer.max_steps") is None
    assert finished_line(finished / "nowhere", 6, "trainer.max_steps") is None


def test_fewer_steps_than_were_made_is_said(finished: Path) -> None:
    line = finished_line(finished, 4)
    assert line is not None
    assert "6 steps, 4 were asked for" in line
    assert "More" not in line


def test_a_last_checkpoint_without_its_marker_does_not_count(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "checkpoints", tmp_path / "checkpoints")
    assert saved_step(tmp_path / "checkpoints") == 6
    (tmp_path / "checkpoints" / "step_6" / "COMPLETE").unlink()
    assert saved_step(tmp_path / "checkpoints") == 4


def test_brorl_train_ends_before_it_looks_at_model_or_machine(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = begun(BroRLConfig(), finished)
    monkeypatch.setattr(command, "sized", None)  # would fail when called
    monkeypatch.setitem(sys.modules, "nemo_brorl.prompts.sources", None)  # takes seconds for generated tasks
    assert command.train(config, None) == 0  # type: ignore[arg-type]  # the command line is not read
    assert "is complete: 6 of 6 steps" in capsys.readouterr().out


def begun(config: BroRLConfig, run: Path) -> BroRLConfig:
    config.policy.model = "no such model"
    config.trainer.max_steps = 6
    config.exp_manager.explicit_log_dir = str(run)
    claim_run_folder(config)
    return config


def test_brorl_train_refuses_other_rows_and_other_code_than_those_of_a_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pays_at_the_end.py").write_text("def score(payload, response): return 1.0\n")
    allow_also(verifiers=["pays_at_the_end:score"])
    rows = [{"prompt": f"{n} + 1", "answer": str(n + 1)} for n in range(20)]
    data = DataConfig(source="jsonl", path=str(write_jsonl(tmp_path / "rows.jsonl", rows)))
    config = begun(BroRLConfig(data=data), run)
    prompts = PromptStream(Sources(data).split("train", config.trainer.seed), word_tokenizer(), data)
    checkpoints = Checkpoints(run / "checkpoints", keep=1)
    held = RunState(6, {"sampling": {"prompts": prompts.state_dict()}}, CarriedGroups())
    (checkpoints.begin(held) / "weights").touch()
    checkpoints.commit(6)
    assert (command.finished_run(config) or "").startswith(f"{run} is complete")
    (tmp_path / "pays_at_the_end.py").write_text("def score(payload, response): return 0.0\n")
    with pytest.raises(CheckpointError, match=r"the source of pays_at_the_end:score.*data\.changed_rows=accept"):
        command.finished_run(config)
    write_jsonl(tmp_path / "rows.jsonl", [*rows[:-1], {"prompt": "19 + 1", "answer": "21"}])
    with pytest.raises(CheckpointError, match=r"data\.path: "):
        command.finished_run(config)
    config.data.changed_rows = "accept"
    assert (command.finished_run(config) or "").startswith(f"{run} is complete")


def test_a_state_that_cannot_be_read_costs_the_score_alone(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "checkpoints", tmp_path / "checkpoints")
    state = tmp_path / "checkpoints" / "step_6" / "state.json"
    state.write_text("{" + " " * (state.stat().st_size - 1))
    line = finished_line(tmp_path, 6)
    assert line is not None
    assert "6 of 6 steps. Look" in line
