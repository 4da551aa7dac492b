"""Every shipped YAML parses; wrong settings are refused with a message that says what to write instead."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from nemo_brorl.config import load
from nemo_brorl.config.former_settings import INSTEAD
from nemo_brorl.config.load import (
    CommandLine,
    load_config,
    load_run_config,
    parse_command_line,
    shipped_folder,
    to_yaml,
)
from nemo_brorl.core.errors import ConfigError
from tests.support.quick_compose import quick_compose

SHIPPED = sorted(path.stem for path in shipped_folder().glob("*.yaml"))


@pytest.fixture(scope="module", autouse=True)
def recipes_are_composed_once() -> None:
    """Let Hydra compose in this file, as it does for users."""


def test_what_other_tests_compose_is_what_hydra_composes(monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = ["rollouts.num_per_prompt=64", "data.tasks=[{name: gcd}]", "+data.verifier_options.timeout_s=2"]
    names = ("brorl_cpu", "brorl_64gpu")
    composed = [load_config(name, overrides) for name in names]
    monkeypatch.setattr(load, "compose", quick_compose)
    quickly = [load_config(name, overrides) for name in names]
    again = [load_config(name, overrides) for name in names]
    assert composed == quickly == again
    with pytest.raises(ConfigError, match="trainer is a section"):
        load_config("brorl_cpu", ["trainer=cpu"])


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_config_is_valid(name: str) -> None:
    # Files of the user's are left open; any that is there will do here.
    text = (shipped_folder() / f"{name}.yaml").read_text(encoding="utf-8")
    left_open = ["data"] if name == "sft" else [f"data.domains.{index}" for index in range(text.count("path: null"))]
    config = load_config(name, [f"{where}.path={__file__}" for where in left_open])
    assert config.rollouts.num_per_prompt >= 2


def test_files_that_a_config_leaves_open_are_named() -> None:
    with pytest.raises(
        ConfigError, match=r"4 settings are wrong:(?s:.*)data.domains.3.source=jsonl needs data.domains.3.path"
    ):
        load_config("brorl_five_domains")


@pytest.mark.parametrize("name", INSTEAD)
def test_a_setting_of_an_earlier_version_is_refused_with_what_to_write_instead(name: str) -> None:
    written = name.replace("[]", ".0")
    expected = re.escape(f"there is no setting '{written}' any more: {INSTEAD[name]}")
    with pytest.raises(ConfigError, match=expected):
        load_config("brorl_cpu", [f"{written}=1"])


def test_the_arms_draw_equal_samples_per_step() -> None:
    broad, narrow = load_config("brorl_cpu").rollouts, load_config("prorl_n16_cpu").rollouts
    assert (broad.num_per_prompt, narrow.num_per_prompt) == (512, 16)
    assert broad.num_per_prompt * broad.prompts_per_step == narrow.num_per_prompt * narrow.prompts_per_step


def test_brorl_is_prorl_v2_with_another_n_batch_and_learning_rate() -> None:
    old, new = load_config("prorl_v2"), load_config("brorl")
    assert (old.rollouts.num_per_prompt, old.rollouts.prompts_per_step, new.rollouts.num_per_prompt) == (16, 512, 512)
    assert new.policy.optim.lr == pytest.approx(old.policy.optim.lr * 8**0.5, rel=1e-3)
    new.rollouts, new.policy.optim.lr, new.trainer.max_steps = old.rollouts, old.policy.optim.lr, old.trainer.max_steps
    new.exp_manager, new.trainer.save_interval = old.exp_manager, old.trainer.save_interval  # its steps are longer
    assert old == new


def test_the_paper_recipe_has_the_papers_numbers() -> None:
    config = load_config("brorl_64gpu")
    assert config.trainer.num_nodes * config.trainer.gpus_per_node == 64
    assert config.rollouts.num_per_prompt * config.rollouts.prompts_per_step == 65_536
    assert config.policy.optim.lr == pytest.approx(1e-6 * (65_536 / 8_192) ** 0.5, rel=1e-3)
    assert config.data.max_prompt_tokens + config.rollouts.max_response_tokens == 16_384


def test_overrides_win_over_yaml() -> None:
    config = load_config("brorl_cpu", ["rollouts.num_per_prompt=64", "data.tasks=[{name: leg_counting, weight: 2}]"])
    assert config.rollouts.num_per_prompt == 64
    assert [(task.name, task.weight) for task in config.data.tasks] == [("leg_counting", 2.0)]


def test_free_form_mappings_take_any_key() -> None:
    config = load_config("brorl_cpu", ["exp_manager.wandb_logger_kwargs.project=brorl"])
    assert config.exp_manager.arguments("wandb") == {"project": "brorl"}
    assert config.exp_manager.wants("tensorboard")
    assert "\n  wandb_logger_kwargs:\n    project: brorl\n" in to_yaml(config)


def test_a_config_in_another_folder_builds_on_the_shipped_ones(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [brorl_cpu, _self_]\ntrainer: {max_steps: 3}\n")
    config = load_config("mine", [], tmp_path)
    assert config.trainer.max_steps == 3
    assert config.data.tasks


def test_what_is_written_to_the_run_folder_reads_back_the_same(tmp_path: Path) -> None:
    config = load_config("brorl_64gpu")
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert load_run_config(tmp_path) == config


WRONG_OVERRIDES = [
    ("trainer.max_stepz=3", "Did you mean trainer.max_steps"),
    ("max_steps=3", "Did you mean trainer.max_steps"),
    ("rollout.num_per_prompt=8", "Did you mean rollouts.num_per_prompt"),
    ("+foo=2", "there is no setting 'foo'"),
    ("data.tasks=[{nam: y}]", "Did you mean data.tasks[].name"),
    ("trainer.max_steps=abc", "trainer.max_steps=abc must be a whole number"),
    ("trainer.seed=2.5", "trainer.seed=2.5 must be a whole number"),
    ("trainer.seed=null", "trainer.seed=null must be a whole number"),
    ("rollouts.top_p=[1]", "rollouts.top_p"),
    ("parity.enabled=maybe", "parity.enabled=maybe must be true or false"),
    ("trainer=3", "trainer is a section"),
    ("trainer.max_steps", "pass a setting as KEY=VALUE, for example trainer.max_steps="),
    ("a=[b", "not in Hydra's override syntax"),
    ("~trainer.seed", "settings cannot be removed"),
    ("trainer.seed=1,2", "sweeps are not run"),
    ("trainer.seed=${trainer.sed}", "trainer.seed: Interpolation key 'trainer.sed' not found"),
    ("data.tasks=[{weight: 1}]", "data.tasks[0].name is required and missing"),
]


@pytest.mark.parametrize(("override", "fragment"), WRONG_OVERRIDES)
def test_a_wrong_override_is_refused(override: str, fragment: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("brorl_cpu", [override])
    assert fragment in str(caught.value)


WRONG_FILES = [
    ("trainer: {max_stepz: 4}", "there is no setting 'trainer.max_stepz'. Did you mean trainer.max_steps"),
    ("traner: {max_steps: 4}", "there is no setting 'traner'. Did you mean trainer"),
    ("trainer: {max_steps: four}", "trainer.max_steps=four must be a whole number"),
    ("trainer: {max_steps: 4", "expected ',' or '}'"),
    ("trainer: 4", "trainer is a section"),
]


@pytest.mark.parametrize(("text", "fragment"), WRONG_FILES)
def test_a_wrong_file_is_refused_and_named(tmp_path: Path, text: str, fragment: str) -> None:
    (tmp_path / "mine.yaml").write_text(f"defaults: [brorl_cpu, _self_]\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        load_config("mine", [], tmp_path)
    assert fragment in str(caught.value)
    assert "mine.yaml" in str(caught.value)


def test_a_file_without_the_schema_in_its_defaults_is_still_typed(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [_self_]\ntrainer: {max_stepz: 4}\n")
    with pytest.raises(ConfigError, match=r"trainer\.max_stepz"):
        load_config("mine", [], tmp_path)


def test_a_missing_file_is_answered_with_the_names_there_are() -> None:
    with pytest.raises(ConfigError, match=r"brorl, brorl_1gpu, brorl_32b, brorl_64gpu, .*brorl_cpu, .*prorl_v2"):
        load_config("brorl_gpu")


def test_a_missing_default_names_the_choices(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [brorl_cpv, _self_]\n")
    with pytest.raises(ConfigError, match="brorl_cpv"):
        load_config("mine", [], tmp_path)


def test_the_command_line_splits_into_name_folder_and_overrides() -> None:
    line = parse_command_line(
        ["trainer.seed=2", "--config-name", "mine", "--config-path", "conf", "trainer.max_steps=1"]
    )
    assert line == CommandLine("mine", ("trainer.seed=2", "trainer.max_steps=1"), Path("conf"))
    assert parse_command_line([]) == CommandLine("brorl_cpu", (), None)


def test_an_unknown_option_exits_with_2() -> None:
    with pytest.raises(SystemExit) as caught:
        parse_command_line(["--multirun"])
    assert caught.value.code == 2


def test_help_shows_settings_with_their_default_and_what_to_change_them_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_command_line(["--help"], "train", "Train a model.")
    text = capsys.readouterr().out
    assert caught.value.code == 0
    assert "usage: brorl train" in text
    assert "rollouts.num_per_prompt=512" in text
    assert "choose N, the rollouts per prompt" in text


def test_print_config_prints_the_resolved_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_command_line(["--print-config", "trainer.seed=77"])
    assert caught.value.code == 0
    assert "seed: 77" in capsys.readouterr().out


def test_loading_a_config_imports_no_heavy_library() -> None:
    heavy = ["torch", "numpy", "ray", "vllm", "megatron", "lightning", "nemo", "transformers", "reasoning_gym"]
    code = (
        "import sys; from nemo_brorl.config import memory; "
        "from nemo_brorl.config.load import load_config; load_config('brorl_cpu'); "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("written", "read"),
    [("off", "off"), ("on", "on"), ("auto", "auto"), ("False", "off"), ("true", "on"), ("no", "off")],
)
def test_on_and_off_mean_what_was_written_though_yaml_reads_booleans(written: str, read: str, tmp_path: Path) -> None:
    sections = f"generation: {{lean_scheduler: {written}, sleep: off}}\nprofile: {{kind: off}}\n"
    (tmp_path / "mine.yaml").write_text(f"defaults: [brorl_cpu, _self_]\n{sections}")
    config = load_config("mine", (), tmp_path)
    assert (config.generation.lean_scheduler, config.generation.sleep, config.profile.kind) == (read, "off", "off")
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert load_run_config(tmp_path) == config


@pytest.mark.parametrize(
    ("written", "read"), [("off", "off"), ("on", "on"), ("'off'", "off"), ("false", "off"), ("True", "on")]
)
def test_on_and_off_mean_what_was_written_on_the_command_line(written: str, read: str) -> None:
    assert load_config("brorl_cpu", [f"generation.lean_scheduler={written}"]).generation.lean_scheduler == read


def test_a_word_that_a_setting_does_not_have_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="generation.sleep=True is not known: set one of off, cache, offload, discard"
    ):
        load_config("brorl_cpu", ["generation.sleep=true"])


STRUCTURES = {
    'data.tasks=[{"name": "chain_sum", "config": {"min_terms": 6}}]': [
        {"name": "chain_sum", "config": {"min_terms": 6}}
    ],
    'rewards.timeouts={"my_reward:score": 3}': {"my_reward:score": 3},
    'data.template_arguments={"a": "5", "b": "it\'s, (x)", "c": null, "d": [true]}': {
        "a": "5",
        "b": "it's, (x)",
        "c": None,
        "d": [True],
    },
}


@pytest.mark.parametrize("written", STRUCTURES)
def test_json_on_the_command_line_is_answered_with_what_hydra_reads_as_the_same(written: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config("sums_cpu", [written])
    (proposal,) = shlex.split(str(error.value).rpartition(": set ")[2])
    assert OverridesParser.create().parse_override(proposal).value() == STRUCTURES[written]


def test_a_proposal_survives_the_shell() -> None:
    with pytest.raises(ConfigError) as error:
        load_config("sums_cpu", ["data.system_prompt=Don't (guess)"])
    (proposal,) = shlex.split(str(error.value).rpartition(": set ")[2])
    assert load_config("sums_cpu", [proposal]).data.system_prompt == "Don't (guess)"
