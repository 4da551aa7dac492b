"""Names of code in the settings of a run: which there are, and what a look-up says about them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from nemo_brorl.config.load import load_config
from nemo_brorl.config.named_code import check_names, named_code
from nemo_brorl.core.errors import ConfigError

MIXTURE = (
    "data.source=mixture",
    "data.domains=[{name: a, source: jsonl, path: FILE, verifier: composite, "
    "verifier_options: {parts: [{verifier: math}, {verifier: 'my:part'}, {verifier: judge}]}}, "
    "{name: b, tasks: [{name: gcd}], environment: agent, environment_settings: {run: 'my:run'}}, "
    "{name: off, weight: 0, source: jsonl, path: FILE, verifier: 'my:off'}]",
    "rewards.services.endpoints=[{name: judge, url: 'https://localhost/v1', model: m}]",
    "rewards.verifiers=[{name: 'my:row'}, {name: 'my:part', params: {limit: 2}}]",
)
TRAINING = (
    "algorithm.advantage=my:advantage",
    "algorithm.advantage_params={cap: 3, train_rollouts: 4}",
    "algorithm.loss=my:loss",
    "rewards.shaping.function=my:shaping",
    "rollouts.prompt_pool.name=my:pool",
    "trainer.observers=[{name: 'my:observer'}]",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own.py").write_text(
        "def score(payload, response): ...\n\n\ndef lacking(payload, response, wide): ...\n"
    )
    (tmp_path / "lacks.py").write_text("import not_there\n\n\ndef score(payload, response): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_every_name_that_training_imports_is_listed_with_its_setting() -> None:
    config = load_config("brorl_cpu", [*(text.replace("FILE", __file__) for text in MIXTURE), *TRAINING])
    assert {named.setting: named.name for named in named_code(config, is_trained=True)} == {
        "algorithm.advantage": "my:advantage",
        "algorithm.loss": "my:loss",
        "rewards.shaping.function": "my:shaping",
        "rollouts.prompt_pool.name": "my:pool",
        "trainer.observers.0.name": "my:observer",
        "data.domains.1.environment": "agent",
        "data.domains.1.environment_settings.run": "my:run",
        "data.domains.0.verifier": "composite",
        "data.domains.0.verifier_options.parts.0.verifier": "math",
        "data.domains.0.verifier_options.parts.1.verifier": "my:part",
        "rewards.verifiers.0.name": "my:row",
    }
    params = {named.name: named.params for named in named_code(config, is_trained=True)}
    assert params["my:advantage"] == {"cap": 3}
    assert params["my:part"] == {"limit": 2}


def test_an_evaluation_imports_what_scores_its_benchmarks() -> None:
    benchmark = "evaluation.benchmarks=[{name: own, source: jsonl, path: FILE, verifier: 'my:benchmark'}]".replace(
        "FILE", __file__
    )
    for more, expected in (((), ["my:data"]), ((benchmark,), ["my:benchmark"])):
        config = load_config("brorl_cpu", ["data.verifier=my:data", *TRAINING, *more])
        assert [named.name for named in named_code(config, is_trained=False)] == expected


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.verifier=own:scor"], "data.verifier=own:scor: own has no scor, but score, lacking. "),
        (
            ["data.verifier=exact_mach"],
            r"exact_mach: nothing has this name. Did you mean exact_match\? Set one of comp",
        ),
        (["data.environment=own:score"], "data.environment=own:score: it is no class derived from "),
        (["data.environment=chess"], "data.environment=chess: nothing has this name. Set one of agent, "),
        (["algorithm.advantage=own:lacking"], "it takes .* and is called with .groups, config"),
        (
            ["rollouts.prompt_pool.name=pool"],
            "rollouts.prompt_pool.name=pool: nothing has this name. Set package.module:name",
        ),
        (["trainer.observers=[{name: 'brorl_lab.observers.coverage:coverag'}]"], "Set .*:coverage"),
        (["rewards.verifiers=[{name: 'own:score', params: {a: 1}}]"], "rewards.verifiers.0.name=own:score: params="),
        (["data.verifier=a:b", "algorithm.loss=c:d"], "2 settings are wrong:\n  - algorithm.loss=c:d: there is no"),
    ],
)
def test_a_wrong_name_is_refused(overrides: list[str], message: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        check_names(load_config("brorl_cpu", overrides))


def test_names_of_the_shipped_recipes_need_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.Popen", None)
    for recipe in ("brorl_cpu", "brorl_64gpu", "prorl_v2", "agent_cpu"):
        check_names(load_config(recipe))


def test_what_another_python_may_import_is_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    lacks = load_config("brorl_cpu", ["data.verifier=lacks:score"])
    misspelt = load_config("brorl_cpu", ["data.verifier=lacks:scores"])
    with caplog.at_level(logging.WARNING):
        check_names(lacks, is_elsewhere=True)
    assert "not imported here: data.verifier=lacks:score: " in caplog.text
    assert "lacks.py, line 1: No module named 'not_there'" in caplog.text
    with pytest.raises(ConfigError, match=r"lacks.py, line 1: No module named 'not_there'"):
        check_names(lacks)
    with pytest.raises(ConfigError, match="lacks has no scores, but score"):
        check_names(misspelt, is_elsewhere=True)


def test_folders_of_the_job_are_searched(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "on_the_node.py").write_text("def score(payload, response): ...\n")
    config = load_config("brorl_cpu", ["data.verifier=on_the_node:score"])
    check_names(config, folders=[str(tmp_path / "job")])
    with pytest.raises(ConfigError, match="there is no module on_the_node"):
        check_names(config)


def test_values_of_environment_variables_are_not_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "abcd-1234")
    own = "rewards.verifiers=[{name: 'own:score', params: {key: '${oc.env:MY_SECRET}'}}]"
    with pytest.raises(ConfigError) as refusal:
        check_names(load_config("brorl_cpu", [own]))
    assert "${oc.env:MY_SECRET}" in str(refusal.value)
    assert "abcd-1234" not in str(refusal.value)
