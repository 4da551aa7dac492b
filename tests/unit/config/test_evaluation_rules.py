"""Rules of evaluation: what cannot be asked is said before a file is opened or an engine started."""

from __future__ import annotations

import pytest

from nemo_brorl.config.lengths import BenchmarkLimits, benchmark_limits
from nemo_brorl.config.load import load_config
from nemo_brorl.core.errors import ConfigError

AIME = "{name: aime, path: aime.jsonl, preset: deepscaler}"
PUZZLES = "{name: puzzles, source: reasoning_gym, tasks: [{name: gcd}], num_prompts: 8}"

WRONG = [
    (
        ["evaluation.pass_at_k=[4,16]"],
        "evaluation.pass_at_k has 16 and evaluation draws 8 samples of a prompt: set samples_per_prompt=16",
    ),
    (["evaluation.majority_at_k=[9]"], "evaluation.majority_at_k has 9 and evaluation draws 8 samples"),
    (["evaluation.pass_at_k=[0]"], "evaluation.pass_at_k has 0: set numbers from 1"),
    (
        [
            "evaluation.samples_per_prompt=64",
            "evaluation.pass_at_k=[32]",
            "evaluation.benchmarks=[{name: a, path: a.jsonl, samples_per_prompt: 4}]",
        ],
        "evaluation.pass_at_k has 32 and evaluation.benchmarks.0 (a) draws 4 samples",
    ),
    (
        [f"evaluation.benchmarks=[{AIME}]", "evaluation.only=[amc]"],
        "evaluation.only names amc, and there is no such benchmark: set one of aime",
    ),
    (
        ["evaluation.only=[aime]"],
        "evaluation.only names aime, and there is no such benchmark: evaluation.benchmarks lists none",
    ),
    ([f"evaluation.benchmarks=[{AIME}, {AIME}]"], "evaluation.benchmarks names aime 2 times"),
    (
        ["evaluation.benchmarks=[{name: a/b, path: a.jsonl}]"],
        "evaluation.benchmarks.0.name='a/b': set a name without a slash",
    ),
    (["evaluation.benchmarks=[{path: a.jsonl}]"], "evaluation.benchmarks[0].name is required and missing"),
    (["evaluation.benchmarks=[{name: a}]"], "evaluation.benchmarks.0.source=jsonl needs evaluation.benchmarks.0.path"),
    (
        ["evaluation.benchmarks=[{name: a, path: a.jsonl, source: csv}]"],
        "set one of reasoning_gym, jsonl, parquet, dataset",
    ),
    (
        ["evaluation.benchmarks=[{name: a, path: a.jsonl, held_out_path: b.jsonl}]"],
        "is for training: name the file of the benchmark",
    ),
    (["evaluation.benchmarks=[{name: a, tasks: [{name: gcd}]}]"], "set evaluation.benchmarks.0.source=reasoning_gym"),
    (
        ["evaluation.benchmarks=[{name: a, source: reasoning_gym, num_prompts: 4}]"],
        "evaluation.benchmarks.0.tasks is empty",
    ),
    (
        ["evaluation.benchmarks=[{name: a, source: reasoning_gym, tasks: [{name: gcd}]}]"],
        "has no end: set evaluation.benchmarks.0.num_prompts",
    ),
    (
        [f"evaluation.benchmarks=[{PUZZLES}]", "data.held_out_fraction=0"],
        "and data.held_out_fraction=0: set a share above 0",
    ),
    (
        [
            f"evaluation.benchmarks=[{AIME}]",
            "evaluation.benchmarks.0.max_response_tokens=900",
            "generation.max_model_len=256",
        ],
        "set generation.max_model_len=1060",
    ),
    (
        ["evaluation.benchmarks=[{name: a, path: a.jsonl, samples_per_prompt: 0}]"],
        "evaluation.benchmarks.0.samples_per_prompt=0 is out of range",
    ),
    (["evaluation.confidence=1.0"], "evaluation.confidence=1.0 is out of range"),
]


@pytest.mark.parametrize(("overrides", "fragment"), WRONG)
def test_an_evaluation_that_cannot_work_is_refused(overrides: list[str], fragment: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("brorl_cpu", overrides)
    assert fragment in str(caught.value)


def test_a_benchmark_takes_from_the_shared_settings_what_it_does_not_say() -> None:
    config = load_config(
        "brorl_cpu", [f"evaluation.benchmarks=[{AIME}, {PUZZLES}]", "evaluation.benchmarks.1.samples_per_prompt=3"]
    )
    benchmarks = [benchmark for _, benchmark in config.evaluation.selected()]
    sections = (config.evaluation, config.data, config.rollouts)
    shared = (config.data.max_prompt_tokens, config.rollouts.max_response_tokens)
    assert benchmark_limits(*sections, benchmarks[0]) == BenchmarkLimits(8, *shared)
    assert benchmark_limits(*sections, benchmarks[1]) == BenchmarkLimits(3, *shared)
    assert benchmark_limits(*sections, None) == BenchmarkLimits(8, *shared)


def test_benchmarks_that_are_not_asked_may_be_wrong() -> None:
    config = load_config(
        "brorl_cpu", [f"evaluation.benchmarks=[{AIME}, {{name: unfinished}}]", "evaluation.only=[aime]"]
    )
    assert [benchmark.name for _, benchmark in config.evaluation.selected()] == ["aime"]


def test_with_benchmarks_the_data_need_not_be_there() -> None:
    config = load_config("brorl_five_domains", [f"evaluation.benchmarks=[{AIME}]"])
    assert config.data.domains[0].path is None
