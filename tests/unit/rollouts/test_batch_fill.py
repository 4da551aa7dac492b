"""A batch is filled, slow groups are cut, and nothing is lost or learnt from twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import GenerationError, StarvationError
from nemo_brorl.ports import Forecast
from nemo_brorl.rollouts.batches import Batches
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.types import FilledBatch, RolloutRequest
from tests.support.fakes import FakeGenerator, FakePrompts, FakeSession, FakeVerifier


class SlowGenerator(FakeGenerator):
    """Requests of `slow` prompts end only when they are cut, with `num_ended` of their rollouts done."""

    def __init__(self, slow: Sequence[str] = (), num_ended: int = 0, num_per_poll: int | None = None) -> None:
        super().__init__()
        self.slow, self.num_ended, self.num_per_poll = frozenset(slow), num_ended, num_per_poll
        self.sessions: list[FakeSession] = []

    def open_session(self, forecast: Forecast | None = None) -> FakeSession:
        session = super().open_session(forecast)
        session.held, session.num_ended_when_cut = self.slow, self.num_ended
        self.sessions.append(session)
        return session

    @property
    def requests(self) -> list[RolloutRequest]:
        return [request for session in self.sessions for request in session.submitted]


def make_batches(config: BroRLConfig, generator: FakeGenerator, period: int = 3) -> Batches:
    config.rollouts.num_per_prompt, config.rollouts.prompts_per_step = 8, 2
    sizes = replace(RunSizes.from_config(config), num_engines=2)
    sampler = Sampler(generator, FakeVerifier(period), Console(), chunk_size=8, seed=1)
    return Batches(config.rollouts, config.dynamic_sampling, config.policy.optim, sizes, FakePrompts(), sampler)


def fill(batches: Batches, version: int = 0) -> FilledBatch:
    return batches.take_batch(version, lambda: None, lambda: None)


def cutting_config(unfinished: str = "drop", min_fraction: float = 0.5) -> BroRLConfig:
    config = BroRLConfig()
    config.rollouts.step_deadline_s, config.rollouts.unfinished, config.rollouts.min_fraction = (
        1e-9,
        unfinished,
        min_fraction,
    )
    return config


def uids(filled: FilledBatch) -> list[str]:
    return [group.prompt.uid for group in filled.batch]


def test_dropped_groups_are_replaced_until_the_batch_is_full() -> None:
    batches = make_batches(BroRLConfig(), FakeGenerator())  # every third group is all right
    filled = fill(batches)
    assert uids(filled) == ["train/1", "train/2"]
    # train/0 was dropped: 2 missing at a keep rate of 0.95 make 3 in flight, so train/2 and train/3 follow; both of no
    # use are counted
    assert [group.prompt.uid for group in filled.sampled] == ["train/0", "train/1", "train/2", "train/3"]
    assert filled.metrics["dynamic_sampling/wasted_rollouts"] == 16


def test_what_is_sampled_does_not_depend_on_how_many_chunks_arrive_at_a_time() -> None:
    seen = []
    for num in (1, 2, None):
        generator, steps = SlowGenerator(num_per_poll=num), []
        batches = make_batches(BroRLConfig(), generator, period=2)  # half of the groups are of no use
        for generator.version in range(4):
            steps.append(fill(batches, generator.version))
        seen.append([(uids(step), [group.prompt.uid for group in step.sampled]) for step in steps])
    assert seen[0] == seen[1] == seen[2]
    assert [len(batch) for batch, _ in seen[0]] == [2, 2, 2, 2]


def test_a_starved_fill_leaves_no_session_open() -> None:
    generator = SlowGenerator()
    with pytest.raises(StarvationError, match="all_correct"):
        fill(make_batches(BroRLConfig(), generator, period=1))
    assert all(session.is_closed for session in generator.sessions)


def test_a_group_with_enough_ended_closes_without_the_rest() -> None:
    generator = SlowGenerator(slow=["train/1"], num_ended=6)
    filled = fill(make_batches(cutting_config(), generator))
    assert [(group.prompt.uid, group.group.num_rollouts) for group in filled.sampled] == [
        ("train/0", 8),
        ("train/1", 6),
    ]
    assert filled.metrics["rollouts/cut_share"] == 2 / 8
    # 6 of 2 tokens ended, 2 had 1 token: 2 - 14 / 8
    assert filled.metrics["rollouts/length_bias"] == pytest.approx(0.25)


def test_the_rest_is_sampled_on_and_learnt_from_a_step_later_within_its_group() -> None:
    generator = SlowGenerator(slow=["train/1"], num_ended=6)
    batches = make_batches(cutting_config("resume"), generator)
    first = fill(batches)
    assert uids(first) == ["train/1"]
    generator.slow, generator.version = frozenset(), 1
    second = fill(batches, version=1)
    completed = second.batch[-1]
    assert completed.prompt.uid == "train/1"
    assert completed.group.num_rollouts == 8
    assert completed.train_indices is not None
    assert completed.train_indices.tolist() == [6, 7]
    assert (completed.group.version, completed.group.newest_version) == (0, 1)
    resumed = [request for request in generator.requests if request.partial is not None]
    assert [request.indices.tolist() for request in resumed] == [[6, 7]]


def test_a_group_with_too_few_ended_is_dropped_as_timed_out() -> None:
    generator = SlowGenerator(slow=["train/1"], num_ended=2)
    filled = fill(make_batches(cutting_config(min_fraction=0.5), SlowGenerator(slow=["train/0"], num_ended=2)))
    assert uids(filled) == ["train/1"]
    assert filled.metrics["dynamic_sampling/timed_out"] == 1
    assert filled.metrics["dynamic_sampling/wasted_rollouts"] == 2
    assert generator.num_samples == 0


def test_a_partial_group_goes_on_as_a_whole_and_comes_first_in_the_next_step() -> None:
    generator = SlowGenerator(slow=["train/2"], num_ended=2)
    config = cutting_config("resume")
    batches = make_batches(config, generator)
    batches.carry_over.prompts.take_prompts(1)  # train/1 and train/2 make the batch
    assert uids(fill(batches)) == ["train/1"]
    assert [group.uid for group in batches.carry_over.leftovers.partial] == ["train/2"]
    generator.slow = frozenset()
    second = fill(batches, version=1)
    assert uids(second)[0] == "train/2"
    assert second.batch[0].group.num_rollouts == 8


def test_a_partial_group_that_grew_too_old_starts_anew_and_no_prompt_is_lost() -> None:
    generator = SlowGenerator(slow=["train/2"], num_ended=2)
    batches = make_batches(cutting_config("resume"), generator)
    batches.carry_over.prompts.take_prompts(1)
    fill(batches)
    generator.slow, generator.version = frozenset(), 5
    second = fill(batches, version=5)
    assert uids(second)[0] == "train/2"
    assert second.batch[0].group.version == 5


def batches_with_surplus(unfinished: str, generator: FakeGenerator) -> Batches:
    """Two groups in flight for each that is wanted, as half of them were kept so far."""
    config = BroRLConfig()
    config.rollouts.unfinished = unfinished
    batches = make_batches(config, generator)
    batches.carry_over.dynamic_sampling.keep_rate = 0.5
    batches.carry_over.prompts.take_prompts(1)
    return batches


def test_surplus_in_flight_is_resumed_first_in_the_next_step() -> None:
    generator = SlowGenerator(slow=["train/4"])
    batches = batches_with_surplus("resume", generator)
    assert uids(fill(batches)) == ["train/1", "train/2"]  # train/3 and train/4 were surplus; 4 was cut
    generator.slow = frozenset()
    generator.version = 1
    assert uids(fill(batches, version=1)) == ["train/4", "train/5"]


def test_surplus_in_flight_can_be_dropped() -> None:
    generator = SlowGenerator(slow=["train/4"])
    batches = batches_with_surplus("drop", generator)
    filled = fill(batches)
    assert filled.metrics["dynamic_sampling/dropped"] == 1
    generator.version = 1
    assert "train/4" not in uids(fill(batches, version=1))


def test_a_group_that_mixes_versions_is_refused_unless_the_settings_allow_it() -> None:
    generator = FakeGenerator()
    generator.version = 3
    with pytest.raises(GenerationError, match="under version 3 to 3, the step is of version 4"):
        fill(make_batches(BroRLConfig(), generator), version=4)


def test_the_state_of_sampling_survives_a_restart() -> None:
    generator = SlowGenerator(slow=["train/2"], num_ended=2)
    batches = make_batches(cutting_config("resume"), generator)
    batches.carry_over.prompts.take_prompts(1)
    fill(batches)
    again = make_batches(cutting_config("resume"), SlowGenerator())
    again.carry_over.load_state(batches.carry_over.state())
    assert uids(fill(again, version=0))[0] == "train/2"


def test_tokens_are_counted_once_though_they_were_sampled_in_two_steps() -> None:
    generator = SlowGenerator(slow=["train/1"], num_ended=6)
    batches = make_batches(cutting_config("resume"), generator)
    first = fill(batches)
    # train/0: 8 of 2 tokens; train/1: 6 of 2 and 2 of 1
    assert first.metrics["rollouts/generated_tokens"] == 16 + 12 + 2
    generator.slow, generator.version = frozenset(), 1
    second = fill(batches, version=1)
    # two more of one token each, and the groups train/2, train/3, train/4 of the second step
    num_groups = len(second.sampled)
    assert second.metrics["rollouts/generated_tokens"] == 30 + 2 + 16 * num_groups
    assert second.metrics["rollouts/informative_per_million_tokens"] > 0


def test_a_group_completed_before_a_checkpoint_is_learnt_from_after_a_restart() -> None:
    generator = SlowGenerator(slow=["train/1"], num_ended=6)
    batches = make_batches(cutting_config("resume"), generator)
    fill(batches)
    generator.slow, generator.version = frozenset(), 1
    batches.begin(version=1).complete()  # a checkpoint is written before the batch is taken
    again = make_batches(cutting_config("resume"), SlowGenerator())
    again.carry_over.load_state(batches.carry_over.state())
    completed = [group for group in fill(again, version=1).batch if group.train_indices is not None]
    assert [group.prompt.uid for group in completed] == ["train/1"]


def test_a_fill_teaches_once_when_it_is_done_and_not_when_its_batch_is_taken() -> None:
    batches = make_batches(BroRLConfig(), FakeGenerator())
    batch_fill = batches.begin(version=0)
    assert batches.carry_over.spent.generated_tokens == 0
    batch_fill.complete()
    learnt = batches.carry_over.state().carry_over
    assert batches.carry_over.spent.generated_tokens == 4 * 8 * 2, "four groups of eight rollouts of two tokens"
    batch_fill.complete()  # as before a validation
    batch_fill.finish()
    assert batches.carry_over.state().carry_over == {**learnt, "is_batch_complete": False}


def test_a_fill_that_is_given_up_teaches_nothing() -> None:
    class Impatient(Exception):
        """Raised at the first turn."""

    def check() -> None:
        raise Impatient

    generator = SlowGenerator(slow=["train/0"])
    batches = make_batches(BroRLConfig(), generator)
    batch_fill = batches.begin(version=0)
    with pytest.raises(Impatient):
        batch_fill.complete(check)
    assert all(session.is_closed for session in generator.sessions)
    assert batches.carry_over.spent.generated_tokens == 0
    assert batch_fill.state_before.prompts == {"position": 0}, "what a checkpoint of the cut step holds"
