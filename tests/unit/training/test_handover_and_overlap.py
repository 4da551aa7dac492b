"""Who has the devices when, and sampling while the policy learns."""

from pathlib import Path

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.clock import Stopwatch
from tests.support.fakes import FakeGenerator
from tests.support.loop import fake, make_trainer, small_config


def test_engines_sleep_while_the_policy_has_the_devices_and_wake_in_stages(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, small_config(max_steps=1))
    trainer.fit()
    assert trainer.parts.generator.calls == ["sleep", "wake_weights", "wake_cache"] * 3  # type: ignore[attr-defined]


def test_engines_that_lost_their_weights_asleep_get_them_again_in_every_turn(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, small_config(max_steps=1))
    trainer.parts.generator.loses_weights = True  # type: ignore[attr-defined]
    trainer.fit()
    # the update's turn, and those of export and checkpoint
    assert [version for version, _ in trainer.parts.generator.loads] == [1, 1, 1]  # type: ignore[attr-defined]


def test_who_waits_for_engines_to_take_new_weights_is_at_publish(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, small_config(max_steps=1))
    generator = trainer.parts.generator
    heartbeat = trainer.parts.sampler.heartbeat
    seen = []

    def load_weights(*publication: object) -> int:
        seen.append(heartbeat.standing().stage)
        return 0

    generator.load_weights = load_weights  # type: ignore[method-assign]
    trainer.fit()
    assert seen == ["publish"]


def test_lost_engines_get_the_weights_again_unless_the_policy_is_at_work(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, small_config(max_steps=1))
    trainer.fit()
    generator = trainer.parts.generator
    assert isinstance(generator, FakeGenerator)
    generator.loads.clear()
    generator.publish_again(generator)
    with trainer.handover.policy_phase(Stopwatch()):
        generator.publish_again(generator)
    assert [version for version, _ in generator.loads] == [1]


def overlapping_config() -> BroRLConfig:
    config = small_config(max_steps=4)
    config.rollouts.overlap = True
    return config


def test_with_overlap_the_next_batch_is_sampled_under_the_weights_before(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, overlapping_config())
    fake(trainer).num_turns = 50
    trainer.fit()
    assert [[group.staleness for group in plan.groups] for plan in fake(trainer).plans] == [
        [0, 0],
        [1, 1],
        [1, 1],
        [1, 1],
    ]


def test_a_run_with_overlap_that_is_killed_after_a_checkpoint_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = make_trainer(tmp_path / "whole", overlapping_config())
    whole.fit()
    first = make_trainer(tmp_path / "parts", overlapping_config())
    for _ in range(3):
        first.step()
        first.after_step()
    assert first.batches.fill is not None  # of step 4, lost
    second = make_trainer(tmp_path / "parts", overlapping_config())
    assert second.resume()
    assert second.step_number == 2
    second.fit()
    assert fake(second).weight == fake(whole).weight
    assert second.parts.prompts.state_dict() == whole.parts.prompts.state_dict()
    assert second.batches.carry_over.state().carry_over == whole.batches.carry_over.state().carry_over
