"""Sample the prompts that have no answers yet, for all benchmarks in one stream, so that engines are never idle."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing

from nemo_brorl.core.clock import StopRequest
from nemo_brorl.core.errors import VerifierError
from nemo_brorl.evaluation.answers import AnswerFile, answers_of
from nemo_brorl.evaluation.benchmarks import Benchmark
from nemo_brorl.evaluation.sample_file import SampleFile
from nemo_brorl.rollouts.failures import FailureCount
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.types import Prompt, ScoredGroup

STAGE = "evaluate"


def unanswered_prompts(benchmark: Benchmark, file: AnswerFile) -> list[Prompt]:
    """Return the benchmark's prompts that have no answers yet, in order."""
    return [prompt for prompt in benchmark.prompts if prompt.uid not in file.found]


def sample_prompts(
    benchmarks: Sequence[Benchmark],
    files: Mapping[str, AnswerFile],
    sampler: Sampler,
    stop: StopRequest,
    samples: SampleFile | None = None,
) -> bool:
    """Sample and score every prompt that has no answers, and return False if a stop was requested before the end.

    The answers to a prompt are on disk as soon as all its responses are scored. Raises VerifierError at the end if a
    prompt has no response that could be scored.
    """
    start = time.monotonic()
    sampler.console.begin()
    stream = sampler.open_stream()
    file_of: dict[str, AnswerFile] = {}  # answer files by the prompt's uid
    failures = FailureCount()
    num_lost = 0  # prompts without a scored response
    with closing(stream), sampler.stage(STAGE):
        for benchmark in benchmarks:
            file = files[benchmark.name]
            for prompt in unanswered_prompts(benchmark, file):
                stream.open(prompt, benchmark.num_samples, benchmark.sampling)
                file_of[prompt.uid] = file
        while not stream.is_idle:
            # Saved one by one, so that a killed evaluation loses only the groups in progress.
            for settled in stream.advance():
                group = stream.release(settled.uid).close()
                failures.add(group)
                num_lost += not len(group.rewards)
                _keep(group, file_of[settled.uid], samples)
            passed_s = time.monotonic() - start
            sampler.console.progress(STAGE, stream.num_settled, stream.num_asked, "responses", passed_s)
            if stop.should_stop():
                break
    sampler.console.clear()
    for line in failures.lines():
        sampler.console.line(f"reward  {line}")
    if num_lost and not stop.should_stop():
        raise VerifierError(
            f"{num_lost} prompts have no response that could be scored: {'; '.join(failures.lines())}. Mend the reward "
            "function or its service, then run the same command, which asks these prompts alone"
        )
    return not any(unanswered_prompts(benchmark, files[benchmark.name]) for benchmark in benchmarks)


def _keep(group: ScoredGroup, file: AnswerFile, samples: SampleFile | None) -> None:
    if not len(group.rewards):
        return
    if samples is not None:
        samples.add(group)
    file.add(answers_of(group))
