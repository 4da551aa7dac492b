"""Asking what is missing, on fakes."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from nemo_brorl.core.clock import StopRequest
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import VerifierError
from nemo_brorl.evaluation.answers import AnswerFile
from nemo_brorl.evaluation.asking import sample_prompts, unanswered_prompts
from nemo_brorl.evaluation.benchmarks import Benchmark
from nemo_brorl.evaluation.results import ordered
from nemo_brorl.evaluation.sample_file import SampleFile
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.types import RolloutChunk, ScoredChunk
from tests.support.fakes import FailingVerifier, FakeGenerator, FakeVerifier
from tests.unit.evaluation.answers import identity, make_benchmark

EASY, HARD = make_benchmark("easy", 3, num_samples=6), make_benchmark("hard", 2, num_samples=3)


class OneAtATime(FakeGenerator):
    """One chunk each time it is asked."""

    num_per_poll = 1


class StopAfter(StopRequest):
    """Asked to stop after so many turns."""

    def __init__(self, num_turns: int) -> None:
        super().__init__(None)
        self.num_turns = num_turns

    def should_stop(self) -> bool:
        self.num_turns -= 1
        return self.num_turns <= 0


def evaluate(
    folder: Path, generator: FakeGenerator, stop: StopRequest, samples: SampleFile | None = None
) -> tuple[bool, dict[str, AnswerFile]]:
    with ExitStack() as stack:
        benchmarks: list[Benchmark] = [EASY, HARD]
        files = {
            benchmark.name: stack.enter_context(AnswerFile(folder, identity(benchmark))) for benchmark in benchmarks
        }
        return sample_prompts(
            benchmarks, files, Sampler(generator, FakeVerifier(), Console(), 4, 0), stop, samples
        ), files


def test_prompts_without_any_score_are_asked_again_by_the_same_command(tmp_path: Path) -> None:
    class FailingOnce(FakeVerifier):
        def scored(self, chunk: RolloutChunk) -> ScoredChunk:
            is_lost = chunk.request.prompt.uid == EASY.prompts[1].uid
            return FailingVerifier(range(6) if is_lost else (0,)).scored(chunk)

    with AnswerFile(tmp_path, identity(EASY)) as file:
        failing = Sampler(FakeGenerator(), FailingOnce(), Console(), 4, 0)
        with pytest.raises(VerifierError, match="^1 prompts have no response .* toy failed on 8 of 18: crashed"):
            sample_prompts([EASY], {"easy": file}, failing, StopRequest(None))
        assert [len(answers.rewards) for answers in file.found.values()] == [5, 5]
        assert unanswered_prompts(EASY, file) == [EASY.prompts[1]]


def test_every_prompt_gets_the_samples_of_its_benchmark(tmp_path: Path) -> None:
    is_done, files = evaluate(tmp_path, FakeGenerator(), StopRequest(None))
    assert is_done
    # rollouts 0..5: all right, every second, every third; of the other three samples each
    assert [answers.is_correct for answers in ordered(EASY, files["easy"])] == [
        (True,) * 6,
        (True, False) * 3,
        (True, False, False) * 2,
    ]
    assert [answers.is_correct for answers in ordered(HARD, files["hard"])] == [(True, True, True), (True, False, True)]


def test_only_what_has_no_answers_is_asked_again(tmp_path: Path) -> None:
    whole_generator = FakeGenerator()
    _, whole = evaluate(tmp_path / "whole", whole_generator, StopRequest(None))
    _, files = evaluate(tmp_path / "killed", FakeGenerator(), StopRequest(None))
    lines = files["easy"].path.read_text().splitlines(keepends=True)
    files["easy"].path.write_text("".join(lines[:2]) + lines[2][:30])  # killed while it wrote the second prompt
    generator = FakeGenerator()
    is_done, again = evaluate(tmp_path / "killed", generator, StopRequest(None))
    assert is_done
    assert (whole_generator.num_samples, generator.num_samples) == (3 * 6 + 2 * 3, 2 * 6)
    for benchmark in (EASY, HARD):
        assert ordered(benchmark, again[benchmark.name]) == ordered(benchmark, whole[benchmark.name])


def test_a_request_to_stop_ends_it_with_what_is_there(tmp_path: Path) -> None:
    is_done, files = evaluate(tmp_path, OneAtATime(), StopAfter(2))
    assert not is_done
    # The last request comes first, and is scored a turn later.
    assert [len(unanswered_prompts(benchmark, files[benchmark.name])) for benchmark in (EASY, HARD)] == [3, 1]


def test_the_first_responses_are_kept_as_text(tmp_path: Path) -> None:
    samples = SampleFile(tmp_path / "samples.jsonl", 5, lambda ids: " ".join(map(str, ids)))
    evaluate(tmp_path / "answers", FakeGenerator(), StopRequest(None), samples)
    rows = [json.loads(line) for line in samples.path.read_text().splitlines()]
    assert len(rows) == 3 * 5 + 2 * 3
    first = next(row for row in rows if row["uid"] == "easy/1" and row["sample"] == 4)  # of its second chunk
    assert (first["prompt"], first["response"], first["reward"], first["is_truncated"]) == (
        "0 1 2",
        "40 41",
        1.0,
        False,
    )


def test_half_a_line_of_samples_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text('{"uid": "a"}\n{"uid": ')
    SampleFile(path, 1, str)
    assert path.read_text() == '{"uid": "a"}\n'
