"""Forecasts of response lengths."""

import json

import numpy as np
import pytest

from nemo_brorl.generation.placement.lengths import (
    FullLength,
    LengthHistory,
    expected,
    log_survival,
    survival,
)
from nemo_brorl.types import PartialRollouts, Prompt, RolloutRequest, Sampling


def request(
    uid: str = "p", first_index: int = 0, num: int = 64, max_tokens: int = 1000, partial: PartialRollouts | None = None
) -> RolloutRequest:
    prompt = Prompt(uid, "task", "none", (1, 2, 3), {})
    return RolloutRequest(prompt, first_index, num, 7, Sampling(1.0, 1.0, max_tokens), partial)


def tokens(history: LengthHistory, task: str, uid: str, max_tokens: int) -> float:
    """Forecast of a whole response."""
    prompt = Prompt(uid, task, "none", (1, 2, 3), {})
    return history.tokens(RolloutRequest(prompt, 0, 1, 7, Sampling(1.0, 1.0, max_tokens)))


def lengths_of(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def draw(random: np.random.Generator, median: float, num: int = 512) -> np.ndarray:
    return np.rint(median * np.exp(0.4 * random.standard_normal(num))).astype(np.int32)


def learnt(half_life: float = 16_384) -> LengthHistory:
    """Sixteen prompts with medians around 200, a factor of e^0.5 apart."""
    history, random = LengthHistory(half_life), np.random.default_rng(0)
    for prompt in range(16):
        history.observe("task", f"old {prompt}", draw(random, 200 * np.exp(0.5 * random.standard_normal())))
    return history


def test_before_anything_was_seen_the_limit_decides() -> None:
    forecast = tokens(LengthHistory(), "task", "p", 900)
    assert 300 < forecast < 600, "the prior's median is a third of the limit"
    assert tokens(LengthHistory(), "task", "p", 1800) == pytest.approx(2 * forecast)


def test_a_task_shows_its_mean() -> None:
    history, random = learnt(), np.random.default_rng(0)
    seen = np.concatenate([draw(random, 200 * np.exp(0.5 * random.standard_normal())) for _ in range(16)])
    assert tokens(history, "task", "new", 100_000) == pytest.approx(seen.mean(), rel=0.1)
    assert tokens(history, "other", "new", 1000) == tokens(LengthHistory(), "other", "new", 1000)


def test_a_finished_chunk_tells_of_its_prompt() -> None:
    history = learnt()
    history.record_finished(request(max_tokens=100_000), draw(np.random.default_rng(1), 700, 64))
    assert history.tokens(request(max_tokens=100_000)) == pytest.approx(700 * np.exp(0.08), rel=0.15)


def test_responses_that_go_on_tell_that_a_prompt_is_long() -> None:
    history = learnt()
    before = history.tokens(request())
    history.record_progress(request(), num_ended=2, num_running=62, age=300)
    assert history.tokens(request(first_index=64)) > 1.5 * before


def test_responses_that_ended_early_tell_that_a_prompt_is_short() -> None:
    history = learnt()
    before = history.tokens(request())
    history.record_progress(request(), num_ended=60, num_running=4, age=100)
    assert history.tokens(request(first_index=64)) < 0.5 * before


def test_a_chunk_is_not_counted_twice_when_it_finishes() -> None:
    watched, unwatched = learnt(), learnt()
    watched.record_progress(request(), 2, 62, 300)
    for history in (watched, unwatched):
        history.record_finished(request(), lengths_of(*range(100, 164)))
    assert watched.tokens(request()) == unwatched.tokens(request())


def test_what_ended_at_the_limit_counts_as_longer() -> None:
    history, other = learnt(), learnt()
    history.record_finished(request(max_tokens=500), np.full(64, 500, np.int32))
    other.record_finished(request(max_tokens=501), np.full(64, 500, np.int32))
    assert tokens(history, "task", "p", 5000) > tokens(other, "task", "p", 5000)


def test_a_resumed_rollout_has_less_to_go() -> None:
    history = learnt()
    partial = PartialRollouts(lengths_of(0, 1), lengths_of(900, 990), 0, None)
    assert history.tokens(request(num=2, partial=partial)) <= 55, "100 and 10 tokens are left at most"
    assert FullLength().tokens(request(), age=400) == 600


def test_a_cut_response_counts_with_what_was_expected_of_it() -> None:
    history = learnt()
    before = tokens(history, "task", "p", 100_000)
    history.observe("task", "p", np.full(512, 200, np.int32), np.ones(512, bool))
    assert tokens(history, "task", "p", 100_000) > before
    history.observe("task", "p", np.full(512, 200, np.int32))
    assert tokens(history, "task", "p", 100_000) < 1.1 * before


def test_old_lengths_fade() -> None:
    history = learnt(half_life=512)
    for _ in range(10):
        history.observe("task", "p", draw(np.random.default_rng(2), 50))
    assert tokens(history, "task", "p", 1000) == pytest.approx(50 * np.exp(0.08), rel=0.1)


def test_memory_is_bounded() -> None:
    history = LengthHistory(max_prompts=2)
    for prompt in ("a", "b", "c"):
        history.record_finished(request(prompt), np.full(64, 10, np.int32))
    unknown = LengthHistory().tokens(request("a"))
    assert history.tokens(request("a")) == unknown
    assert history.tokens(request("c")) < unknown


def test_the_state_is_json_and_brings_the_same_forecasts() -> None:
    history, other = learnt(), LengthHistory()
    other.load_state_dict(json.loads(json.dumps(history.state_dict())))
    assert tokens(other, "task", "new", 1000) == tokens(history, "task", "new", 1000)


def test_the_log_normal_is_that_of_its_samples() -> None:
    samples = np.exp(5 + 0.7 * np.random.default_rng(0).standard_normal(400_000))
    assert survival(300, 5, 0.7) == pytest.approx((samples > 300).mean(), abs=0.003)
    assert expected(5, 0.7, 400) == pytest.approx(np.minimum(samples, 400).mean(), rel=0.01)
    assert expected(5, 0.7, 400, age=200) == pytest.approx(
        np.minimum(samples[samples > 200], 400).mean() - 200, rel=0.02
    )
    assert float(log_survival(np.array((np.log(300) - 5) / 0.7))) == pytest.approx(
        np.log(survival(300, 5, 0.7)), abs=1e-5
    )
    assert expected(5, 0.7, 400, age=400) == 0
    assert expected(1, 0.1, 1e9, age=1e4) == 1e4, "older than anything believed in: as long again"
