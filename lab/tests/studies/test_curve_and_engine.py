"""The model of one engine, with numbers worked by hand."""

from pathlib import Path

import pytest

from lab.studies.cluster_model.curve import ASSUMED_H100, EngineCurve, fit, read_curve
from lab.studies.cluster_model.engine import Chunk, EngineModel
from nemo_brorl.core.errors import DataError
from nemo_brorl.generation.placement.engine_load import PrefixCache

SIMPLE = EngineCurve(step_s=1.0, rollout_s=0.1, context_s=0.01, prefill_tokens_per_s=10.0, source="test")


def engine(max_batch: int = 4, capacity: int = 1000) -> EngineModel:
    return EngineModel(SIMPLE, max_batch, PrefixCache(capacity))


def test_steps_with_a_growing_context_add_up() -> None:
    """Two rollouts with 5 tokens of context each: 1.2 + 0.10, then 0.12, then 0.14 for the context."""
    assert SIMPLE.decode_s(batch=2, context=10, num_steps=3) == pytest.approx(3 * 1.2 + 0.10 + 0.12 + 0.14)


def test_a_curve_is_found_again_from_its_steps() -> None:
    points = [(batch, batch * context) for batch in (1, 8, 64) for context in (10, 100, 1000)]
    seconds = [SIMPLE.decode_s(batch, context, 1) for batch, context in points]
    found = fit([batch for batch, _ in points], [context for _, context in points], seconds, 10.0, "test")
    assert (found.step_s, found.rollout_s, found.context_s) == pytest.approx((1.0, 0.1, 0.01))


def test_a_fit_has_no_negative_part() -> None:
    found = fit([1, 2, 4], [10, 40, 160], [1.0, 1.0, 0.9], 10.0, "test")
    assert min(found.step_s, found.rollout_s, found.context_s) >= 0


def test_a_curve_survives_its_file(tmp_path: Path) -> None:
    ASSUMED_H100.write(tmp_path / "curve.json")
    assert read_curve(tmp_path / "curve.json") == ASSUMED_H100
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(DataError, match="context_s, prefill_tokens_per_s"):
        read_curve(tmp_path / "other.json")


def test_an_h100_reads_its_weights_in_about_a_millisecond() -> None:
    assert 1e-3 < ASSUMED_H100.step_s < 3e-3
    assert ASSUMED_H100.context_s == pytest.approx(28_672 / 2.68e12)


def test_a_chunk_ends_when_its_last_rollout_does() -> None:
    """Prefill 1 s; then two rollouts for 2 steps, one for 3 more, with 10 tokens of prompt each."""
    model = engine()
    model.add(Chunk(0, prompt=0, prompt_tokens=10, lengths=[2, 5]), now_s=0.0)
    first = [1.2 + 0.20, 1.2 + 0.22]
    assert model.next_end_s == pytest.approx(1 + sum(first))
    (chunk,) = model.run_to_next_end()
    assert (chunk.num_started, chunk.num_ended, chunk.is_done, model.age(chunk)) == (2, 1, False, 2.0)
    (chunk,) = model.run_to_next_end()
    assert chunk.is_done
    assert model.time_s == pytest.approx(1 + sum(first) + 1.1 + 0.12 + 1.1 + 0.13 + 1.1 + 0.14)
    assert model.batch == 0


def test_slots_are_filled_as_they_fall_free() -> None:
    model = engine(max_batch=2)
    first, second = Chunk(0, 0, 10, [1, 3, 3]), Chunk(1, 1, 10, [1])
    model.add(first, 0.0)
    model.add(second, 0.0)
    assert (first.num_started, second.num_started, model.batch) == (2, 0, 2)
    model.run_to_next_end()
    assert (first.num_started, second.num_started, model.batch) == (3, 0, 2)
    assert model.withdraw(0) is None, "it has begun"
    assert model.withdraw(1) is second
    assert model.withdraw(1) is None


def test_a_cached_prompt_is_not_computed_again_until_it_falls_out() -> None:
    model = engine(capacity=20)
    for number, prompt in enumerate([0, 0, 1, 0, 2, 1]):
        model.add(Chunk(number, prompt, 10, [1]), model.time_s)
        model.run_to_next_end()
    assert model.prefill_tokens == 40, "0, 1, then 2 in place of 1, then 1 in place of 0"


def test_a_chunk_that_arrives_in_a_step_begins_with_the_next() -> None:
    model = engine()
    model.add(Chunk(0, 0, 10, [100]), 0.0)
    model.add(Chunk(1, 0, 10, [1]), 3.0)
    assert model.time_s == pytest.approx(1 + 1.1 + 0.10 + 1.1 + 0.11), "the prompt, and two steps"
    assert model.batch == 2
