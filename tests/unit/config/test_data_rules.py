"""Rules of prompt sources: what is wrong is said before a file is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_brorl.config.load import load_config
from nemo_brorl.core.errors import ConfigError

HERE = Path(__file__)
MIXTURE = ["data.source=mixture"]
PUZZLES = "{name: puzzles, tasks: [{name: gcd}]}"

WRONG = [
    (["data.source=csv"], "set one of reasoning_gym, jsonl, parquet, dataset, environment, mixture"),
    (["data.preset=alpaca"], "set one of plain, deepscaler, eurus_2, scp_116k, ifeval"),
    (["data.max_bad_rows=-1"], "data.max_bad_rows=-1 is out of range"),
    (["data.source=parquet", "data.path=nowhere.parquet"], "there is no such file; set the path of a Parquet file"),
    (
        ["data.source=dataset", f"data.path={HERE}"],
        "there is no such folder; set the path of the folder of a Hugging Face dataset",
    ),
    (
        ["data.source=jsonl", f"data.path={HERE}", "data.held_out_path=gone.jsonl"],
        "data.held_out_path=gone.jsonl: there is no such file",
    ),
    (["data.source=jsonl", f"data.path={HERE.parent}/*.txt"], "there is no such file"),
    (MIXTURE, "data.source=mixture needs data.domains"),
    ([f"data.domains=[{PUZZLES}]"], "data.domains is set and data.source=reasoning_gym: set data.source=mixture"),
    ([*MIXTURE, f"data.domains=[{PUZZLES}, {PUZZLES}]"], "data.domains names puzzles 2 times"),
    (
        [*MIXTURE, "data.domains=[{name: a/b, tasks: [{name: gcd}]}]"],
        "data.domains.0.name='a/b': set a name without a slash",
    ),
    ([*MIXTURE, "data.domains=[{name: a, weight: 0, tasks: [{name: gcd}]}]"], "the weights of data.domains sum to 0"),
    (
        [*MIXTURE, "data.domains=[{name: a, weight: -1, tasks: [{name: gcd}]}]"],
        "data.domains.0.weight=-1.0 is out of range",
    ),
    (
        [*MIXTURE, "data.domains=[{name: a, tasks: [{name: gcd, weight: 0}]}]"],
        "data.domains.0.tasks.0.weight=0.0 is out of range",
    ),
    ([*MIXTURE, "data.domains=[{name: a, source: mixture}]"], "set one of reasoning_gym, jsonl, parquet, dataset"),
    (
        [*MIXTURE, "data.domains=[{name: a}]"],
        "data.domains.0.tasks is empty and data.domains.0.source is reasoning_gym",
    ),
    ([*MIXTURE, "data.domains=[{name: a, source: jsonl}]"], "data.domains.0.source=jsonl needs data.domains.0.path"),
    (
        [*MIXTURE, f"data.domains=[{PUZZLES}]", "data.domains.0.max_prompt_tokens=900"],
        "set data.max_prompt_tokens=900",
    ),
    ([*MIXTURE, "data.domains=[{tasks: [{name: gcd}]}]"], "data.domains[0].name is required and missing"),
    (["data.tasks=[{name: gcd, stages: [{from_question: 9}, {from_question: 9}]}]"], "gcd: its stages begin at [9, 9]"),
    (
        ["data.tasks=[{name: gcd, stages: [{from_question: 0}]}]"],
        "data.tasks.0.stages.0.from_question=0 is out of range",
    ),
    (["data.columns.promt=question"], "Did you mean data.columns.prompt"),
    (
        ["data.verifier=math", "data.columns.verifier=scorer"],
        "data.verifier=math and data.columns.verifier=scorer both say who scores a row: set one of them",
    ),
    (
        [*MIXTURE, f"data.domains=[{PUZZLES}]", "data.domains.0.verifier=math", "data.domains.0.columns.verifier=a"],
        "data.domains.0.verifier=math and data.domains.0.columns.verifier=a both say who scores a row",
    ),
]


@pytest.mark.parametrize(("overrides", "fragment"), WRONG)
def test_a_source_that_cannot_work_is_refused(overrides: list[str], fragment: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("brorl_cpu", overrides)
    assert fragment in str(caught.value)


def test_a_mixture_of_files_and_tasks_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    domains = (
        f"[{PUZZLES}, {{name: math, source: jsonl, path: '{tmp_path}/*.jsonl', weight: 2, columns: {{prompt: "
        f"question}}}}]"
    )
    config = load_config(
        "brorl_cpu", [*MIXTURE, f"data.domains={domains}", "data.domains.1.verifier_options.extract=boxed"]
    )
    assert [(domain.name, domain.weight) for domain in config.data.domains] == [("puzzles", 1.0), ("math", 2.0)]
    assert config.data.domains[1].columns.prompt == "question"
    assert config.data.domains[1].verifier_options == {"extract": "boxed"}


def test_a_domain_without_weight_need_not_be_there() -> None:
    off = "{name: math, source: jsonl, path: gone.jsonl, weight: 0}"
    assert len(load_config("brorl_cpu", [*MIXTURE, f"data.domains=[{PUZZLES}, {off}]"]).data.domains) == 2
