"""Settings that name variables of the environment: used as what those hold, written down as they stood."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from brorl_graders.base.components import typed_params
from brorl_graders.base.environment_values import FromEnvironment, literal
from brorl_launcher.frozen import absolute_paths, check_yaml
from omegaconf import OmegaConf

from nemo_brorl.algorithm.user_functions import check_functions
from nemo_brorl.config.load import load_config, parse_command_line, to_yaml
from nemo_brorl.config.same_run import check_same_run
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import BroRLError, CheckpointError, ConfigError
from nemo_brorl.core.recorded_yaml import read_record, setting_of
from nemo_brorl.training.run_folder import claim_run_folder

SECRET = "value-of-the-variable"
KEY = "data.verifier_options.key=${oc.env:PROBE}"


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE", SECRET)
    monkeypatch.setenv("RUNS", "/shared/runs")
    monkeypatch.setenv("STEPS", "7")
    monkeypatch.setenv("WHOLE", "{key: value-of-the-variable, n: 3}")


def written(value: Any) -> str:
    assert type(value) is FromEnvironment
    return str(value.written)


def test_what_travels_to_an_actor_keeps_both_texts() -> None:
    config = load_config("brorl_cpu", [KEY])
    arrived = cloudpickle.loads(cloudpickle.dumps(config))
    key = arrived.data.verifier_options["key"]
    assert (key, written(key)) == (SECRET, "${oc.env:PROBE}")


def test_texts_that_came_from_the_environment_know_how_they_stood() -> None:
    config = load_config(
        "brorl_cpu",
        [
            KEY,
            "data.verifier_options.nested={a: ['${oc.env:PROBE}', plain], b: '${data.verifier_options.key}'}",
            "exp_manager.explicit_log_dir=${oc.env:RUNS}/first",
            "data.system_prompt=${data.verifier_options.key}",
            "data.answer_instruction=${trainer.seed}",
            "policy.model=${oc.env:NOWHERE,some/model}",
            "trainer.max_steps=${oc.env:STEPS}",
        ],
    )
    options = config.data.verifier_options
    assert (options["key"], written(options["key"])) == (SECRET, "${oc.env:PROBE}")
    assert written(options["nested"]["a"][0]) == "${oc.env:PROBE}"
    assert type(options["nested"]["a"][1]) is str
    assert written(options["nested"]["b"]) == "${data.verifier_options.key}"
    assert config.exp_manager.explicit_log_dir == "/shared/runs/first"
    assert written(config.exp_manager.explicit_log_dir) == "${oc.env:RUNS}/first"
    assert written(config.data.system_prompt) == "${data.verifier_options.key}"
    assert (config.policy.model, written(config.policy.model)) == ("some/model", "${oc.env:NOWHERE,some/model}")
    assert type(config.data.answer_instruction) is str
    assert config.trainer.max_steps == 7


def test_what_an_interpolated_container_brings_is_marked_too() -> None:
    config = load_config(
        "brorl_cpu",
        [
            "data.verifier_options='${oc.create:${oc.env:WHOLE}}'",
            "generation.engine_args={a: {key: '${oc.env:PROBE}'}, b: '${generation.engine_args.a}'}",
        ],
    )
    assert config.data.verifier_options == {"key": SECRET, "n": 3}
    assert written(config.data.verifier_options["key"]) == "${oc.create:${oc.env:WHOLE}}.key"
    assert written(config.generation.engine_args["b"]["key"]) == "${oc.env:PROBE}"
    assert SECRET not in to_yaml(config)


def test_settings_without_variables_hold_ordinary_texts() -> None:
    config = load_config("brorl_cpu", ["data.system_prompt='\\${oc.env:PROBE}'"])
    assert config.data.system_prompt == "${oc.env:PROBE}"
    assert type(config.data.system_prompt) is type(config.policy.model) is str


def test_one_text_for_two_values_is_refused() -> None:
    first = "x: {name: '${oc.env:PROBE}', y: '${.name}'}"
    second = "z: {name: '${oc.env:RUNS}', y: '${.name}'}"
    with pytest.raises(ConfigError, match=r"\$\{\.name\} stands for different values in two places"):
        load_config("brorl_cpu", [f"data.verifier_options={{{first}, {second}}}"])
    load_config("brorl_cpu", [f"data.verifier_options={{{first}}}"])


def run(folder: Path, *overrides: str) -> BroRLConfig:
    return load_config("brorl_cpu", [f"exp_manager.explicit_log_dir={folder}", *overrides])


def test_the_run_folder_has_the_text_and_not_the_value(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    claim_run_folder(run(folder, KEY))
    assert SECRET not in (folder / "config.yaml").read_text()
    assert setting_of(read_record(folder / "config.yaml"), "data.verifier_options.key") == "${oc.env:PROBE}"


def test_print_config_has_the_text_and_not_the_value(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_command_line(["--print-config", KEY])
    output = capsys.readouterr().out
    assert "${oc.env:PROBE}" in output
    assert SECRET not in output


def test_a_run_goes_on_with_the_same_text_whatever_the_variable_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    claim_run_folder(run(folder, KEY))
    assert check_same_run(run(folder, KEY))
    monkeypatch.setenv("PROBE", "a new key")
    assert check_same_run(run(folder, KEY))
    with pytest.raises(CheckpointError) as refused:
        check_same_run(run(folder, "data.verifier_options.key=${oc.env:RUNS}"))
    assert r"key was '${oc.env:PROBE}', now '${oc.env:RUNS}'" in str(refused.value)


def test_a_run_of_an_earlier_version_that_wrote_the_value_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    claim_run_folder(run(folder, f"data.verifier_options.key={SECRET}"))
    assert check_same_run(run(folder, KEY))
    with pytest.raises(CheckpointError, match="verifier_options"):
        check_same_run(run(folder, "data.verifier_options.key=${oc.env:RUNS}"))


def test_a_settings_text_that_yaml_brings_back_may_be_frozen(tmp_path: Path) -> None:
    config = run(tmp_path, KEY, "policy.model=${oc.env:PROBE}")
    check_yaml(config)
    config.data.system_prompt = "${trainer.seed}"
    with pytest.raises(ConfigError, match="do not come back from YAML"):
        check_yaml(config)
    whole = run(tmp_path, "data.verifier_options='${oc.create:${oc.env:WHOLE}}'")
    with pytest.raises(ConfigError, match="do not come back from YAML"):
        check_yaml(whole)


def test_paths_become_absolute_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "data/x.jsonl")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/users/someone")
    files = "data.source=jsonl"
    config = load_config(
        "brorl_cpu", [files, "exp_manager.explicit_log_dir=${oc.env:RUNS}/a", "data.path=${oc.env:HERE}"]
    )
    absolute = absolute_paths(config, tmp_path)
    assert written(absolute.exp_manager.explicit_log_dir) == "${oc.env:RUNS}/a"
    assert absolute.data.path == f"{tmp_path}/data/x.jsonl"
    assert written(absolute.data.path) == f"{tmp_path}/${{oc.env:HERE}}"
    check_yaml(absolute)
    config.data.path = FromEnvironment("~/x.jsonl", "${oc.env:HERE}")
    assert absolute_paths(config, tmp_path).data.path == "/users/someone/x.jsonl"


@pytest.mark.parametrize(
    "overrides",
    [
        ["policy.precision=${oc.env:PROBE}"],
        ["trainer.max_steps=${oc.env:PROBE}"],
        ["rewards.timeouts.code=${oc.env:PROBE}"],
        ["algorithm.loss_params={key: '${oc.env:PROBE}'}"],
        ["rewards.code.preload=[{a: '${oc.env:PROBE}'}]"],
        ["rewards.verifiers=[{name: '${oc.env:PROBE}'}]"],
        ["evaluation.only=['${oc.env:PROBE}']"],
        ["trainer.time_limit=${oc.env:PROBE}"],
    ],
)
def test_no_message_about_a_setting_gives_the_value_away(overrides: list[str]) -> None:
    with pytest.raises(BroRLError) as refused:
        config = load_config("brorl_cpu", overrides)
        check_functions(config.algorithm, config.rewards.shaping)
    assert SECRET not in str(refused.value)


def test_a_default_of_a_variable_is_no_secret_and_stays_in_messages() -> None:
    with pytest.raises(ConfigError, match=r"^evaluation\.benchmarks\[0\]\.name is required and missing"):
        load_config(
            "brorl_cpu", ["policy.model=${oc.env:NOWHERE,benchmarks}", "evaluation.benchmarks=[{path: a.jsonl}]"]
        )


def test_parameters_of_the_users_functions_hold_the_value_and_messages_do_not() -> None:
    from dataclasses import dataclass

    @dataclass
    class Params:
        key: str = ""
        more: dict[str, Any] | None = None
        number: int = 0

    key = FromEnvironment("${x}" + SECRET, "${oc.env:PROBE}")
    made = typed_params("setting", "f", Params, {"key": key, "more": {"a": key}})
    assert (made.key, made.more) == (key, {"a": key})
    with pytest.raises(ConfigError) as refused:
        typed_params("setting", "f", Params, {"number": key})
    assert SECRET not in str(refused.value)
    assert "${oc.env:PROBE}" in str(refused.value)
    assert json.dumps(made.key)


def test_omegaconf_reads_literal_texts_as_they_are() -> None:
    texts = ["${a}", "\\${a}", "\\\\${a} ${", "a\\", "x", "\\n${oc.env:KEY}${", FromEnvironment("p${q", "${oc.env:P}")]
    read = OmegaConf.to_container(OmegaConf.create(literal({"texts": texts})), resolve=True)
    assert read == {"texts": texts}
