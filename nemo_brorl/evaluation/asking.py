"""Samples what is missing: all benchmarks in one stream, so that engines are never idle between two of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

from nemo_brorl.core.clock import StopRequest
from nemo_brorl.core.object_store import fetch
from nemo_brorl.evaluation.answers import AnswerFile, answers_of
from nemo_brorl.evaluation.benchmarks import Benchmark
from nemo_brorl.rollouts.group_size.wave_weights import Draw
from nemo_brorl.rollouts.sampler import RolloutStream, Sampler
from nemo_brorl.types import Prompt, ScoredGroup

Decode = Callable[[Sequence[int]], str]
STAGE = "evaluate"


def missing(benchmark: Benchmark, file: AnswerFile) -> list[Prompt]:
    """Prompts without answers, in order."""
    return [prompt for prompt in benchmark.prompts if prompt.uid not in file.found]


def ask(
    benchmarks: Sequence[Benchmark],
    files: Mapping[str, AnswerFile],
    sampler: Sampler,
    stop: StopRequest,
    samples: SampleFile | None = None,
) -> bool:
    """Sample and score every prompt that has no answers yet; each is on disk as soon as its group closes. False: told
    to stop before."""
    start = time.monotonic()
    sampler.console.begin()
    stream = sampler.open_stream()
    with closing(stream), sampler.stage(STAGE):
        file_of = {
            uid: files[benchmark.name]
            for benchmark in benchmarks
            for uid in _open(stream, benchmark, files[benchmark.name])
        }
        while not stream.is_idle:
            for group in [stream.release(settled.uid).close() for settled in stream.advance()]:
                _keep(group, file_of[group.prompt.uid], samples)
            sampler.console.progress(STAGE, stream.num_settled, stream.num_asked, "responses", time.monotonic() - start)
            if stop.should_stop():
                break
    sampler.console.clear()
    return all(not missing(benchmark, files[benchmark.name]) for benchmark in benchmarks)


def _open(stream: RolloutStream, benchmark: Benchmark, file: AnswerFile) -> list[str]:
    prompts = missing(benchmark, file)
    for prompt in prompts:
        stream.open(prompt, Draw(benchmark.num_samples, 1.0), benchmark.sampling)
    return [prompt.uid for prompt in prompts]


def _keep(group: ScoredGroup, file: AnswerFile, samples: SampleFile | None) -> None:
    if samples is not None:
        samples.add(group)
    file.add(answers_of(group))


class SampleFile:
    """The first few responses of each prompt as text, to read what a model does. A prompt that is asked again after a
    crash may be there twice."""

    def __init__(self, path: Path, num: int, decode: Decode) -> None:
        self.path, self.num, self.decode = path, num, decode
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:  # half a line at the end goes
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)

    def add(self, group: ScoredGroup) -> None:
        """Write a line for each of the first responses of a group."""
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in self._rows(group))

    def _rows(self, group: ScoredGroup) -> list[dict[str, Any]]:
        texts: list[str] = []
        for chunk in group.group.chunks:
            if len(texts) >= self.num:
                break
            arrays = fetch(chunk.data)
            bounds = arrays.offsets.tolist()
            texts += [self.decode(arrays.token_ids[low:high].tolist()) for low, high in pairwise(bounds)]
        question = self.decode(group.prompt.token_ids)
        return [
            {
                "uid": group.prompt.uid,
                "sample": place,
                "prompt": question,
                "response": text,
                "reward": float(group.rewards[place]),
                "answer": None if group.answers is None else group.answers[place],
                "is_truncated": not bool(group.group.is_stopped[place]),
            }
            for place, text in enumerate(texts[: self.num])
        ]
