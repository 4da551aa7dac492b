"""What came from the environment is in no file of a run folder, and is there again when the run goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from brorl_graders.base.environment_values import FromEnvironment

from nemo_brorl.config.data import TaskConfig
from nemo_brorl.config.load import load_config
from nemo_brorl.prompts.reasoning_gym import ReasoningGymSource
from nemo_brorl.rollouts.ledger import OpenGroup
from nemo_brorl.training.carriers import load_carriers, save_carriers
from nemo_brorl.training.run_folder import claim_run_folder
from nemo_brorl.training.store.files import StoreFiles
from nemo_brorl.types import Prompt
from tests.support.fakes import SAMPLING, FakePrompts, make_prompt
from tests.support.loop import make_trainer, small_config, use_store
from tests.support.stored import DirectStore

SECRET = "value-of-the-variable"
TEXT = "${oc.env:PROBE}"


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> FromEnvironment:
    """The value of the settings of this process."""
    monkeypatch.setenv("PROBE", SECRET)
    config = load_config("brorl_cpu", [f"data.verifier_options.key={TEXT}"])
    found: FromEnvironment = config.data.verifier_options["key"]
    return found


def with_key(prompt: Prompt, key: str) -> Prompt:
    return replace(prompt, payload={**prompt.payload, "key": key, "parts": [{"options": {"key": key}}]})


class KeyedPrompts(FakePrompts):
    """Prompts whose payload has a key, as `data.verifier_options` gives them one."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key

    def take_prompts(self, num: int) -> list[Prompt]:
        return [with_key(prompt, self.key) for prompt in super().take_prompts(num)]


def files_with(folder: Path, text: str) -> list[str]:
    """Names of the files that hold a text, tables read as such."""
    found = []
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        content = path.read_bytes()
        if path.suffix == ".parquet":
            content = str(pq.read_table(path).to_pylist()).encode()
        if text.encode() in content:
            found.append(path.name)
    return found


def test_a_run_leaves_the_text_in_its_folder_and_the_value_nowhere(
    tmp_path: Path, key: FromEnvironment, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    config = small_config(4)
    config.exp_manager.explicit_log_dir = str(tmp_path)
    config.data.verifier_options = {"key": key}
    claim_run_folder(config)
    trainer = make_trainer(tmp_path, config, prompts=KeyedPrompts(key))
    use_store(trainer, DirectStore(tmp_path))
    trainer.batches.carry_over.leftovers.restart(with_key(make_prompt("train/99"), key))
    trainer.fit()
    trainer.batches.carry_over.leftovers.restart(with_key(make_prompt("train/99"), key))
    trainer.step_number += 1
    trainer.saved.save(trainer.step_number, wait=True)
    names = files_with(tmp_path, TEXT)
    assert {"config.yaml", "state.json", "step_000001.parquet"} <= set(names)
    assert files_with(tmp_path, SECRET) == []
    assert SECRET not in capsys.readouterr().out + caplog.text

    again = make_trainer(tmp_path, config, prompts=KeyedPrompts(key))
    assert again.resume()
    [prompt] = again.batches.carry_over.leftovers.restarted
    assert_restored(prompt)


def assert_restored(prompt: Prompt) -> None:
    found: list[Any] = [prompt.payload["key"], prompt.payload["parts"][0]["options"]["key"]]
    assert found == [SECRET] * 2
    assert {type(text) for text in found} == {FromEnvironment}


def test_carriers_on_disk_hold_the_text_and_come_back_with_the_value(tmp_path: Path, key: FromEnvironment) -> None:
    path = tmp_path / "groups.npz"
    save_carriers(path, [OpenGroup(with_key(make_prompt(), key), SAMPLING)])
    assert files_with(tmp_path, SECRET) == []
    (group,) = load_carriers(path, OpenGroup)
    assert_restored(group.prompt)


def test_a_strangers_carriers_name_no_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOT_OF_THE_SETTINGS", SECRET)
    path = tmp_path / "groups.npz"
    text = "${oc.env:NOT_OF_THE_SETTINGS}"
    save_carriers(path, [OpenGroup(with_key(make_prompt(), text), SAMPLING)])
    (group,) = load_carriers(path, OpenGroup)
    assert group.prompt.payload["key"] == text
    assert type(group.prompt.payload["key"]) is str


def test_the_store_has_payloads_as_they_were_written(tmp_path: Path, key: FromEnvironment) -> None:
    trainer = make_trainer(tmp_path, small_config(1), prompts=KeyedPrompts(key))
    use_store(trainer, DirectStore(tmp_path))
    trainer.fit()
    for row in pq.read_table(StoreFiles(tmp_path).groups(1)).to_pylist():
        assert json.loads(row["payload"])["key"] == TEXT


def test_options_of_generated_questions_keep_how_they_were_written(key: FromEnvironment) -> None:
    source = ReasoningGymSource([TaskConfig(name="gcd")], 0.1, "train", seed=1, options={"key": key})
    assert repr(source.question(0).payload["key"]) == repr(TEXT)
