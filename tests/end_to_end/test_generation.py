"""Real vLLM engines in real Ray actors, on a random model of 0.1 M parameters."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from nemo_brorl.core.errors import ConfigError, GenerationError, WeightSyncError
from nemo_brorl.generation.pool import VllmPool
from nemo_brorl.types import Sampling, StreamedBucket, TensorInfo, WeightBucket
from tests.support.engine_pool import (
    SAMPLING,
    prompt_of,
    requests_of,
    rollouts_of,
    sample,
    start_pool,
    weights_of,
    worst_difference,
)
from tests.support.tiny_model import EOS_ID, make_tiny_model

pytestmark = pytest.mark.numbers


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("models")
    return {
        "tied": make_tiny_model(base / "tied", seed=0),
        "tied other": make_tiny_model(base / "tied_other", seed=1),
        "untied": make_tiny_model(base / "untied", seed=2, is_tied=False),
        "untied other": make_tiny_model(base / "untied_other", seed=3, is_tied=False),
    }


def rendezvous_files() -> set[Path]:
    """Files by which vLLM's workers meet, of all vLLMs on this machine."""
    return set(Path(tempfile.gettempdir()).glob("vllm_dist_*"))


@pytest.fixture(scope="module")
def files_before() -> set[Path]:
    return rendezvous_files()


@pytest.fixture(scope="module")
def pools(cluster: None, folders: dict[str, Path], files_before: set[Path]) -> Iterator[dict[str, VllmPool]]:
    started = {"tied": start_pool(folders["tied"], 2), "untied": start_pool(folders["untied"], 1)}
    yield started
    for pool in started.values():
        pool.close()


@pytest.fixture
def pool(pools: dict[str, VllmPool], folders: dict[str, Path]) -> VllmPool:
    """Two engines that hold the weights of `tied` as version 0, whatever earlier tests loaded."""
    if any(stats.version != 0 for stats in pools["tied"].stats()):
        manifest, buckets = weights_of(folders["tied"])
        pools["tied"].load_weights(manifest, buckets, version=0)
    return pools["tied"]


def test_tokens_and_log_probs_are_those_of_vllms_own_scheduler(pool: VllmPool, folders: dict[str, Path]) -> None:
    # With room for eight, most rollouts wait for others to end.
    plain = start_pool(folders["tied"], 1, max_num_seqs=8, lean_scheduler="off")
    try:
        requests = requests_of(prompt_of(70, "a"), 32, 16) + requests_of(prompt_of(45, "b"), 16, 8)
        assert sample(pool, requests) == sample(plain, requests)
    finally:
        plain.close()


def test_rollouts_do_not_depend_on_chunks_engines_or_company(pool: VllmPool) -> None:
    first, second = prompt_of(70, "a"), prompt_of(45, "b")
    one_engine = sample(pool, requests_of(first, 32, 32))
    both_engines = sample(pool, requests_of(first, 32, 5))
    in_company = sample(pool, requests_of(second, 32, 7, seed=900) + requests_of(first, 32, 16))
    assert one_engine == both_engines
    assert one_engine == {key: value for key, value in in_company.items() if key[0] == "a"}
    assert len({tuple(tokens) for tokens, _, _ in one_engine.values()}) > 16, "rollouts of a group differ"


def test_an_engine_puts_no_file_beside_other_temporary_files(pool: VllmPool, files_before: set[Path]) -> None:
    assert rendezvous_files() <= files_before


def test_sampled_log_probs_are_those_of_hugging_face_after_temperature(
    pool: VllmPool, folders: dict[str, Path]
) -> None:
    prompt = prompt_of(70)
    assert worst_difference(folders["tied"], prompt, sample(pool, requests_of(prompt, 8, 4))) < 1e-4


def test_a_response_ends_with_the_eos_token_or_at_the_limit(pool: VllmPool) -> None:
    rollouts = sample(pool, requests_of(prompt_of(20), 256, 64))
    stopped = [tokens for tokens, _, is_stopped in rollouts.values() if is_stopped]
    cut = [tokens for tokens, _, is_stopped in rollouts.values() if not is_stopped]
    assert stopped, "some of 256 random rollouts hit one of 128 tokens"
    assert all(tokens[-1] == EOS_ID and EOS_ID not in tokens[:-1] for tokens in stopped)
    assert all(len(tokens) == SAMPLING.max_tokens for tokens in cut)


def test_prompts_split_by_the_token_budget_keep_their_seeds(pool: VllmPool) -> None:
    """80 different prompts of 100 tokens do not fit one step: the CPU build dies of a seeded prompt in two parts."""
    prompts = [prompt_of(100, f"p{i}") for i in range(80)]
    together = sample(pool, [request for prompt in prompts for request in requests_of(prompt, 1, 1)])
    assert sample(pool, requests_of(prompts[63], 1, 1)) == {
        key: value for key, value in together.items() if key[0] == "p63"
    }


def test_a_group_finds_its_prompt_in_the_prefix_cache(pool: VllmPool) -> None:
    before = pool.stats()
    sample(pool, requests_of(prompt_of(70, "new"), 64, 32))
    after = pool.stats()
    queries = sum(b.prefix_cache_queries - a.prefix_cache_queries for a, b in zip(before, after, strict=True))
    hits = sum(b.prefix_cache_hits - a.prefix_cache_hits for a, b in zip(before, after, strict=True))
    assert queries == 64 * 70
    assert hits == 62 * 64, "each engine computes the prompt once; 2 of its 3 blocks of 32 are full"
    assert sum(b.generated_samples - a.generated_samples for a, b in zip(before, after, strict=True)) == 64


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_new_weights_are_used_whole_and_stale_prefixes_are_not(
    pools: dict[str, VllmPool], folders: dict[str, Path], head: str, pool: VllmPool
) -> None:
    prompt = prompt_of(70)
    requests = requests_of(prompt, 8, 4)
    engines = pools[head]
    old = sample(engines, requests)
    manifest, buckets = weights_of(folders[f"{head} other"])
    engines.load_weights(manifest, iter(buckets), version=4)
    chunks = list(engines.generate(requests))
    assert {chunk.version for chunk in chunks} == {4}
    assert {stats.version for stats in engines.stats()} == {4}
    new = rollouts_of(chunks)
    assert new != old
    assert worst_difference(folders[f"{head} other"], prompt, new) < 1e-4
    manifest, buckets = weights_of(folders[head])
    engines.load_weights(manifest, iter(buckets), version=5)
    assert sample(engines, requests) == old


def test_a_manifest_that_does_not_fit_is_refused_and_engines_go_on(pool: VllmPool, folders: dict[str, Path]) -> None:
    requests = requests_of(prompt_of(70), 8, 4)
    before = sample(pool, requests)
    manifest, buckets = weights_of(folders["tied other"])
    wrong = [*manifest[:-1], TensorInfo(manifest[-1].name, (3, 3), "float32")]
    with pytest.raises(WeightSyncError, match=rf"engine \d.*{manifest[-1].name}"):
        pool.load_weights(wrong, buckets, version=9)
    assert sample(pool, requests) == before


def test_closing_the_iterator_drops_the_rest(pool: VllmPool) -> None:
    before = sum(stats.generated_samples for stats in pool.stats())
    long = Sampling(1.0, 1.0, 180)
    iterator = pool.generate(
        requests_of(prompt_of(20), 4, 4) + requests_of(prompt_of(20, "b"), 4096, 32, sampling=long)
    )
    next(iterator)
    iterator.close()  # long before the rest, which would take most of a minute
    assert sum(stats.generated_samples for stats in pool.stats()) - before < 4100
    assert len(sample(pool, requests_of(prompt_of(20), 8, 4))) == 8


def test_two_sessions_at_once_are_refused(pool: VllmPool) -> None:
    iterator = pool.generate(requests_of(prompt_of(20), 8, 4))
    next(iterator)
    with pytest.raises(GenerationError, match="another is unfinished"):
        pool.open_session()
    iterator.close()


def test_a_request_too_long_for_the_model_is_refused(pool: VllmPool) -> None:
    with pytest.raises(ConfigError, match="max_model_len=256: .* Set at least 262"):
        next(pool.generate(requests_of(prompt_of(250), 4, 4)))


def test_a_killed_engine_is_replaced_with_the_published_weights_and_the_work_completes(
    pool: VllmPool, folders: dict[str, Path]
) -> None:
    requests = requests_of(prompt_of(70), 512, 16, sampling=Sampling(1.0, 1.0, 100))
    manifest, buckets = weights_of(folders["tied other"])
    pool.load_weights(manifest, buckets, version=6)
    expected = sample(pool, requests)
    before = pool.stats()
    victim = pool.wait_ready()[0].process
    iterator = pool.generate(requests)
    chunks = [next(iterator)]
    os.kill(victim, signal.SIGKILL)
    chunks += iterator
    assert rollouts_of(chunks) == expected
    assert {chunk.version for chunk in chunks} == {6}
    replaced = pool.wait_ready()[0]
    assert replaced.process != victim
    after = pool.stats()
    assert after[0].version == 6
    assert after[0].generated_samples >= before[0].generated_samples, "counters never fall"
    alone = sample(pool, requests_of(prompt_of(70), 16, 16, sampling=Sampling(1.0, 1.0, 100)))
    assert alone == {key: value for key, value in expected.items() if key[1] < 16}, (
        "engine 0 answers with the same weights"
    )


def test_an_update_that_breaks_half_way_leaves_the_old_weights(pool: VllmPool, folders: dict[str, Path]) -> None:
    requests = requests_of(prompt_of(70), 8, 4)
    before = sample(pool, requests)
    manifest, buckets = weights_of(folders["tied other"])
    last = ray.get(buckets[-1].message)
    damaged = ray.put(WeightBucket(last.tensors, last.data, last.checksum ^ 1))
    buckets[-1] = StreamedBucket(damaged, last.data.nbytes)
    with pytest.raises(WeightSyncError, match="arrived with checksum"):
        pool.load_weights(manifest, buckets, version=7)
    chunks = list(pool.generate(requests))
    assert rollouts_of(chunks) == before
    assert {chunk.version for chunk in chunks} == {0}
