"""Teachers that the policy cannot learn from are refused before anything starts, each with what to set."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from nemo_brorl.commands import train
from nemo_brorl.commands.teachers import check_teachers, has_checkpoint, rank_settings
from nemo_brorl.config.load import load_config
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError, ModelError
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.rollouts.carried_groups import CarriedGroups
from nemo_brorl.training.checkpoint import Checkpoints, RunState
from nemo_brorl.types import Prompt
from tests.support.source_tree import ROOT

SUMS = ROOT / "models" / "sums"


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SUMS, tmp_path / "teacher"))


def settings(run: Path, *overrides: str) -> BroRLConfig:
    return load_config("sums_cpu", [f"exp_manager.explicit_log_dir={run}", *overrides])


def check(config: BroRLConfig) -> list[Path | None]:
    """Check as a run does before it starts. Returns the folders that ranks then read."""
    asked = [Prompt("0", "chain_sum", "exact_match", (1,), {})]
    check_teachers(config, SUMS, load_tokenizer(SUMS), asked)
    return rank_settings(config, has_checkpoint(config)).references


def change(path: Path, edit: Callable[[Any], Any]) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def test_a_copy_of_the_policy_may_teach(teacher: Path, tmp_path: Path) -> None:
    assert check(settings(tmp_path / "run", f"algorithm.kl.teacher={teacher}")) == [teacher]
    assert check(settings(tmp_path / "run")) == [None]
    assert check(settings(tmp_path / "run", "algorithm.kl.coefficient=0")) == []


def shortened(folder: Path) -> None:
    change(folder / "config.json", lambda config: config.update(num_hidden_layers=2))
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if ".layers.2." not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})


def swapped(folder: Path) -> None:
    def swap(content: dict[str, Any]) -> None:
        vocabulary = content["model"]["vocab"]
        vocabulary["7"], vocabulary["8"] = vocabulary["8"], vocabulary["7"]

    change(folder / "tokenizer.json", swap)


def with_another_template(folder: Path) -> None:
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text() + "!")


def ending_elsewhere(folder: Path) -> None:
    content = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**content, "eos_token_id": 0}))


def cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (
            shortened,
            "has another num_layers (2, not 3) than policy.model. Set algorithm.kl.teacher to one made from it",
        ),
        (swapped, "has another id of the token '7' ("),
        (with_another_template, "has another chat template than policy.model. Set algorithm.kl.teacher"),
        (ending_elsewhere, "set of end tokens ([0"),
        (cut_short, "Set algorithm.kl.teacher to a whole folder"),
    ],
)
def test_another_model_may_not(spoil: Callable[[Path], None], told: str, teacher: Path, tmp_path: Path) -> None:
    spoil(teacher)
    for setting in ("algorithm.kl.teacher={}", "algorithm.kl.teachers={{chain_sum: {}}}"):
        with pytest.raises(ModelError) as refused:
            check(settings(tmp_path / "run", setting.format(teacher)))
        assert told in str(refused.value)


def test_brorl_train_refuses_a_teacher_that_is_not_there(tmp_path: Path) -> None:
    run = f"exp_manager.explicit_log_dir={tmp_path / 'run'}"
    with pytest.raises(ModelError, match="algorithm.kl.teacher=/no/such/teacher: there is no such folder"):
        train.main(["--config-name", "sums_cpu", run, "algorithm.kl.teacher=/no/such/teacher"])
    assert not (tmp_path / "run").exists()


def test_a_run_with_a_checkpoint_needs_no_folder(teacher: Path, tmp_path: Path) -> None:
    config = settings(tmp_path / "run", f"algorithm.kl.teachers={{chain_sum: {teacher}}}")
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints", 1)
    checkpoints.begin(RunState(1, {}, CarriedGroups()))
    shutil.rmtree(teacher)
    with pytest.raises(ModelError, match="there is no such folder"):
        check(config)  # the checkpoint is not complete
    checkpoints.commit(1)
    assert check(config) == [None]


def test_a_task_that_nobody_asks_is_named(tmp_path: Path) -> None:
    config = settings(tmp_path / "run", f"algorithm.kl.teachers={{chain_sums: {SUMS}}}")
    with pytest.raises(ConfigError, match="no question has the task chain_sums. Set some of chain_sum$"):
        check(config)


def test_tasks_may_share_a_teacher_whatever_their_order() -> None:
    names = []
    for tasks in ("{a: x/m, b: w/m, c: x/m}", "{c: x/m, b: w/m, a: x/m}"):
        kl = load_config("sums_cpu", [f"algorithm.kl.teachers={tasks}"]).algorithm.kl
        names.append((kl.references, [kl.reference_of(task) for task in "abcd"]))
    assert names == [(("w/m", "x/m"), [1, 0, 1, None])] * 2
