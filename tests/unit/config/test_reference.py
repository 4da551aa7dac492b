"""The list of settings, `--help` and docs/configuration.md come from the declarations and cover all of them."""

from __future__ import annotations

import re

import pytest

from nemo_brorl.config.help_pages import RECIPES, SETTINGS_THAT_MATTER, help_page
from nemo_brorl.config.load import shipped_folder
from nemo_brorl.config.schema import as_yaml, groups, settings
from nemo_brorl.core.errors import ConfigError
from scripts.configuration_page import PAGE, page


def test_nested_sections_and_list_elements_are_listed() -> None:
    assert settings()["policy.optim.lr"].annotation == "float"
    assert settings()["data.tasks[].name"].default == "required"
    assert settings()["exp_manager.loggers"].is_mapping


def test_what_a_field_declares_is_listed() -> None:
    assert settings()["rollouts.num_per_prompt"].declared.meaning == "number of rollouts per prompt, N in BroRL"
    assert settings()["rollouts.num_per_prompt"].declared.allowed == "of at least 2"
    assert settings()["policy.fp8"].declared.allowed == "null, hybrid, e4m3"
    assert "Adam" in next(group for group in groups() if group.path == "policy.optim").summary


def test_every_number_has_a_range() -> None:
    numbers = {path for path, setting in settings().items() if setting.annotation.split(" ")[0] in ("int", "float")}
    assert numbers == {path for path, setting in settings().items() if setting.declared.range is not None}


def test_a_section_that_may_change_lends_it_to_its_settings() -> None:
    may_change = {path for path, setting in settings().items() if setting.may_change}
    assert {"parity.enabled", "exp_manager.explicit_log_dir", "trainer.max_steps"} <= may_change
    assert not {"trainer.seed", "policy.model", "evaluation.num_prompts"} & may_change


def test_defaults_are_written_as_in_yaml() -> None:
    assert [as_yaml(value) for value in (None, True, 0.5, 3, [1, 2], {}, "a b")] == [
        "null",
        "true",
        "0.5",
        "3",
        "[1, 2]",
        "{}",
        "a b",
    ]


def test_help_of_everything_names_every_setting() -> None:
    text = help_page("train", "", "brorl_cpu", "all")
    assert [path for path in settings() if path not in text] == []


def test_help_fits_on_one_screen_and_has_every_recipe_and_three_examples() -> None:
    text = help_page("train", "Train a model.", "brorl_cpu", "")
    assert len(text.splitlines()) <= 60
    assert len(re.findall(r"^  brorl train --config-name", text, re.MULTILINE)) == 3
    recipes = {name for names in RECIPES.values() for name in names}
    assert recipes == {path.stem for path in shipped_folder().glob("*.yaml")}


def test_help_and_page_give_the_reason_to_change_each_setting_that_matters() -> None:
    text = help_page("train", "", "brorl_cpu", "")
    table = page().partition("## Settings that matter")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\| \[`", table, re.MULTILINE)) == len(SETTINGS_THAT_MATTER)
    for path, reason in SETTINGS_THAT_MATTER.items():
        assert re.search(rf"^  {re.escape(path)}=.* {re.escape(reason)}$", text, re.MULTILINE)
        assert f"[`{path}={settings()[path].default}`]" in table


def test_help_of_a_section_has_its_settings_alone_and_those_below_it() -> None:
    text = help_page("train", "", "brorl_cpu", "policy")
    assert "policy.optim.lr=" in text
    assert "policy.precision=" in text
    assert "rollouts." not in text


def test_help_of_an_unknown_section_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"--help polic: this is no section. Did you mean policy\?"):
        help_page("train", "", "brorl_cpu", "polic")


def test_the_configuration_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "docs/configuration.md is out of date: run `make docs`"


def test_every_setting_has_a_row_or_the_name_of_the_section_that_has_it() -> None:
    sections = {text.partition("\n")[0]: text for text in page().split("\n## ")}
    for group in groups():
        text = sections.get(group.path, "")
        names = [setting.path.rpartition(".")[2] for setting in group.settings]
        missing = [name for name in names if not re.search(rf"`{name}[=`]", text)]
        assert missing == [] or "The settings are those of [" in text
    anchors = {re.sub(r"[^\w-]", "", path) for path in sections}
    assert set(re.findall(r"\(#([\w-]+)\)", page())) <= anchors
