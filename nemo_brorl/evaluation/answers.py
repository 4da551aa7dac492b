"""Keep a model's answers on disk, prompt by prompt, so that an interrupted evaluation is resumed.

A file holds the answers to one benchmark under one identity: weights, sampling, seed, contents. Its first line is the
identity, and each further line is one prompt with all of its samples. A line that a crash cut off is dropped and its
prompt is sampled again. Samples are a function of seed and prompt, so the result equals that of an uninterrupted
evaluation.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from brorl_graders import full_mark, lowest_right, reference_text
from brorl_graders.base.foreign import MAX_LINE, VAST, open_record, read_json

from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.core.files import append_whole, naming
from nemo_brorl.evaluation.identity import differing, short_id
from nemo_brorl.types import Int64, ScoredGroup

MAX_REFERENCE = 200  # characters of a reference answer or an extracted answer that are kept


@dataclass(frozen=True)
class PromptAnswers:
    """Answers and rewards of the n samples of one prompt, in the order of their seeds."""

    uid: str
    task: str
    domain: str
    rewards: tuple[float, ...]  # raw rewards [n]
    tokens: tuple[int, ...]  # response tokens [n]
    is_stopped: tuple[bool, ...]  # flags [n]; False: cut at the length limit
    answers: tuple[str | None, ...] | None  # normalised extracted answers [n]; None: the verifier extracts none
    num_failed: int  # samples whose verifier failed; n does not count them
    reference: str | None  # reference answer as written; None: the verifier reads none
    turns: tuple[int, ...] | None = None  # turns of trajectories [n]; None: no environment
    tool_errors: tuple[int, ...] | None = None  # turns that called a tool wrongly [n]; None: no environment
    full_mark: float = 1.0  # reward from which a sample is right

    @property
    def is_correct(self) -> tuple[bool, ...]:  # [n]
        return tuple(reward >= lowest_right(self.full_mark) for reward in self.rewards)


_FIELDS = {field.name for field in fields(PromptAnswers)}


def answers_of(group: ScoredGroup) -> PromptAnswers:
    """Return what an evaluation stores of a scored group of responses.

    That is the prompt's id, task, domain and reference answer, and each response's reward, extracted answer, number of
    tokens, turns and tool errors, and whether it ended by itself. The number of responses whose verifier failed is
    stored, too. Responses are in the order of their seeds.
    """
    prompt = group.prompt
    answers = None
    if group.answers is not None:
        answers = tuple(_shortened(answer) for answer in group.answers)
    reference = reference_text(prompt.payload)
    if reference is not None:
        reference = _shortened(reference)
    # A trajectory that ended at a later turn is in a later chunk, but the file has samples in the order of their seeds.
    order = np.argsort(group.indices)
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
        full_mark=full_mark(prompt.payload),
    )


def _tool_errors(group: ScoredGroup, order: Int64) -> tuple[int, ...] | None:
    """Return how many turns of each trajectory called a tool wrongly; None without an environment."""
    counts: list[int] = []
    for record in group.records:
        if record is None:
            return None
        counts += record.is_tool_error.sum(axis=1).tolist()
    return tuple(counts[place] for place in order) if counts else None


class AnswerFile:
    """The answers to one benchmark. Inside its context no other process can add to the file."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.path = folder / f"{identity['benchmark']}-{short_id(identity)}.jsonl"
        self.identity = dict(identity)
        self.found: dict[str, PromptAnswers] = {}
        # Opened without a buffer, so that closing it writes nothing.
        self._file: FileIO | None = None

    def __enter__(self) -> AnswerFile:
        """Lock the file that holds the answers to a benchmark, and read it.

        Raises CheckpointError if another process has the lock, and OSError.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("ab+", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise CheckpointError(
                f"{self.path} is being written by another process: wait for it, or set another evaluation.output"
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
        """Append the answers to one prompt to the answer file, on disk when this returns. Raises ResourceError."""
        self.found[answers.uid] = answers
        self._write(asdict(answers))

    def _write(self, record: Mapping[str, Any]) -> None:
        assert self._file is not None, "answers are added inside the context"
        line = json.dumps(record, separators=(",", ":"))
        with naming(self.path):
            append_whole(self._file.fileno(), f"{line}\n".encode())
            os.fsync(self._file.fileno())

    def _read(self) -> None:
        """Read the complete lines of a benchmark's answer file, and cut off half a line that a crash left."""
        assert self._file is not None, "read inside the context"
        data = self.path.read_bytes()
        # A crash may leave half a line, which the next line must not extend.
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
    """Describe how an evaluation differs from the most similar one with stored answers of the same weights.

    Returns None if there are none. Answers of other models are ignored, because they are expected to differ.
    """
    benchmark = identity["benchmark"]
    nearest: str | None = None
    fewest: list[str] = []
    for path in sorted(folder.glob(f"{benchmark}-*.jsonl")):
        with open_record(path, VAST) as file:
            record = _record(file.readline(MAX_LINE)) or {}
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


def _parsed(line: bytes) -> PromptAnswers | None:
    """Return a prompt's answers from a line of an evaluation's answer file.

    Returns None if the line is damaged or of another version.
    """
    record = _record(line)
    # Earlier versions wrote no full mark: it was 1.
    if record is None or record.keys() | {"full_mark"} != _FIELDS:
        return None
    for name, value in record.items():
        if isinstance(value, list):
            record[name] = tuple(value)
    return PromptAnswers(**record)


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = read_json(line, most_bytes=len(line))
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _shortened(text: str | None) -> str | None:
    if text is None or len(text) <= MAX_REFERENCE:
        return text
    written = text.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(written, digest_size=8).hexdigest()
    return f"{text[: MAX_REFERENCE // 2]}…{digest}"
