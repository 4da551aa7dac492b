"""Read the groups of a run from the rollout store: a row for each, success rates, and what N buys."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from brorl_graders import lowest_right
from brorl_graders.base.foreign import VAST, open_record

from brorl_lab.store_reader import read_table
from nemo_brorl.algorithm.pass_at_k import share_within
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import DataError
from nemo_brorl.core.files import MALFORMED
from nemo_brorl.training.store.columns import GROUP_SCHEMA, ROLLOUT_SCHEMA
from nemo_brorl.training.store.files import StoreFiles

MAX_GROUPS = 40_000  # rows of the table, from the newest steps
SHOWN_OF_GROUPS = (
    "uid",
    "task",
    "domain",
    "origin",
    "fate",
    "num_rollouts",
    "num_failed",
    "mean_reward",
)
SHOWN_OF_ROLLOUTS = (
    "reward",
    "num_tokens",
    "is_stopped",
)
RATE_EDGES = (
    0.02,
    0.05,
    0.1,
    0.2,
    0.35,
    0.5,
    0.65,
    0.8,
    0.9,
    0.95,
    0.98,
)  # bounds of bins between "none right" and "all right"

Columns = dict[str, np.ndarray]
Part = dict[str, Any]
BySize = dict[str, float]  # values by number of rollouts
log = get_logger(__name__)

_share_within = cache(share_within)


@dataclass
class StoreTables:
    """The groups of every stored step, as columns.

    A step is read once, and again when its file has changed. A step that cannot be read is left out and named in
    `unreadable`.
    """

    folder: Path  # run folder
    unreadable: dict[int, str] = field(default_factory=dict)
    _known: dict[int, tuple[int, Columns]] = field(
        default_factory=dict
    )  # columns by step, with the time when the step's file was written

    def by_step(self) -> dict[int, Columns]:
        """Return columns with one value for each group of rollouts, for every step that the rollout store has now."""
        files = StoreFiles(self.folder)
        found: dict[int, Columns] = {}
        self.unreadable.clear()
        for step in files.steps():
            try:
                found[step] = self._read_step(files, step)
            except FileNotFoundError:  # deleted meanwhile: the store has a limit
                continue
            except (OSError, pa.ArrowException, DataError, *MALFORMED) as error:
                self.unreadable[step] = str(error)
                log.warning("step %d of %s cannot be read: %s", step, files.folder, error)
        return found

    def _read_step(self, files: StoreFiles, step: int) -> Columns:
        written_at = files.groups(step).stat().st_mtime_ns
        known = self._known.get(step)
        if known is None or known[0] != written_at:
            known = (written_at, read_columns(files, step))
            self._known[step] = known
        return known[1]


def read_columns(files: StoreFiles, step: int) -> Columns:
    """Return a stored step's columns with one value for each group: of the group itself, or summed over rollouts."""
    with open_record(files.groups(step), VAST) as raw, pq.ParquetFile(raw) as file:
        groups = file.read(columns=[*SHOWN_OF_GROUPS, "full_mark"])
    rollouts = read_table(files.rollouts(step), SHOWN_OF_ROLLOUTS)
    columns = {name: _array(groups, GROUP_SCHEMA, name) for name in SHOWN_OF_GROUPS}
    rewards, num_tokens, is_stopped = [_array(rollouts, ROLLOUT_SCHEMA, name) for name in SHOWN_OF_ROLLOUTS]
    sizes = columns["num_rollouts"]
    if sizes.sum() != len(rewards) or not all((sizes > 0) & (sizes <= len(rewards))):
        raise DataError(f"its groups say that they have other numbers of rollouts than the {len(rewards)} stored")
    starts = np.cumsum(sizes) - sizes
    columns["num_right"] = _sums(rewards >= np.repeat(_lowest_right(groups), sizes), starts)
    columns["mean_tokens"] = _sums(num_tokens, starts) / sizes
    columns["num_cut"] = sizes - _sums(is_stopped, starts)
    return columns


def _array(table: pa.Table, schema: pa.Schema, name: str) -> np.ndarray:
    return table[name].cast(schema.field(name).type).to_numpy()


def _lowest_right(groups: pa.Table) -> np.ndarray:
    """Return the lowest reward of a right rollout, [groups]. Earlier versions stored no full mark: it was 1."""
    if "full_mark" not in groups.column_names:
        return np.full(groups.num_rows, lowest_right(1.0))
    return np.array([lowest_right(mark) for mark in groups["full_mark"].to_pylist()])


def _sums(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the sum of `values` over the rollouts of each group, [groups]."""
    whole = values.astype(np.int64)
    return np.add.reduceat(whole, starts)


def group_table(by_step: Mapping[int, Columns], max_groups: int = MAX_GROUPS) -> Part:
    """Return the report page's table of groups of rollouts, as columns, newest steps first.

    Older steps are left out when the table would have more than `max_groups` rows. Tasks, fates (trained
    on, dropped, …) and origins are indices into lists of names.
    """
    chosen = _newest(by_step, max_groups)
    lists: dict[str, list[str]] = {
        "task": [],
        "fate": [],
        "origin": [],
    }
    rows: dict[str, list[Any]] = {
        "step": [],
        "row": [],
        "uid": [],
        "task": [],
        "fate": [],
        "origin": [],
        "size": [],
        "right": [],
        "failed": [],
        "reward": [],
        "tokens": [],
        "cut": [],
    }
    for step in chosen:
        columns = by_step[step]
        uids = columns["uid"].tolist()
        rows["step"] += [step] * len(uids)
        rows["row"] += range(len(uids))
        rows["uid"] += uids
        for name, names in lists.items():
            rows[name] += _index_names(columns[name].tolist(), names)
        rows["size"] += columns["num_rollouts"].tolist()
        rows["right"] += columns["num_right"].tolist()
        rows["failed"] += columns["num_failed"].tolist()
        rows["reward"] += _round_values(columns["mean_reward"], 4)
        rows["tokens"] += _round_values(columns["mean_tokens"], 1)
        rows["cut"] += columns["num_cut"].tolist()
    num_all = 0
    for columns in by_step.values():
        num_all += len(columns["uid"])
    return {
        "rows": rows,
        "lists": lists,
        "num_all": num_all,
        "first_step": min(chosen, default=None),
    }


def _newest(by_step: Mapping[int, Columns], max_groups: int) -> list[int]:
    chosen: list[int] = []
    num = 0
    for step in sorted(by_step, reverse=True):
        num += len(by_step[step]["uid"])
        if chosen and num > max_groups:
            break
        chosen.append(step)
    return chosen


def _index_names(values: Sequence[str], names: list[str]) -> list[int]:
    """Return each name's index in a list of names, to which new names are added."""
    numbers: list[int] = []
    for value in values:
        if value not in names:
            names.append(value)
        place = names.index(value)
        numbers.append(place)
    return numbers


def _round_values(values: np.ndarray, digits: int) -> list[float | None]:
    found: list[float | None] = []
    for value in values.tolist():
        if math.isfinite(value):
            found.append(round(value, digits))
        else:
            found.append(None)
    return found


def success_rates(by_step: Mapping[int, Columns]) -> Part:
    """Return the distribution of prompts' success rates, pass@k and the share of informative groups, step by step.

    Only groups that were sampled in the step count.
    """
    steps = sorted(by_step)
    shares: list[list[float]] = []
    pass_at: list[dict[str, float]] = []
    informative: list[dict[str, float]] = []
    for step in steps:
        sampled = _select_sampled(by_step[step])
        shares.append(rate_shares(*sampled))
        passed, mixed = by_size(*sampled)
        pass_at.append(passed)
        informative.append(mixed)
    return {
        "steps": steps,
        "edges": RATE_EDGES,
        "shares": shares,
        "pass_at": pass_at,
        "informative": informative,
    }


def newest_rates(by_step: Mapping[int, Columns]) -> Part:
    """Return `success_rates` of the newest step alone. `brorl watch` reads it after each step."""
    newest = sorted(by_step)[-1:]
    return success_rates({step: by_step[step] for step in newest})


class SampledGroups(NamedTuple):
    """The groups that were sampled in a step, [groups] each."""

    sizes: np.ndarray
    right: np.ndarray  # number of right rollouts


def _select_sampled(columns: Columns) -> SampledGroups:
    is_sampled = columns["origin"] == "sampled"
    return SampledGroups(
        sizes=columns["num_rollouts"][is_sampled],
        right=columns["num_right"][is_sampled],
    )


def rate_shares(
    sizes: np.ndarray,
    right: np.ndarray,
) -> list[float]:
    """Return the share of prompts in each bin of success rates [len(RATE_EDGES) + 3].

    Prompts in the first bin have no right rollout, those in the last bin only right ones. Between them lies one bin
    between each two neighbours of RATE_EDGES, and an open bin at either end.
    """
    highest = len(RATE_EDGES) + 2
    bins = 1 + np.digitize(right / sizes, RATE_EDGES)
    bins[right == 0] = 0
    bins[right == sizes] = highest
    counts = np.bincount(bins, minlength=highest + 1)
    total = counts.sum() or 1.0
    shares = counts / total
    return shares.round(5).tolist()


def by_size(
    sizes: np.ndarray,
    right: np.ndarray,
) -> tuple[BySize, BySize]:
    """Return pass@k and the share of informative prompts, as if each group had only k of its rollouts.

    Both are by k = 1, 2, 4, … and the size of the smallest group. They are means over prompts, and unbiased for each
    group (a random subset of k rollouts).
    """
    if not len(sizes):
        return {}, {}
    passed: BySize = {}
    mixed: BySize = {}
    wrong = sizes - right
    for k in _powers(int(sizes.min())):
        all_wrong = _mean_share_within(wrong, sizes, k)
        all_right = _mean_share_within(right, sizes, k)
        differ = max(0.0, 1 - all_wrong - all_right)
        passed[str(k)] = round(1 - all_wrong, 5)
        mixed[str(k)] = round(differ, 5)
    return passed, mixed


def _powers(last: int) -> list[int]:
    """Return the numbers 1, 2, 4, … below `last`, and `last`."""
    found: list[int] = []
    k = 1
    while k < last:
        found.append(k)
        k *= 2
    return [*found, last]


def _mean_share_within(
    few: np.ndarray,
    many: np.ndarray,
    k: int,
) -> float:
    """Return the mean over prompts of the chance that k random rollouts of a group are all of one kind, such as wrong.

    `few` holds the number of rollouts of that kind in each group, `many` the number of all rollouts.
    """
    shares: list[float] = []
    for inner, outer in zip(few.tolist(), many.tolist(), strict=True):
        shares.append(_share_within(inner, outer, k))
    return float(np.mean(shares))
