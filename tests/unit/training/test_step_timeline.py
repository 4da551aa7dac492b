"""The timeline of the loop: a step's stages are its wall time, and its rollouts can be followed into the policy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from brorl_lab.trace_reader import read_spans, timeline_steps

from nemo_brorl.core.stall_watch import Heartbeat
from nemo_brorl.core.timeline import BETWEEN, Exchange, Timeline, TimelineSpan, Work, chunk_key, top_stages
from nemo_brorl.rollouts.chunk_spans import ChunkSpans
from nemo_brorl.training.step_timeline import chunks_by_rank, with_rollouts
from nemo_brorl.training.trainer import BroRLTrainer
from nemo_brorl.types import GroupSlice, MicroBatch, Period, PlannedGroup, RolloutRequest, TrainBatch, UpdatePlan
from tests.support.fakes import SAMPLING, make_chunk, make_group, make_prompt, score_chunk
from tests.support.loop import make_trainer, small_config, store_of


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def slowed(self, call: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        """A call that takes this long."""

        def slow(*args: Any, **kwargs: Any) -> Any:
            self.seconds += seconds
            return call(*args, **kwargs)

        return slow


def timed_trainer(folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> BroRLTrainer:
    """A loop of fakes of which every part takes its time."""
    trainer = make_trainer(folder, small_config(max_steps=4), heartbeat=Heartbeat(Timeline(now=clock)))
    parts = trainer.parts
    slow_parts = [
        (parts.sampler, "open_stream", 6.0),
        (parts.policy, "update", 3.0),
        (parts.policy, "onload", 0.5),
        (parts.policy, "offload", 0.5),
        (parts.policy, "export", 1.0),
        (parts.policy, "begin_save", 2.0),
        (parts.generator, "load_weights", 0.25),
        (parts.generator, "wake_cache", 0.25),
        (store_of(trainer), "write", 0.125),
        (store_of(trainer), "flush", 0.125),
        (parts.sink, "write", 0.125),
    ]
    for owner, name, seconds in slow_parts:
        monkeypatch.setattr(owner, name, clock.slowed(getattr(owner, name), seconds))
    return trainer


def test_the_stages_of_every_step_sum_to_its_wall_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed_trainer(tmp_path, Clock(), monkeypatch).fit()
    assert timeline_steps(tmp_path) == [0, 1, 2, 3, 4]
    for number in range(1, 5):
        spans = read_spans(tmp_path, number)
        whole = spans[0]
        assert (whole.process, whole.name, whole.start_s) == ("driver", "step", 0.0)
        assert whole.seconds >= 10.75  # 6 + 3 + 2 × ½ + 2 × ¼ + 2 × ⅛, and what is due after some steps
        stages = top_stages(spans)
        assert sum(stage.seconds for stage in stages) == pytest.approx(whole.seconds)
        named_s = sum(stage.seconds for stage in stages if stage.name != BETWEEN)
        assert named_s >= 0.98 * whole.seconds


def test_the_stages_of_a_step_have_the_seconds_that_their_parts_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed_trainer(tmp_path, Clock(), monkeypatch).fit()
    stages = top_stages(read_spans(tmp_path, 2))
    seconds = {stage.name: 0.0 for stage in stages}
    for stage in stages:
        seconds[stage.name] += stage.seconds
    assert seconds["collect"] == 6.0
    assert seconds["update"] == 3.0
    assert seconds["sync"] == 0.25
    assert seconds["checkpoint"] == 2.0 + 0.125 + 0.5 + 0.5 + 0.25  # files, store; the policy's turn for it


def test_a_timeline_that_is_off_leaves_no_file(tmp_path: Path) -> None:
    make_trainer(tmp_path, small_config(max_steps=1)).fit()
    assert not (tmp_path / "timeline").exists()


def test_a_chunk_is_followed_from_its_engine_to_its_verifier() -> None:
    clock = Clock()
    timeline = Timeline(now=clock)
    spans = ChunkSpans(timeline)
    timeline.begin(1)
    request = RolloutRequest(make_prompt("train/5"), 64, 2, 7, SAMPLING)
    spans.note_requested(request)
    clock.seconds = 1004.0
    chunk = make_chunk(request, [3, 4])
    object.__setattr__(chunk, "period", Period(1000.5, 1001.0, 1003.0))
    spans.note_sampled(chunk)
    spans.note_requested(request)
    clock.seconds = 1006.0
    scored = score_chunk(chunk, [1.0, 0.0])
    object.__setattr__(scored, "period", Period(1004.5, 1004.5, 1005.5))
    spans.note_scored(scored)
    done = timeline.end()
    assert done is not None
    sample, score = (span for span in done.spans if span.process != "driver")
    assert (sample.process, sample.name, sample.start_s, sample.seconds) == ("engine 0", "sample", 1.0, 2.0)
    assert (score.process, score.name, score.start_s, score.seconds) == ("verifier 0", "score", 4.5, 1.0)
    assert sample.rollouts == score.rollouts == (chunk_key("train/5", 64),)
    assert sample.details["tokens"] == 7
    assert score.details["mean_reward"] == 0.5


def test_a_chunk_that_nobody_asked_for_in_this_stream_is_no_span() -> None:
    timeline = Timeline()
    timeline.begin(1)
    request = RolloutRequest(make_prompt(), 0, 1, 7, SAMPLING)
    ChunkSpans(timeline).note_sampled(make_chunk(request, [3]))
    done = timeline.end()
    assert done is not None
    assert {span.process for span in done.spans} == {"driver"}


def plan_of_two_groups() -> tuple[UpdatePlan, TrainBatch]:
    """Two groups of two rollouts, a chunk each; the second group is learnt from in both mini-batches."""
    groups = (make_group([1, 0], "a"), make_group([0, 1], "b"))
    planned = tuple(PlannedGroup(None, (), None, 0) for _ in groups)  # type: ignore[arg-type]
    first = MicroBatch((GroupSlice(0, (0, 1)), GroupSlice(1, (1,))), 0, 0)
    second = MicroBatch((GroupSlice(1, (0,)),), 0, 0)
    plan = UpdatePlan(1, "ppo", 1e-3, planned, (((first,),), ((second,),)))
    return plan, TrainBatch(groups, (), ())


def test_a_chunk_flows_into_the_mini_batch_that_learns_from_its_first_rollout() -> None:
    plan, batch = plan_of_two_groups()
    assert chunks_by_rank(plan, batch) == {(0, 0): ("a/0", "b/0"), (1, 0): ()}


def test_of_ranks_that_share_a_replica_the_first_has_the_chunks() -> None:
    spans = []
    for rank in (0, 1):
        details = {"mini_batch": 0, "data_rank": 0}
        spans.append(TimelineSpan(f"policy rank {rank}", "stages", "mini-batch 1 of 1", 0.0, 1.0, details=details))
    filled = with_rollouts(tuple(spans), {(0, 0): ("a/0",)})
    assert [span.rollouts for span in filled] == [("a/0",), ()]


def test_an_exchange_of_another_step_is_forgotten() -> None:
    timeline = Timeline(now=Clock())
    timeline.begin(1)
    timeline.record_work("engine 0", [Work("sample", 1.0, 2.0)], Exchange(0.0, 5.0, 6.0, 1.0))
    first = timeline.end()
    timeline.begin(2)
    second = timeline.end()
    assert first is not None
    assert second is not None
    assert (len(first.clocks), len(second.clocks)) == (1, 0)
