"""Benchmarks from files of the usual layouts and from Reasoning Gym, in small files made here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from brorl_graders.verifiers.registry import judge

from nemo_brorl.config.evaluation import BenchmarkConfig, EvaluationConfig
from nemo_brorl.config.load import load_config
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import BroRLError, DataError
from nemo_brorl.core.tokenizer import ChatTokenizer, load_tokenizer
from nemo_brorl.evaluation.benchmarks import Benchmark, held_out_prompts, read_benchmarks
from nemo_brorl.prompts.sources import Sources
from nemo_brorl.scoring.grader_settings import configure
from tests.support.tiny_model import make_tokenizer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(folder)
    return load_tokenizer(folder)


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(tokenizer: ChatTokenizer, *benchmarks: str, overrides: Sequence[str] = ()) -> list[Benchmark]:
    room = ["generation.max_model_len=2048", "data.max_prompt_tokens=400"]
    config = load_config("brorl_cpu", [*room, f"evaluation.benchmarks=[{', '.join(benchmarks)}]", *overrides])
    return read_benchmarks(config.evaluation, config.data, config.rollouts, tokenizer)


def solved(benchmark: Benchmark, index: int, response: str) -> float:
    prompt = benchmark.prompts[index]
    score, _ = judge(prompt.verifier, prompt.payload, response)
    return score


def test_a_file_of_math_problems_is_asked_in_its_order(tokenizer: ChatTokenizer, tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "aime.jsonl", [{"problem": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(5)]
    )
    (found,) = read(
        tokenizer,
        f"{{name: aime, domain: math, path: {path}, preset: deepscaler, samples_per_prompt: 64, max_response_tokens: "
        f"99}}",
    )
    assert [prompt.uid for prompt in found.prompts] == [f"aime/{row}" for row in range(5)]
    assert (found.num_samples, found.sampling.max_tokens) == (64, 99)
    assert {(prompt.domain, prompt.task, prompt.verifier) for prompt in found.prompts} == {("math", "aime", "math")}
    assert tokenizer.decode(found.prompts[2].token_ids).strip() == "What is 2 + 1?"
    assert (solved(found, 2, r"\boxed{3}"), solved(found, 2, r"\boxed{4}")) == (1.0, 0.0)


LAYOUTS = [
    (
        "{name: minerva, preset: deepscaler, columns: {prompt: question}}",
        {"question": "Half of one?", "answer": "\\frac{1}{2}"},
        ("It is \\boxed{0.5}", "It is \\boxed{2}"),
    ),
    (
        "{name: olympiad, preset: deepscaler, columns: {prompt: question, answer: final_answer}}",
        {"question": "Roots?", "final_answer": ["1", "one"]},
        ("\\boxed{1}", "\\boxed{3}"),
    ),
    (
        '{name: gpqa, verifier: multiple_choice, columns: {prompt: question, payload: {choices: "choices?"}}}',
        {"question": "Which? A) red B) blue", "choices": ["red", "blue"], "answer": "B"},
        ("Answer: B", "Answer: A"),
    ),
    (
        "{name: ifeval, preset: ifeval, verifier_options: {scoring: all}}",
        {"key": 1, "prompt": "Say hi without commas.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
        ("hi there", "hi, there"),
    ),
    (
        '{name: humaneval, verifier: code, columns: {answer: "", payload: {script: test, entry_point: entry_point}}}',
        {"prompt": "def add(a, b):", "test": "def check(f):\n    assert f(1, 2) == 3\n", "entry_point": "add"},
        None,
    ),
    (
        '{name: livecodebench, verifier: code, columns: {answer: "", payload: {inputs: inputs, outputs: outputs, '
        'fn_name: "fn_name?"}}}',
        {"prompt": "Double it.", "inputs": ["2\n"], "outputs": ["4\n"]},
        None,
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "row", "responses"), LAYOUTS, ids=lambda value: value.split(",")[0][7:] if isinstance(value, str) else ""
)
def test_the_usual_layouts_are_read_by_their_columns(
    layout: str, row: dict[str, Any], responses: tuple[str, str] | None, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    path = write_rows(tmp_path / "file.jsonl", [row])
    (found,) = read(tokenizer, layout[:-1] + f", path: {path}}}")
    assert len(found.prompts) == 1
    if responses is not None:  # programs run in a sandbox: tests/unit/rewards
        assert [solved(found, 0, response) for response in responses] == [1.0, 0.0]


def test_only_the_first_rows_are_asked_and_only_chosen_benchmarks_are_opened(
    tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"prompt": f"{n}?", "answer": "1"} for n in range(9)])
    found = read(
        tokenizer,
        f"{{name: a, path: {path}, num_prompts: 3}}",
        "{name: gone, path: gone.jsonl}",
        overrides=["evaluation.only=[a]"],
    )
    assert [[prompt.uid for prompt in benchmark.prompts] for benchmark in found] == [["a/0", "a/1", "a/2"]]


def test_reasoning_gym_draws_the_same_held_out_questions_each_time(tokenizer: ChatTokenizer) -> None:
    puzzles = "{name: puzzles, source: reasoning_gym, tasks: [{name: gcd}, {name: leg_counting}], num_prompts: 12}"
    (one,), (again,) = read(tokenizer, puzzles), read(tokenizer, puzzles, overrides=["trainer.seed=9"])
    assert (one.questions, one.tokens) == (again.questions, again.tokens)
    assert {prompt.task for prompt in one.prompts} == {"gcd", "leg_counting"}
    assert len({prompt.uid for prompt in one.prompts}) == 12
    assert solved(one, 0, f"<answer>{one.prompts[0].payload['answer']}</answer>") == 1.0


def test_without_benchmarks_the_held_out_prompts_are_asked(tokenizer: ChatTokenizer) -> None:
    config = load_config(
        "brorl_cpu", ["evaluation.num_prompts=6", "data.max_prompt_tokens=400", "generation.max_model_len=2048"]
    )
    (found,) = read_benchmarks(config.evaluation, config.data, config.rollouts, tokenizer)
    assert (found.name, len(found.prompts), found.num_samples) == ("held_out", 6, config.evaluation.samples_per_prompt)
    assert found.prompts[0].uid == "held_out/0"


def test_prompts_for_reporting_follow_those_for_tuning(tokenizer: ChatTokenizer) -> None:
    room = ["data.max_prompt_tokens=400", "generation.max_model_len=2048"]
    both = load_config("brorl_cpu", [*room, "evaluation.num_prompts=6"])
    reported = load_config("brorl_cpu", [*room, "evaluation.num_prompts=2", "evaluation.first_prompt=4"])
    all_prompts = held_out_prompts(both.evaluation, both.data, tokenizer, Sources(both.data))
    assert held_out_prompts(reported.evaluation, reported.data, tokenizer, Sources(reported.data)) == all_prompts[4:]


def test_questions_are_told_apart_from_how_a_tokenizer_reads_them(tokenizer: ChatTokenizer, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"prompt": "1?", "answer": "1"}])
    (plain,), (prompted,) = (
        read(tokenizer, f"{{name: a, path: {path}}}"),
        read(tokenizer, f"{{name: a, path: {path}, system_prompt: Think.}}"),
    )
    assert plain.questions == prompted.questions
    assert plain.tokens != prompted.tokens
    assert plain.settings != prompted.settings
    write_rows(path, [{"prompt": "1?", "answer": "2"}])
    (other,) = read(tokenizer, f"{{name: a, path: {path}}}")
    assert other.questions != plain.questions, "another reference answer"


def test_a_prompt_over_the_limit_is_an_error_and_not_left_out(tokenizer: ChatTokenizer, tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "a.jsonl", [{"prompt": "short", "answer": "1"}, {"prompt": "long " * 20, "answer": "1"}]
    )
    with pytest.raises(
        DataError,
        match=r"evaluation.benchmarks.0 \(a\): 1 of 2 prompts .* \(a/1 has 10\d\): set max_prompt_tokens=10\d",
    ):
        read(tokenizer, f"{{name: a, path: {path}, max_prompt_tokens: 50}}")


@pytest.mark.parametrize(
    ("benchmark", "message"),
    [
        ("{name: a, path: gone.jsonl}", r"evaluation.benchmarks.0 \(a\): .*gone.jsonl"),
        ("{name: a, path: %s, columns: {prompt: question}}", r"has no column question"),
        ("{name: a, path: %s, verifier: maths}", r"unknown verifier 'maths'"),
        (
            "{name: a, source: reasoning_gym, tasks: [{name: gdc}], num_prompts: 4}",
            r"unknown Reasoning Gym task 'gdc'; did you mean gcd",
        ),
    ],
)
def test_a_benchmark_that_cannot_be_read_is_named(
    benchmark: str, message: str, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"prompt": "1?", "answer": "1"}])
    with pytest.raises(BroRLError, match=message):
        read(tokenizer, benchmark % path if "%" in benchmark else benchmark)


def test_an_empty_file_is_refused(tokenizer: ChatTokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(DataError, match="is empty"):
        read(tokenizer, f"{{name: a, path: {tmp_path / 'a.jsonl'}}}")


def test_a_benchmark_may_be_played_with_an_environment(tokenizer: ChatTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "sums.jsonl"
    path.write_text('{"prompt": "1 + 1 =", "answer": "2"}\n', encoding="utf-8")
    retried = BenchmarkConfig(
        name="sums", path=str(path), environment="verify_and_retry", environment_settings={"max_turns": 3}
    )
    game = BenchmarkConfig(
        name="game", source="environment", environment="mastermind", num_prompts=2, max_prompt_tokens=300
    )
    config = BroRLConfig(evaluation=EvaluationConfig(benchmarks=[retried, game]))
    configure(config)
    sums, games = read_benchmarks(config.evaluation, config.data, config.rollouts, tokenizer)
    (prompt,) = sums.prompts
    assert prompt.verifier == "environment"
    assert prompt.messages == ({"role": "user", "content": "1 + 1 ="},)
    assert prompt.payload["task"]["payload"]["answer"] == "2"
    assert [prompt.payload["environment"] for prompt in games.prompts] == ["mastermind"] * 2
    endless = BenchmarkConfig(name="game", source="environment", environment="mastermind")
    assert list(endless.violations_at("here")) == [
        "here.source=environment has no end: set here.num_prompts, for example 100"
    ]


def test_another_judge_makes_another_evaluation(tokenizer: ChatTokenizer, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "b.jsonl", [{"prompt": "1 + 1?", "answer": "2"}])
    asked = []
    for threshold in ("0.5", "0.75"):
        judge = f"{{name: judge, url: 'https://host/v1', model: m, threshold: {threshold}}}"
        endpoints = f"rewards.services.endpoints=[{judge}]"
        benchmark = f"evaluation.benchmarks=[{{name: b, path: {path}, verifier: judge}}]"
        config = load_config("brorl_cpu", [benchmark, endpoints])
        configure(config)
        (found,) = read_benchmarks(config.evaluation, config.data, config.rollouts, tokenizer)
        asked.append(found.questions)
    assert asked[0] != asked[1]
