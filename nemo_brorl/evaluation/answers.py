"""What a model answered, prompt by prompt, kept on disk as it comes: an evaluation that is killed goes on where it was.

A file holds the answers to one benchmark under one identity: weights, sampling, seed, contents. Its first line says
which, each further line is one prompt with all of its samples. A line that was cut off by a crash is dropped and its
prompt is asked again: samples are a function of seed and prompt, so the result is that of an evaluation that was never
stopped.

What is missing is sampled, all benchmarks in one stream, so that engines are never idle between two of them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from io import FileIO
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from brorl_graders.verifiers.payload import reference_text

from nemo_brorl.config.rewards import RewardsConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.clock import StopRequest
from nemo_brorl.core.environment_values import as_written
from nemo_brorl.core.errors import CheckpointError, ModelError
from nemo_brorl.core.files import append_whole, naming
from nemo_brorl.core.object_store import fetch
from nemo_brorl.evaluation.benchmarks import Benchmark
from nemo_brorl.rollouts.group_size.wave_weights import Draw
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.types import SUCCESS_REWARD, Int64, Prompt, ScoredGroup

BLOCK = 1 << 22  # bytes read at a time
MAX_REFERENCE = 200  # characters of a reference answer that are kept; of a given one, too
NUM_THREADS = 8
BESIDE_WEIGHTS = ("config.json", "generation_config.json")


@dataclass(frozen=True)
class PromptAnswers:
    """What became of the n samples of one prompt, in the order of their seeds."""

    uid: str
    task: str
    domain: str
    rewards: tuple[float, ...]  # [n] raw
    tokens: tuple[int, ...]  # [n]
    is_stopped: tuple[bool, ...]  # [n] False: cut at the longest response
    answers: tuple[str | None, ...] | None  # [n] in one spelling; None: the verifier knows of no answers
    num_failed: int  # samples whose verifier timed out or crashed
    reference: str | None  # as written; None: the verifier reads none
    turns: tuple[int, ...] | None = None  # [n] of trajectories; None: of no environment
    tool_errors: tuple[int, ...] | None = None  # [n] turns that called a tool wrongly

    @property
    def is_correct(self) -> tuple[bool, ...]:  # [n]
        return tuple(reward >= SUCCESS_REWARD for reward in self.rewards)


_FIELDS = {field.name for field in fields(PromptAnswers)}


def answers_of(group: ScoredGroup) -> PromptAnswers:
    """The part of a scored group that is kept."""
    prompt = group.prompt
    answers = None
    if group.answers is not None:
        answers = tuple(_shortened(answer) for answer in group.answers)
    reference = reference_text(prompt.payload)
    if reference is not None:
        reference = _shortened(reference)
    order = np.argsort(group.indices)  # trajectories that ended at a later turn are in a later chunk
    if answers is not None:
        answers = tuple(answers[place] for place in order)
    turns: tuple[int, ...] | None = None
    if group.records:
        turns = tuple(group.num_turns[order].tolist())
    return PromptAnswers(
        uid=prompt.uid,
        task=prompt.task,
        domain=prompt.domain,
        rewards=tuple(group.rewards[order].tolist()),
        tokens=tuple(group.group.lengths[order].tolist()),
        is_stopped=tuple(group.group.is_stopped[order].tolist()),
        answers=answers,
        num_failed=group.num_failed,
        reference=reference,
        turns=turns,
        tool_errors=_tool_errors(group, order),
    )


def _tool_errors(group: ScoredGroup, order: Int64) -> tuple[int, ...] | None:
    """Turns of each trajectory that called a tool wrongly; None: there is no environment."""
    counts: list[int] = []
    for record in group.records:
        if record is None:
            return None
        counts += record.is_tool_error.sum(axis=1).tolist()
    return tuple(counts[place] for place in order) if counts else None


def weights_digest(folder: Path) -> str:
    """Digest of all bytes of a model's weights and of its config: what two training steps changed is told apart, a copy
    is not. The engines read the same files next, so most of the time this takes is not lost. Raises ModelError for a
    folder without weights."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        files = sorted(folder.glob("*.bin"))
    if not files:
        raise ModelError(
            f"{folder} has no *.safetensors: "
            f"write policy.model=FOLDER of a Hugging Face model, or evaluation.checkpoint=RUN"
        )
    for name in BESIDE_WEIGHTS:
        if (folder / name).exists():
            files.append(folder / name)
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        digests = "".join(pool.map(_file_digest, files))
    digest = hashlib.blake2b(digests.encode(), digest_size=16)
    return digest.hexdigest()


def identity_of(config: BroRLConfig, weights: str, benchmark: Benchmark) -> dict[str, Any]:
    """All that decides the answers to a benchmark, JSON-able; texts from the environment as they were written."""
    identity = {
        "benchmark": benchmark.name,
        "weights": weights,
        "seed": config.trainer.seed,
        "precision": config.generation.precision,
        "settings": benchmark.settings,
        "questions": benchmark.questions,
        "tokens": benchmark.tokens,
        "scoring": _scoring(config.rewards, benchmark),
    }
    return dict(as_written(identity))


def _scoring(rewards: RewardsConfig, benchmark: Benchmark) -> dict[str, Any]:
    """Settings of the verifiers that this benchmark asks; those of others decide nothing."""
    names = set(benchmark.verifiers)
    for prompt in benchmark.prompts:
        names.add(prompt.verifier)  # composite itself, beside its parts
    return {
        "timeout_s": rewards.timeout_s,
        "timeouts": {name: seconds for name, seconds in rewards.timeouts.items() if name in names},
        "code": asdict(rewards.code) if "code" in names else None,
    }


def short_id(identity: Any) -> str:
    """Eight characters that tell identities apart."""
    text = json.dumps(identity, sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=4)
    return digest.hexdigest()


class AnswerFile:
    """The answers to one benchmark. A context: inside it no other process adds to the file."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.path = folder / f"{identity['benchmark']}-{short_id(identity)}.jsonl"
        self.identity = dict(identity)
        self.found: dict[str, PromptAnswers] = {}
        self._file: FileIO | None = None  # without a buffer: nothing is left to be written when it is closed

    def __enter__(self) -> AnswerFile:
        """Read what is there. Raises CheckpointError when another process is evaluating the same, OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("ab+", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise CheckpointError(
                f"{self.path} is being written by another process: wait for it, or write another evaluation.output"
            ) from error
        self._file = file
        self._read()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def add(self, answers: PromptAnswers) -> None:
        """Keep one prompt's answers: they are on disk when this returns. Raises ResourceError where they cannot be."""
        self.found[answers.uid] = answers
        self._write(asdict(answers))

    def _write(self, record: Mapping[str, Any]) -> None:
        assert self._file is not None, "answers are added inside the context"
        line = json.dumps(record, separators=(",", ":"))
        with naming(self.path):
            append_whole(self._file.fileno(), f"{line}\n".encode())
            os.fsync(self._file.fileno())

    def _read(self) -> None:
        """What was written whole; half a line at the end is cut off."""
        assert self._file is not None, "read inside the context"
        data = self.path.read_bytes()
        num_whole = data.rfind(b"\n") + 1
        self._file.truncate(num_whole)
        lines = data[:num_whole].splitlines()
        if not lines:
            self._write({"identity": self.identity})
            return
        if _record(lines[0]) != {"identity": self.identity}:
            raise CheckpointError(
                f"{self.path} does not begin with its identity: it is damaged; move it away to ask everything again"
            )
        for line in lines[1:]:
            answers = _parsed(line)
            if answers is not None:
                self.found[answers.uid] = answers


def nearest_other(folder: Path, identity: Mapping[str, Any]) -> str | None:
    """What sets these answers apart from the most similar ones to the same benchmark by the same weights that lie here;
    None: there are none. Another model's are nothing to wonder about."""
    benchmark = identity["benchmark"]
    nearest: str | None = None
    fewest: list[str] = []
    for path in sorted(folder.glob(f"{benchmark}-*.jsonl")):
        with path.open("rb") as file:
            record = _record(file.readline()) or {}
        other = record.get("identity", {})
        is_of_same_model = other.get("weights") == identity["weights"]
        if other == identity or other.get("benchmark") != benchmark or not is_of_same_model:
            continue
        changed = differing(identity, other)
        if nearest is None or len(changed) < len(fewest):
            nearest = path.name
            fewest = changed
    if nearest is None:
        return None
    return f"{nearest} has other {', '.join(fewest)}"


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of the entries that differ; of settings each by its own name."""
    first = _flat(one)
    second = _flat(other)
    names = sorted(first.keys() | second.keys())
    return [name for name in names if first.get(name) != second.get(name)]


def _flat(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Settings beside the other entries."""
    entries = dict(identity)
    settings = entries.pop("settings", {})
    return {**entries, **settings}


def _parsed(line: bytes) -> PromptAnswers | None:
    """The answers in a line; None where it is damaged or of another version."""
    record = _record(line)
    if record is None or record.keys() != _FIELDS:
        return None
    for name, value in record.items():
        if isinstance(value, list):
            record[name] = tuple(value)
    return PromptAnswers(**record)


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _shortened(text: str | None) -> str | None:
    if text is None or len(text) <= MAX_REFERENCE:
        return text
    written = text.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(written, digest_size=8).hexdigest()
    return f"{text[: MAX_REFERENCE // 2]}…{digest}"


def _file_digest(path: Path) -> str:
    digest = hashlib.blake2b(path.name.encode(), digest_size=16)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


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
