"""Tables of the rollout store: groups and rollouts as table rows. `columns.py` says what each column means."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from brorl_graders import full_mark
from brorl_graders.base.environment_values import as_written

from nemo_brorl.training.store.columns import GROUP_SCHEMA, ROLLOUT_SCHEMA
from nemo_brorl.types import ChunkArrays, Period, ScoredGroup, StepRecord, StoredGroup

FORMAT = 1  # version of the file format
METADATA = b"brorl"  # key of the step's own numbers in the schema of its groups
# Log-probs hardly repeat. Splitting their bytes by position halves time and size.
ROLLOUT_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": ["uid", "task", "fate", "token_ids.list.element"],
    "use_byte_stream_split": ["log_probs.list.element"],
}


def groups_table(record: StepRecord) -> pa.Table:
    """Return the rollout store's table with a row for every group of a step.

    The step's own numbers, such as the learning rate, are in the metadata of the schema.
    """
    rows = [_group_row(record.step, stored) for stored in record.groups]
    numbers = {
        "format": FORMAT,
        "step": record.step,
        "version": record.version,
        "learning_rate": record.learning_rate,
        "loss_scale": record.loss_scale,
        "left_out": record.num_left_out,
    }
    # Metadata keeps the numbers even of a step whose groups were all left out.
    schema = GROUP_SCHEMA.with_metadata({METADATA: json.dumps(numbers).encode()})
    return pa.Table.from_pylist(rows, schema=schema)


def _group_row(step: int, stored: StoredGroup) -> dict[str, Any]:
    scored = stored.scored
    prompt = scored.prompt
    group = scored.group
    request = group.chunks[0].request
    return {
        "step": step,
        "uid": prompt.uid,
        "task": prompt.task,
        "domain": prompt.domain,
        "origin": stored.origin,
        "fate": stored.fate,
        "num_rollouts": group.num_rollouts,
        "num_failed": scored.num_failed,
        "mean_reward": float(scored.rewards.mean()),
        "full_mark": full_mark(prompt.payload),
        "version": group.version,
        "newest_version": group.newest_version,
        "verifier": prompt.verifier,
        "payload": json.dumps(as_written(prompt.payload), ensure_ascii=False),
        "messages": [dict(message) for message in prompt.messages],
        "prompt_ids": list(prompt.token_ids),
        "learn_from": None if scored.train_indices is None else scored.train_indices.tolist(),
        "seed": request.seed,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "max_tokens": request.sampling.max_tokens,
    }


def rollouts_table(
    step: int,
    stored: StoredGroup,
    arrays: Sequence[ChunkArrays],
) -> pa.Table:
    """Return a table with a row for each of a group's N rollouts, without texts, from the rollouts' token arrays."""
    scored = stored.scored
    chunks = scored.group.chunks
    num = scored.group.num_rollouts
    sizes = [len(chunk.lengths) for chunk in chunks]
    lengths = scored.group.lengths
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)
    token_ids = np.concatenate([data.token_ids for data in arrays])
    log_probs = np.concatenate([data.log_probs for data in arrays])
    rewards_of_turns, tool_errors = _turn_columns(scored)
    no_numbers = pa.nulls(num, pa.float32())
    is_trained = np.zeros(num, bool)
    if stored.trained is not None:
        is_trained[stored.trained] = True
    columns = {
        "step": np.full(num, step),
        "uid": [scored.prompt.uid] * num,
        "task": [scored.prompt.task] * num,
        "fate": [stored.fate] * num,
        "place": np.arange(num),
        "index": scored.indices,
        "chunk": np.repeat(np.arange(len(chunks)), sizes),
        "engine": np.repeat([chunk.engine for chunk in chunks], sizes),
        "version": np.repeat([chunk.version for chunk in chunks], sizes),
        "newest_version": np.repeat([chunk.newest_version for chunk in chunks], sizes),
        "num_tokens": lengths,
        "num_sampled": scored.group.num_sampled,
        "turn_rewards": rewards_of_turns,
        "tool_errors": tool_errors,
        "is_stopped": scored.group.is_stopped,
        **_times("sampled_at", "sampling_s", [chunk.period for chunk in chunks], sizes),
        **_times("scored_at", "scoring_s", scored.scored, sizes),
        "reward": scored.rewards,
        "reason": [reason or None for reason in scored.reasons] or pa.nulls(num, pa.string()),
        "shaped_reward": no_numbers if stored.shaped is None else stored.shaped,
        "advantage": no_numbers if stored.advantages is None else stored.advantages,
        "is_trained": is_trained,
        "repetition": scored.repetition,
        "token_ids": pa.ListArray.from_arrays(offsets, token_ids),
        "log_probs": pa.ListArray.from_arrays(offsets, log_probs),
        "is_sampled": _is_sampled(arrays),
        "text": pa.nulls(num, pa.string()),
    }
    return pa.table(columns).cast(ROLLOUT_SCHEMA)


def _times(
    ended_at: str,
    seconds: str,
    periods: Sequence[Period | None],
    sizes: Sequence[int],
) -> dict[str, pa.Array]:
    """Return two columns of a table of rollouts: when work on the chunk with each rollout ended, and its seconds.

    A chunk is a part of a group's rollouts that is sampled together. Unknown values are null.
    """
    ends: list[float | None] = []
    lasted: list[float | None] = []
    for period, size in zip(periods or [None] * len(sizes), sizes, strict=True):
        end = None if period is None else period.ended_at
        took = None if period is None else period.ended_at - period.began_at
        ends += [end] * size
        lasted += [took] * size
    return {ended_at: pa.array(ends, pa.float64()), seconds: pa.array(lasted, pa.float64())}


def _turn_columns(scored: ScoredGroup) -> tuple[list[Any], list[Any]]:
    """Return two columns of a table of rollouts: rewards of each rollout's turns, and tool errors by turn.

    The values are None without an environment.
    """
    rewards: list[Any] = []
    tool_errors: list[Any] = []
    for chunk, record in zip(scored.group.chunks, scored.turns, strict=True):
        if record is None:
            nothing = [None] * len(chunk.lengths)
            rewards += nothing
            tool_errors += nothing
        else:
            rewards += record.rewards.tolist()
            tool_errors += record.is_tool_error.tolist()
    return rewards, tool_errors


def _is_sampled(arrays: Sequence[ChunkArrays]) -> pa.Array:
    """Return a column of a table of rollouts with a mask of each rollout's sampled tokens.

    Null means that all tokens of the rollout were sampled.
    """
    rows: list[Any] = []
    for data in arrays:
        if data.is_sampled is None:
            rows += [None] * (len(data.offsets) - 1)
            continue
        for start, end in pairwise(data.offsets.tolist()):
            rows.append(data.is_sampled[start:end])
    return pa.array(rows, pa.list_(pa.bool_()))
