"""A run folder that somebody else has written: its files are data to whoever reads them, and name nothing that is
called, asked or looked up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from brorl_lab.commands import diff
from brorl_lab.page import runs as page
from brorl_launcher import runs
from brorl_launcher.run_state import max_steps

from nemo_brorl.config.load import load_run_config
from nemo_brorl.config.same_run import check_same_run, recorded_settings, with_sizes_of_run
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import CheckpointError, ConfigError, DataError

SECRET = "value-of-the-variable"
HOSTILE = {
    "aliases": "a: &a [x, x]\ntrainer: {max_steps: 3, num_nodes: 1, gpus_per_node: 8}\nb: [*a, *a]\n",
    "an alias to itself": "trainer: {max_steps: 3}\na: &a [*a]\n",
    "depth": "trainer: {max_steps: 3}\na: " + "[" * 50 + "]" * 50 + "\n",
    "nodes": "trainer: {max_steps: 3}\na: [" + "1," * 100_001 + "]\n",
}


def put(folder: Path, text: str) -> Path:
    (folder / "config.yaml").write_text(text)
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "reward/mean": 0.5}) + "\n")
    return folder


def given(folder: Path) -> BroRLConfig:
    config = BroRLConfig()
    config.exp_manager.explicit_log_dir = str(folder)
    return config


REFUSING: dict[str, tuple[type[Exception], Callable[[Path], object]]] = {
    "recorded_settings": (CheckpointError, lambda folder: recorded_settings(folder / "config.yaml")),
    "check_same_run": (CheckpointError, lambda folder: check_same_run(given(folder))),
    "with_sizes_of_run": (CheckpointError, lambda folder: with_sizes_of_run(given(folder))),
    "read_settings": (DataError, diff.read_settings),
    "load_run_config": (ConfigError, load_run_config),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("reader", REFUSING)
def test_yaml_that_grows_is_one_message(reader: str, name: str, tmp_path: Path) -> None:
    kind, read = REFUSING[reader]
    with pytest.raises(kind, match=r"config\.yaml.*(alias or an anchor|levels deep|more than 100,000 values)"):
        read(put(tmp_path, HOSTILE[name]))


@pytest.mark.parametrize("name", HOSTILE)
def test_lists_of_runs_and_pages_go_on_without_yaml_that_grows(name: str, tmp_path: Path) -> None:
    folder = put(tmp_path, HOSTILE[name])
    assert page.settings_of(folder) == {}
    assert max_steps(folder) is None
    assert runs.summarize_run(folder, now=0.0).state.startswith("unreadable (RecordError: it ")


def test_interpolations_of_a_run_folder_stay_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE", SECRET)
    folder = put(tmp_path, "data: {system_prompt: '${oc.env:PROBE}', path: '${data.system_prompt}/x'}\n")
    expected = {"data.system_prompt": "${oc.env:PROBE}", "data.path": "${data.system_prompt}/x"}
    assert page.settings_of(folder) == expected
    assert diff.read_settings(folder) == expected
    assert recorded_settings(folder / "config.yaml") == expected
    assert SECRET not in json.dumps(page.settings_table(page.open_runs([folder])))


def test_settings_of_a_run_are_loaded_without_what_its_variables_hold_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE", SECRET)
    folder = put(
        tmp_path,
        "data: {tasks: [{name: gcd}], system_prompt: '${oc.env:PROBE}',\n"
        " verifier_options: {a: '${data.system_prompt}', b: 'x\\${y} \\\\${z}'}}\n"
        "rewards: {verifiers: [{name: 'a.b:c', params: {c: ['${nowhere}', '${']}}]}\n",
    )
    config = load_run_config(folder)
    assert config.data.system_prompt == "${oc.env:PROBE}"
    assert config.data.verifier_options == {"a": "${data.system_prompt}", "b": "x\\${y} \\\\${z}"}
    assert config.rewards.verifiers[0].params == {"c": ["${nowhere}", "${"]}


def test_the_users_own_override_takes_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE", SECRET)
    folder = put(
        tmp_path, "data: {tasks: [{name: gcd}], system_prompt: '${oc.env:PROBE}'}\npolicy: {model: '${oc.env:PROBE}'}\n"
    )
    config = load_run_config(folder, ["policy.model=${oc.env:PROBE}", "data.answer_instruction=${data.system_prompt}"])
    assert config.policy.model == SECRET
    assert config.data.system_prompt == config.data.answer_instruction == "${oc.env:PROBE}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("trainer: {max_stepz: 3}\n", "no setting 'trainer.max_stepz'. Did you mean trainer.max_steps"),
        ("trainer: {max_steps: x}\n", "trainer.max_steps=x must be a whole number"),
        ("trainer: {max_steps: '${oc.env:PROBE}'}\n", "trainer.max_steps"),
        ("trainer: 3\n", "trainer is a section"),
        ("hydra: {searchpath: ['https://example.org']}\n", "no setting 'hydra'"),
        ("defaults: [brorl_cpu]\n", "no setting 'defaults'"),
        ("[1]\n", "config.yaml cannot be read: it holds a list"),
    ],
)
def test_a_wrong_setting_of_a_run_is_said_as_ever(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE", SECRET)
    with pytest.raises(ConfigError) as refused:
        load_run_config(put(tmp_path, text))
    assert said in str(refused.value)
    assert SECRET not in str(refused.value)
