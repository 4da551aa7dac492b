"""Functions that a run folder names are somebody's code: `brorl replay` calls those that its user trusts."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from brorl_lab.commands import diff, export_sft, replay, report
from brorl_lab.page.details import group_details, tokenizer_of_run
from brorl_lab.trusted_functions import check_trusted, typed_texts
from omegaconf import OmegaConf

from nemo_brorl.config.load import load_config, to_yaml
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError, ModelError
from nemo_brorl.core.recorded_yaml import read_record, setting_of
from nemo_brorl.training.store.files import StoreFiles
from tests.support.run_folders import put_run
from tests.support.stored import DirectStore, record
from tests.unit.config.test_model_rules import write_model

SETTINGS = ("algorithm.advantage", "algorithm.loss", "rewards.shaping.function")


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An import path of a module that leaves a file when it is imported."""
    module = f"foreign_{tmp_path.name}"
    code = f"from pathlib import Path\nPath({str(tmp_path / 'marker')!r}).touch()\n\ndef f(*arguments):\n    return 0\n"
    (tmp_path / f"{module}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    return f"{module}:f"


def foreign_run(folder: Path, setting: str, value: str) -> Path:
    """A run of somebody else, whose settings name a function; steps 1 to 3 are stored, and there is no checkpoint."""
    run = folder / "run"
    run.mkdir()
    text = to_yaml(load_config("brorl_cpu", [f"{setting}={value}", write_model(folder)]))
    (run / "config.yaml").write_text(text)
    for step in (1, 2, 3):
        DirectStore(run).write(record(step))
    return run


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_function_of_the_folder_is_not_imported(setting: str, name: str, tmp_path: Path) -> None:
    run = foreign_run(tmp_path, setting, name)
    with pytest.raises(ConfigError) as refused:
        replay.main([str(run), "--step", "1"])
    assert f"{setting}={name}" in str(refused.value)
    assert f"if you trust whoever wrote that folder, pass --trust {name}" in str(refused.value)
    assert not (tmp_path / "marker").exists()


def test_what_shows_and_exports_a_run_imports_nothing_that_it_names(name: str, tmp_path: Path) -> None:
    run = put_run(tmp_path / "run", num_steps=2, prompts=2, size=4)
    settings = read_record(run / "config.yaml")
    for setting in (*SETTINGS, "data.verifier", "data.environment", "rollouts.prompt_pool.name"):
        *section, key = setting.split(".")
        setting_of(settings, ".".join(section))[key] = name
    settings["policy"]["model"] = str(run / "hf")
    settings["data"]["tasks"] = [{"name": "gcd"}]
    settings["rewards"]["verifiers"] = [{"name": name, "params": {}}]
    (run / "config.yaml").write_text(OmegaConf.to_yaml(settings))
    for step in (1, 2):
        path = StoreFiles(run).groups(step)
        table = pq.read_table(path)
        place = table.schema.get_field_index("verifier")
        pq.write_table(table.set_column(place, "verifier", pa.array([name] * len(table))), path)
    assert diff.main([str(run), str(run)]) == 0
    assert report.main([str(run)]) == 0
    assert export_sft.main([str(run), "--min-reward", "0"]) == 0
    assert group_details(run, 2, 0, tokenizer_of_run(run))
    assert not (tmp_path / "marker").exists()


def reaches_the_model(arguments: list[str]) -> None:
    """It gets past the functions, and ends where the model is not there."""
    with pytest.raises(ModelError, match="nowhere"):
        replay.main([*arguments, "policy.model=nowhere/at/all"])


def test_a_function_that_is_trusted_by_name_may_be_called(name: str, tmp_path: Path) -> None:
    run = foreign_run(tmp_path, "algorithm.advantage", name)
    reaches_the_model([str(run), "--step", "1", "--trust", name])
    with pytest.raises(ConfigError, match="--trust"):
        replay.main([str(run), "--step", "1", "--trust", "another.module:f"])


def test_a_function_that_the_user_types_is_trusted(name: str, tmp_path: Path) -> None:
    run = foreign_run(tmp_path, "algorithm.advantage", name)
    reaches_the_model([str(run), "--step", "1", f"algorithm.advantage={name}"])
    reaches_the_model([str(run), "--step", "1", f"algorithm={{advantage: '{name}'}}"])


def test_a_function_that_is_overridden_and_not_used_stops_nothing(name: str, tmp_path: Path) -> None:
    run = foreign_run(tmp_path, "algorithm.advantage", name)
    reaches_the_model([str(run), "--step", "1", "algorithm.advantage=grpo"])
    assert not (tmp_path / "marker").exists()


def test_steps_that_are_learnt_as_the_run_did_call_its_functions(name: str, tmp_path: Path) -> None:
    run = foreign_run(tmp_path, "algorithm.advantage", name)
    with pytest.raises(ConfigError, match=f"algorithm.advantage={name}.*--trust {name}"):
        replay.main([str(run), "--step", "2", "algorithm.advantage=grpo"])
    assert not (tmp_path / "marker").exists()


def test_an_override_that_takes_another_setting_is_not_the_users_word(name: str, tmp_path: Path) -> None:
    run = foreign_run(tmp_path, "algorithm.advantage", name)
    overrides = ["algorithm.advantage=grpo", "algorithm.loss=${algorithm.loss_params.f}"]
    text = (run / "config.yaml").read_text()
    record_of = OmegaConf.create(text)
    record_of.algorithm.loss_params = {"f": name}
    (run / "config.yaml").write_text(OmegaConf.to_yaml(record_of))
    with pytest.raises(ConfigError, match=f"algorithm.loss={name}"):
        replay.main([str(run), "--step", "1", *overrides])
    assert not (tmp_path / "marker").exists()


def test_all_functions_are_named_in_one_message() -> None:
    config = BroRLConfig()
    check_trusted(config, ())
    config.algorithm.loss = "a.b:f"
    config.rewards.shaping.function = "c:g"
    with pytest.raises(
        ConfigError, match=r"algorithm\.loss=a\.b:f and rewards\.shaping\.function=c:g .*--trust a\.b:f"
    ):
        check_trusted(config, ())
    with pytest.raises(ConfigError, match=r"^rewards\.shaping\.function=c:g .*--trust c:g$"):
        check_trusted(config, ["a.b:f"])
    check_trusted(config, ["a.b:f", "c:g"])


def test_typed_texts_are_whole_values_at_any_depth() -> None:
    overrides = ["algorithm.loss=data:f", "algorithm={advantage: 'm:g', loss_params: {a: [x, 3]}}", "trainer.seed=3"]
    assert typed_texts(overrides) == {"data:f", "m:g", "x"}


def test_a_replay_writes_into_the_folder_that_was_given_wherever_its_settings_point(tmp_path: Path) -> None:
    run = foreign_run(tmp_path, "exp_manager.explicit_log_dir", str(tmp_path / "elsewhere"))
    recorded, config = replay.settings_of(run), replay.settings_of(run, ["algorithm.loss=cispo"])
    assert recorded.exp_manager.explicit_log_dir == config.exp_manager.explicit_log_dir == str(run)
