"""Timeline files of the steps, with the rollouts that each mini-batch trains on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nemo_brorl.config.records import TimelineConfig
from nemo_brorl.core.timeline import Timeline, TimelineSpan, chunk_key
from nemo_brorl.training.observers import Observer
from nemo_brorl.training.trace_files import TraceFiles
from nemo_brorl.types import MicroBatch, TrainBatch, UpdatePlan

RankMiniBatch = tuple[int, int]  # (mini-batch, data-parallel rank)


class Timelines(Observer):
    """Observer that writes the timeline of every step, with the rollouts that each mini-batch trains on."""

    def __init__(
        self,
        timeline: Timeline,
        run_folder: Path,
        settings: TimelineConfig,
    ) -> None:
        self.timeline = timeline
        self.files = TraceFiles(run_folder, settings.keep_steps)
        self.update_chunks: Mapping[RankMiniBatch, tuple[str, ...]] = {}

    def step_begins(self, step: int) -> None:
        self.update_chunks = {}
        self.timeline.begin(step)

    def update_planned(self, plan: UpdatePlan, batch: TrainBatch) -> None:
        if self.timeline.is_on:
            self.update_chunks = chunks_by_rank(plan, batch)

    def interval_ended(self) -> None:
        done = self.timeline.end()
        if done is None:
            return
        done = replace(done, spans=with_rollouts(done.spans, self.update_chunks))
        self.files.write(done)

    def resume(self, step: int | None, state: Mapping[str, Any] | None) -> None:
        self.files.drop_after(step)


def chunks_by_rank(
    plan: UpdatePlan,
    batch: TrainBatch,
) -> dict[RankMiniBatch, tuple[str, ...]]:
    """Return the chunks of rollouts that each data-parallel rank trains on in each mini-batch.

    A chunk is listed only where the first of its rollouts is trained on.
    """
    keys: list[list[str]] = []  # chunk key of every rollout, by group
    for scored in batch.groups:
        of_group: list[str] = []
        for chunk in scored.group.chunks:
            key = chunk_key(scored.prompt.uid, int(chunk.request.indices[0]))
            of_group += [key] * len(chunk.lengths)
        keys.append(of_group)
    trained_chunks: dict[RankMiniBatch, tuple[str, ...]] = {}
    seen: set[str] = set()
    for mini_batch, ranks in enumerate(plan.mini_batches):
        for data_rank, micro_batches in enumerate(ranks):
            # A dict keeps the order in which rollouts are trained on. A set would not.
            chunks = dict.fromkeys(_chunks_of(micro_batches, keys))
            trained_chunks[mini_batch, data_rank] = tuple(key for key in chunks if key not in seen)
            seen.update(chunks)
    return trained_chunks


def _chunks_of(
    micro_batches: Sequence[MicroBatch],
    keys: Sequence[Sequence[str]],
) -> Iterator[str]:
    """Yield for every rollout in micro-batches the timeline key of the chunk of rollouts that it was sampled in."""
    for micro_batch in micro_batches:
        for group_slice in micro_batch.slices:
            of_group = keys[group_slice.group]
            for rollout in group_slice.rollouts:
                yield of_group[rollout]


def with_rollouts(
    spans: tuple[TimelineSpan, ...],
    update_chunks: Mapping[RankMiniBatch, tuple[str, ...]],
) -> tuple[TimelineSpan, ...]:
    """Return timeline spans with the chunks of rollouts that each mini-batch trains on.

    The keys of the chunks are added to the span of the mini-batch. If several policy ranks have the same data-parallel
    rank, the first one gets them.
    """
    left: dict[Any, tuple[str, ...]] = dict(update_chunks)
    filled: list[TimelineSpan] = []
    for span in spans:
        details = span.details
        part = (details.get("mini_batch"), details.get("data_rank"))
        keys = left.pop(part, ())
        filled.append(replace(span, rollouts=keys) if keys else span)
    return tuple(filled)
