"""Samples what is missing: all benchmarks in one stream, so that engines are never idle between two of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

from nemo_brorl.core.clock import StopRequest
from nemo_brorl.core.files import naming
from nemo_brorl.core.object_store import fetch
from nemo_brorl.evaluation.answers import AnswerFile, answers_of
from nemo_brorl.evaluation.benchmarks import Benchmark
from nemo_brorl.rollouts.group_size.wave_weights import Draw
from nemo_brorl.rollouts.sampler import Sampler
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
    file_of: dict[str, AnswerFile] = {}  # by uid
    with closing(stream), sampler.stage(STAGE):
        for benchmark in benchmarks:
            file = files[benchmark.name]
            for prompt in missing(benchmark, file):
                draw = Draw(benchmark.num_samples, 1.0)
                stream.open(prompt, draw, benchmark.sampling)
                file_of[prompt.uid] = file
        while not stream.is_idle:
            for settled in stream.advance():
                group = stream.release(settled.uid).close()
                _keep(group, file_of[settled.uid], samples)
            passed_s = time.monotonic() - start
            sampler.console.progress(STAGE, stream.num_settled, stream.num_asked, "responses", passed_s)
            if stop.should_stop():
                break
    sampler.console.clear()
    return not any(missing(benchmark, files[benchmark.name]) for benchmark in benchmarks)


def _keep(group: ScoredGroup, file: AnswerFile, samples: SampleFile | None) -> None:
    if samples is not None:
        samples.add(group)
    file.add(answers_of(group))


class SampleFile:
    """The first few responses of each prompt as text, to read what a model does. A prompt that is asked again after a
    crash may be there twice."""

    def __init__(self, path: Path, num: int, decode: Decode) -> None:
        self.path = path
        self.num = num
        self.decode = decode
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            file.seek(0)
            num_whole = file.read().rfind(b"\n") + 1
            file.truncate(num_whole)  # half a line at the end goes

    def add(self, group: ScoredGroup) -> None:
        """Write a line for each of the first responses of a group. Raises ResourceError."""
        question = self.decode(group.prompt.token_ids)
        with naming(self.path), self.path.open("a", encoding="utf-8") as file:
            for place, text in enumerate(self._texts(group)):
                answer = None if group.answers is None else group.answers[place]
                is_stopped = bool(group.group.is_stopped[place])
                row = {
                    "uid": group.prompt.uid,
                    "sample": place,
                    "prompt": question,
                    "response": text,
                    "reward": float(group.rewards[place]),
                    "answer": answer,
                    "is_truncated": not is_stopped,
                }
                line = json.dumps(row)
                file.write(f"{line}\n")

    def _texts(self, group: ScoredGroup) -> list[str]:
        """The first responses, as many as are kept."""
        texts: list[str] = []
        for chunk in group.group.chunks:
            if len(texts) >= self.num:
                break
            arrays = fetch(chunk.data)
            for low, high in pairwise(arrays.offsets.tolist()):
                token_ids = arrays.token_ids[low:high]
                texts.append(self.decode(token_ids.tolist()))
        return texts[: self.num]
