"""Read steps of the rollout store back into the types that were written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from brorl_graders.base.foreign import DIGITS, LARGE, SMALL, VAST, open_record, read_json

from nemo_brorl.cluster.object_store import fetch_all, store
from nemo_brorl.core.errors import ConfigError, DataError
from nemo_brorl.core.files import MALFORMED, why_unreadable
from nemo_brorl.rollouts.ledger import close_group
from nemo_brorl.scoring.response_arrays import response_keys, turn_ends
from nemo_brorl.training.store.files import StoreFiles
from nemo_brorl.training.store.tables import FORMAT, METADATA
from nemo_brorl.types import (
    Bool,
    ChunkArrays,
    Float32,
    Int32,
    Prompt,
    RolloutChunk,
    RolloutRequest,
    Sampling,
    ScoredChunk,
    ScoredGroup,
    StepRecord,
    StoredGroup,
    TurnRecord,
)

Columns = dict[str, np.ndarray]


def read_step(run_folder: Path, step: int, fates: Collection[str] | None = None) -> StepRecord:
    """Return a training step from the rollout store, with the groups of the given fates or with all groups.

    A group's fate says whether the step trained on it, dropped it, and so on. Tokens are put into Ray's object store
    where Ray is running. Only one group at a time is in this process. Raises DataError when the step is missing or
    cannot be read.
    """
    files = StoreFiles(run_folder)
    with _data_errors(files, step):
        groups = read_table(files.groups(step))
        numbers = _step_numbers(groups)
        stored = tuple(_stored_groups(groups, files.rollouts(step), fates))
    return StepRecord(
        step=step,
        version=numbers["version"],
        learning_rate=numbers["learning_rate"],
        loss_scale=numbers["loss_scale"],
        groups=stored,
        num_left_out=numbers.get("left_out", 0),
    )


@contextmanager
def _data_errors(files: StoreFiles, step: int) -> Iterator[None]:
    """Turn errors while a stored step is read into a DataError."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(_missing_step_text(files, step)) from error
    except (OSError, pa.ArrowException, AssertionError, *MALFORMED) as error:
        raise DataError(f"step {step} in {files.folder} cannot be read: {error}") from error


def read_payload(text: str) -> Any:
    """Return the payload of a stored prompt. Raises ValueError."""
    return read_json(text, digits=DIGITS, most_bytes=LARGE)


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return a table of the rollout store. Raises DataError, OSError and ArrowException."""
    with open_record(path, VAST) as file:
        return pq.read_table(file, columns=None if columns is None else list(columns))


def _step_numbers(groups: pa.Table) -> dict[str, Any]:
    """Return the metadata of a stored training step, such as the policy's version and the learning rate.

    Raises DataError when the step is stored in another format.
    """
    numbers: dict[str, Any] = read_json(groups.schema.metadata[METADATA], most_bytes=SMALL)
    if numbers["format"] != FORMAT:
        raise DataError(f"a stored step has format {numbers['format']}, this version reads {FORMAT}")
    return numbers


def _stored_groups(
    groups: pa.Table,
    rollouts: Path,
    fates: Collection[str] | None,
) -> Iterator[StoredGroup]:
    """Yield a stored step's groups with the given fates (trained, dropped, …), or all groups.

    Row group k of the Parquet file of rollouts belongs to row k of the file of groups.
    """
    with open_record(rollouts, VAST) as raw, pq.ParquetFile(raw) as file:
        for number, row in enumerate(groups.to_pylist()):
            if fates is None or row["fate"] in fates:
                yield _stored_group(row, file.read_row_group(number))


def num_left_out(run_folder: Path, step: int) -> int:
    """Return how many groups of a step were not stored because of the setting `store.share`.

    Raises DataError when the step's file cannot be read.
    """
    path = StoreFiles(run_folder).groups(step)
    try:
        with open_record(path, VAST) as file:
            numbers = read_json(pq.read_schema(file).metadata[METADATA], most_bytes=SMALL)
    except (OSError, pa.ArrowException, *MALFORMED) as error:
        raise DataError(f"{path} cannot be read: {why_unreadable(error)}") from error
    return int(numbers.get("left_out", 0))


def stored_steps(run_folder: Path) -> list[int]:
    """Return the steps in a run's rollout store, ascending. Raises DataError when there are none."""
    files = StoreFiles(run_folder)
    steps = files.steps()
    if not steps:
        raise DataError(
            f"{files.folder} holds no steps: give the folder of a run that was trained with store.enabled=true"
        )
    return steps


def chosen_steps(run_folder: Path, text: str | None) -> list[int]:
    """Return the stored steps that the option `--steps K` or `--steps K-J` names, or all steps without the option.

    Raises DataError when none of the named steps is stored, ConfigError for an option of another form.
    """
    stored = stored_steps(run_folder)
    if text is None:
        return stored
    first, separator, last = text.partition("-")
    if not first.isdecimal() or (separator and not last.isdecimal()):
        raise ConfigError(f"--steps {text}: pass K or K-J")
    wanted = range(int(first), int(last or first) + 1)
    steps = [step for step in stored if step in wanted]
    if not steps:
        raise DataError(f"none of --steps {text} is stored; steps {stored[0]} to {stored[-1]} are")
    return steps


def sampled_groups(run_folder: Path, steps: Iterable[int]) -> Iterator[tuple[int, ScoredGroup]]:
    """Yield each group of rollouts that was sampled in the given stored steps, once and with its step.

    Raises DataError when a step is missing or cannot be read.
    """
    for step in steps:
        for stored in read_step(run_folder, step).groups:
            if stored.origin == "sampled":
                yield step, stored.scored


def sampled_prompts(run_folder: Path, steps: Iterable[int]) -> Iterator[Prompt]:
    """Yield the prompt of each group that was sampled in the given stored steps, without reading the rollouts.

    Raises DataError when a step is missing or cannot be read.
    """
    files = StoreFiles(run_folder)
    for step in steps:
        with _data_errors(files, step):
            rows = read_table(files.groups(step)).to_pylist()
            prompts = [_prompt(row) for row in rows if row["origin"] == "sampled"]
        yield from prompts


def responses_of(scored: ScoredGroup) -> list[tuple[Int32, Float32]]:
    """Return the token ids and log-probs [T] of each of a group's N rollouts."""
    responses: list[tuple[Int32, Float32]] = []
    for data in fetch_all([chunk.data for chunk in scored.group.chunks]):
        for start, end in pairwise(data.offsets.tolist()):
            responses.append((data.token_ids[start:end], data.log_probs[start:end]))
    return responses


def _missing_step_text(files: StoreFiles, step: int) -> str:
    steps = files.steps()
    there = f"steps {steps[0]} to {steps[-1]} are" if steps else "no step is"
    return f"step {step} is not in {files.folder}; {there} (store.enabled, store.keep_steps, store.max_gib)"


def _stored_group(row: Mapping[str, Any], table: pa.Table) -> StoredGroup:
    columns = _columns(table)
    scored = _scored_group(row, columns, table)
    is_batch = row["fate"] == "trained"
    return StoredGroup(
        scored=scored,
        origin=row["origin"],
        fate=row["fate"],
        shaped=columns["shaped_reward"] if is_batch else None,
        advantages=columns["advantage"] if is_batch else None,
        trained=np.flatnonzero(columns["is_trained"]) if is_batch else None,
    )


def _columns(table: pa.Table) -> Columns:
    """Return the numeric columns of a group's table of N rollouts, as arrays [N] by name."""
    columns: Columns = {}
    for name in table.column_names:
        kind = table.schema.field(name).type
        if not pa.types.is_nested(kind) and not pa.types.is_string(kind):
            columns[name] = table[name].to_numpy()
    return columns


def _prompt(row: Mapping[str, Any]) -> Prompt:
    return Prompt(
        uid=row["uid"],
        task=row["task"],
        verifier=row["verifier"],
        token_ids=tuple(row["prompt_ids"]),
        payload=read_payload(row["payload"]),
        domain=row["domain"],
        messages=tuple(row["messages"]),
    )


def _scored_group(row: Mapping[str, Any], columns: Columns, table: pa.Table) -> ScoredGroup:
    prompt = _prompt(row)
    sampling = Sampling(row["temperature"], row["top_p"], row["max_tokens"])
    arrays = _arrays(table)
    parts: list[ScoredChunk] = []
    for rows in _rows_of_chunks(columns["chunk"]):
        request = RolloutRequest(
            prompt, int(columns["index"][rows.start]), rows.stop - rows.start, row["seed"], sampling
        )
        chunk = _chunk(request, columns, arrays, rows)
        num_failed = row["num_failed"] if not parts else 0
        part = _scored_chunk(chunk, columns, rows, num_failed)
        parts.append(replace(part, turns=_turns(table, rows, chunk.data)))
    train_indices = row["learn_from"]
    return replace(
        close_group(prompt, parts),
        train_indices=None if train_indices is None else np.array(train_indices, np.int64),
    )


def _arrays(table: pa.Table) -> ChunkArrays:
    """Return token ids, log-probs and offsets of all responses of a group."""
    token_ids = table["token_ids"].combine_chunks()
    log_probs = table["log_probs"].combine_chunks()
    offsets = token_ids.offsets.to_numpy().astype(np.int64)
    return ChunkArrays(
        token_ids=token_ids.flatten().to_numpy(),
        log_probs=log_probs.flatten().to_numpy(),
        offsets=offsets - offsets[0],
        is_sampled=sampled_tokens(table),
    )


def sampled_tokens(table: pa.Table) -> Bool | None:
    """Return which tokens of all rollouts of a group were sampled, as a mask, or None when all were."""
    masks = table["is_sampled"]
    if masks.null_count == len(masks):
        return None
    rows: list[Bool] = []
    lengths = table["num_tokens"].to_pylist()
    for row, length in zip(masks.to_pylist(), lengths, strict=True):
        rows.append(np.ones(length, bool) if row is None else np.array(row, bool))
    return np.concatenate(rows)


def _turns(table: pa.Table, rows: slice, data: ChunkArrays) -> TurnRecord | None:
    """Return the rewards, tool errors and ends of the turns of some trajectories, or None without an environment."""
    rewards = table["turn_rewards"][rows].to_pylist()
    if rewards[0] is None:
        return None
    tool_errors = table["tool_errors"][rows].to_pylist()
    return TurnRecord(
        rewards=np.array(rewards, np.float32),
        is_tool_error=np.array(tool_errors, bool),
        ends=turn_ends(data, len(rewards[0])),
    )


def _rows_of_chunks(numbers: np.ndarray) -> Sequence[slice]:
    """Return the slice of table rows that belongs to each chunk of rollouts, given the chunk number of every row."""
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    bounds = [*starts.tolist(), len(numbers)]
    return [slice(start, end) for start, end in pairwise(bounds)]


def _chunk(
    request: RolloutRequest,
    columns: Columns,
    arrays: ChunkArrays,
    rows: slice,
) -> RolloutChunk:
    bounds = arrays.offsets[rows.start : rows.stop + 1]
    tokens = slice(int(bounds[0]), int(bounds[-1]))
    is_sampled = None
    num_sampled = None
    if arrays.is_sampled is not None:
        is_sampled = arrays.is_sampled[tokens]
        num_sampled = columns["num_sampled"][rows]
    data = ChunkArrays(arrays.token_ids[tokens], arrays.log_probs[tokens], bounds - bounds[0], is_sampled)
    return RolloutChunk(
        request=request,
        indices=columns["index"][rows],
        lengths=columns["num_tokens"][rows],
        is_stopped=columns["is_stopped"][rows],
        version=int(columns["version"][rows.start]),
        newest_version=int(columns["newest_version"][rows.start]),
        engine=int(columns["engine"][rows.start]),
        data=data,
        num_sampled=num_sampled,
    )


def _scored_chunk(
    chunk: RolloutChunk,
    columns: Columns,
    rows: slice,
    num_failed: int,
) -> ScoredChunk:
    data: ChunkArrays = chunk.data
    log_probs: list[float] = []
    for start, end in pairwise(data.offsets.tolist()):
        log_probs.append(data.log_probs[start:end].sum())
    return ScoredChunk(
        chunk=replace(chunk, data=store(data)),
        rewards=columns["reward"][rows],
        num_failed=num_failed,
        repetition=columns["repetition"][rows],
        keys=response_keys(data),
        log_probs=np.array(log_probs, np.float32),
    )
