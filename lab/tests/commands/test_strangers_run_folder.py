"""A run folder that somebody else has written: its files are data to whoever reads them, and name nothing that is
called, asked or looked up."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from brorl_graders.base.foreign import VAST
from brorl_lab.commands import diff
from brorl_lab.page import comparison
from brorl_lab.page import runs as page
from brorl_lab.page.page import as_json
from brorl_lab.paired_evaluations import read_evaluation
from brorl_lab.store_reader import read_step
from brorl_lab.trace_reader import read_spans
from brorl_launcher import runs
from brorl_launcher.run_state import last_rows, max_steps, read_heartbeat
from brorl_launcher.status import last_line

from nemo_brorl.config.load import load_run_config
from nemo_brorl.config.same_run import check_same_run, recorded_settings, with_sizes_of_run
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import BroRLError, CheckpointError, ConfigError, DataError
from nemo_brorl.core.file_sums import read_sums
from nemo_brorl.training.carriers import load_carriers
from nemo_brorl.training.records import read_metrics
from nemo_brorl.training.trace_files import file_name

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


def link(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


NO_FILES: dict[str, Callable[[Path], None]] = {
    "a pipe": pipe,
    "a link to a device": lambda path: link(path, "/dev/zero"),
    "a link to a private file": lambda path: link(path, "../private"),
    "terabytes of nothing": lambda path: os.truncate(path, VAST + 1),
}
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "status": ("heartbeat.json", read_heartbeat),
    "last rows": ("metrics.jsonl", lambda folder: last_rows(folder / "metrics.jsonl")),
    "rows": ("metrics.jsonl", lambda folder: read_metrics(folder / "metrics.jsonl")),
    "state": ("heartbeat.json", page.state_of),
    "page": ("evaluation.json", lambda folder: page.overview(page.open_runs([folder]))),
    "revision": ("revision.txt", lambda folder: page.settings_table(page.open_runs([folder]))),
    "comparison": ("evaluation.json", lambda folder: comparison.compare_runs(page.open_runs([folder, folder]))),
    "evaluation": ("evaluation.json", lambda folder: read_evaluation(folder / "evaluation.json")),
    "jobs": ("launch/jobs.jsonl", max_steps),
    "settings": ("config.yaml", diff.read_settings),
    "checksums": ("checksums.json", read_sums),
    "groups": ("groups.npz", lambda folder: load_carriers(folder / "groups.npz")),
    "timeline": (f"timeline/{file_name(1)}", lambda folder: read_spans(folder, 1)),
    "store": ("store/groups/step_000001.parquet", lambda folder: read_step(folder, 1)),
    "log": ("train.log", lambda folder: last_line(folder / "train.log")),
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_of_a_run_is_refused_or_left_out_at_once(name: str, kind: str, tmp_path: Path) -> None:
    """A pipe made each wait for ever, and a device took all memory."""
    (tmp_path / "private").write_text('{"step": 1, "state": "s3cr3t"}\n')
    folder = tmp_path / "run"
    folder.mkdir()
    put(folder, "data: {}\n")
    file, read = READERS[name]
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    NO_FILES[kind](path)
    if name in ("last rows", "log") and kind == "terabytes of nothing":
        kind = "a pipe"
        path.unlink()
        pipe(path)
    try:
        found = read(folder)
    except BroRLError as error:
        assert str(path) in str(error)
        return
    assert "s3cr3t" not in str(found)


@pytest.mark.parametrize("number", ["1e999", "NaN", "-1e999"])
def test_numbers_that_json_does_not_have_are_null_on_the_page(number: str, tmp_path: Path) -> None:
    put(tmp_path, "data: {}\n")
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1, "reward/mean": {number}}}\n')
    text = as_json(page.overview(page.open_runs([tmp_path])))
    assert json.loads(text)["runs"][0]["metrics"] == {"reward/mean": [None]}


def test_a_timeline_that_began_at_no_time_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "timeline").mkdir()
    with gzip.open(tmp_path / "timeline" / file_name(1), "wt") as file:
        file.write('{"otherData": {"began_at": 1e999}, "traceEvents": []}')
    with pytest.raises(DataError, match="is damaged"):
        read_spans(tmp_path, 1)


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
