"""The dress rehearsal of a run's first minutes: what it finds, and that it names it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_brorl.config.memory import CPU_ROW, rehearsed_tokens
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import (
    BroRLError,
    CheckpointError,
    GenerationError,
    ParityError,
    ResourceError,
    TrainingError,
)
from nemo_brorl.training.dress_rehearsal import check_ranks, describe
from nemo_brorl.types import RankRehearsal, RolloutChunk, RolloutRequest
from tests.support.fakes import FakeGenerator
from tests.support.loop import fake, make_trainer, small_config


def gated_config(max_steps: int = 6) -> BroRLConfig:
    config = small_config(max_steps)
    config.parity.enabled = True
    return config


GOOD = RankRehearsal(4.0, 1e-6, 2.0, is_unchanged=True, peak_gib=70.0, room_gib=4.0)


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ({"own_norm": 0.0}, TrainingError, "policy rank 1 has no usable gradients"),
        ({"grad_norm": float("nan")}, TrainingError, "policy rank 1 has no usable gradients"),
        ({"grad_norm": 0.0}, TrainingError, "policy rank 1 has no usable gradients"),
        # One of 2 replicas is missing: what is left is half of all gradients.
        ({"opposed_norm": 2.0}, TrainingError, "gradients of 2 replicas that cancel each other add up to 2 of 4"),
        ({"opposed_norm": float("nan")}, TrainingError, "cancel each other"),
        ({"is_unchanged": False}, TrainingError, "changed a weight of policy rank 1"),
        ({"room_gib": 0.4}, ResourceError, "policy rank 1 left 0.4 GiB of its GPU free"),
    ],
)
def test_a_rank_that_fails_is_named(fault: dict[str, Any], error: type[BroRLError], words: str) -> None:
    check_ranks([GOOD, GOOD], 2)
    with pytest.raises(error, match=words):
        check_ranks([GOOD, replace(GOOD, **fault)], 2)


def test_a_rank_without_a_share_of_the_gradients_is_no_fault() -> None:
    check_ranks([replace(GOOD, own_norm=None)], 1)


def test_the_missing_part_of_64_replicas_is_noise_or_a_replica() -> None:
    # A replica's part of the sum is 1/64.
    check_ranks([replace(GOOD, grad_norm=64.0, opposed_norm=0.2)], 64)
    with pytest.raises(TrainingError, match="64 replicas"):
        check_ranks([replace(GOOD, grad_norm=64.0, opposed_norm=1.0)], 64)


def test_the_line_has_the_fullest_rank_of_all() -> None:
    line = describe([GOOD, replace(GOOD, peak_gib=72.0, room_gib=2.0)], 3.0, 1.5)
    assert line.endswith("3.0 s, checkpoint 1.5 s; at most 72.0 GiB on a rank, at least 2.0 GiB of its GPU free")
    assert describe([replace(GOOD, peak_gib=None, room_gib=None)], 3.0, 1.5).endswith("checkpoint 1.5 s")


def test_rows_are_as_full_as_the_run_fills_them_and_short_on_a_cpu() -> None:
    config = gated_config()
    config.policy.tokens_per_micro_batch = 2000
    config.data.max_prompt_tokens, config.rollouts.max_response_tokens = 100, 1000
    assert rehearsed_tokens(config) == CPU_ROW
    config.trainer.gpus_per_node = 1
    assert rehearsed_tokens(config) == 2000
    config.policy.tokens_per_micro_batch = 100_000
    # A mini-batch is 16 / 2 rollouts of 1,000 tokens and 2 prompts with one more that is cut in two.
    assert rehearsed_tokens(config) == 8 * 1000 + 3 * 100


def test_a_run_begins_with_an_update_without_a_step_a_checkpoint_and_a_publication(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, gated_config())
    trainer.begin()
    assert fake(trainer).calls[:5] == ["onload", "rehearse", "release", "publish", "offload"]
    assert fake(trainer).weight == 0.0
    assert [version for version, _ in trainer.parts.generator.loads] == [0]  # type: ignore[attr-defined]
    assert not list((tmp_path / "checkpoints").iterdir()), "the checkpoint is deleted"


def test_without_a_rehearsal_the_weights_are_published_and_compared(tmp_path: Path, capsys: Any) -> None:
    config = gated_config()
    config.trainer.rehearsal = False
    trainer = make_trainer(tmp_path, config)
    trainer.begin()
    assert "rehearse" not in fake(trainer).calls
    assert [version for version, _ in trainer.parts.generator.loads] == [0]  # type: ignore[attr-defined]
    assert "parity: HF-Megatron 0.0e+00" in capsys.readouterr().out


def test_a_resumed_run_rehearses_with_its_own_weights_and_leaves_hugging_face_out(tmp_path: Path, capsys: Any) -> None:
    first = make_trainer(tmp_path, gated_config(max_steps=2))
    first.fit()
    resumed = make_trainer(tmp_path, gated_config())
    assert resumed.resume()
    capsys.readouterr()
    resumed.begin()
    assert "rehearse" in fake(resumed).calls
    assert [version for version, _ in resumed.parts.generator.loads] == [2]  # type: ignore[attr-defined]
    assert "parity: Megatron-vLLM 0.0e+00" in capsys.readouterr().out


def test_a_checkpoint_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, gated_config())
    fake(trainer).write_errors = ["a rank's disk is full"]
    with pytest.raises(CheckpointError, match="disk is full"):
        trainer.begin()


class SleepyGenerator(FakeGenerator):
    """Its engine is replaced when it is woken."""

    def weight_receivers(self) -> tuple[str, ...]:
        return ("engine 0 (number 2)",) if "wake_cache" in self.calls else ("engine 0",)


def test_an_engine_that_does_not_wake_ends_the_start(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, gated_config(), generator=SleepyGenerator())
    with pytest.raises(GenerationError, match=r"engine 0 did not sleep.*lower generation.gpu_memory_utilization"):
        trainer.begin()


class Engines(FakeGenerator):
    """Eight engines, one request each in turn. Engine 6 has other weights."""

    def weight_receivers(self) -> tuple[str, ...]:
        return tuple(f"engine {number}" for number in range(8))

    def generate(self, requests: Sequence[RolloutRequest]) -> Any:
        for number, request in enumerate(requests):
            chunk = self.answer(request, request.num_rollouts)
            yield wrong(chunk) if number == 6 else replace(chunk, engine=number)


def wrong(chunk: RolloutChunk) -> RolloutChunk:
    arrays = replace(chunk.data, log_probs=np.full(len(chunk.data.token_ids), -0.75, np.float32))
    return replace(chunk, engine=6, data=arrays)


def test_wrong_weights_in_one_engine_are_found_whichever_it_is(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, gated_config(), generator=Engines())
    with pytest.raises(ParityError, match=r"engine 6 differs most from Megatron, by 2.5e-01.*weight_transport"):
        trainer.begin()
