"""The list of settings, `--help` and docs/configuration.md come from the schema and cover all of it."""

from __future__ import annotations

from nemo_brorl.config.reference import as_yaml, groups, help_text, settings
from scripts.configuration_page import PAGE, page


def test_nested_sections_and_list_elements_are_listed() -> None:
    assert settings()["policy.optim.lr"].annotation == "float"
    assert settings()["data.tasks[].name"].default == "required"
    assert settings()["exp_manager.wandb_logger_kwargs"].is_mapping


def test_comments_of_the_schema_are_the_meanings() -> None:
    assert settings()["rollouts.num_per_prompt"].comment == "N, the scaling axis"
    assert next(group for group in groups() if group.path == "policy.optim").summary.startswith("Adam")


def test_defaults_are_written_as_in_yaml() -> None:
    assert [as_yaml(value) for value in (None, True, 0.5, 3, (1, 2), {}, "a b")] == [
        "null",
        "true",
        "0.5",
        "3",
        "[1, 2]",
        "{}",
        "a b",
    ]


def test_help_names_every_setting() -> None:
    text = help_text("train", "")
    assert [path for path in settings() if path not in text] == []


def test_the_configuration_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "docs/configuration.md is out of date: run `make docs`"
