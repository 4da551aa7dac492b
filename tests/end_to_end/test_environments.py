"""Trajectories on the real stack: what engines sample over several turns is what is trained."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from brorl_graders.environments.protocol import EpisodeOutcome, EpisodeStep

from nemo_brorl.cluster.object_store import fetch
from nemo_brorl.core.console import Console
from nemo_brorl.generation.metrics import generation_metrics
from nemo_brorl.generation.pool import VllmPool
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.types import Prompt, Sampling, ScoredGroup
from tests.support.commands import Command, run
from tests.support.engine_pool import hf_log_probs, prompt_of, start_pool
from tests.support.environments import OBSERVATION, EnvironmentVerifier, draw, outcome
from tests.support.tiny_model import make_tiny_model

pytestmark = pytest.mark.end_to_end

TURNS = Sampling(temperature=0.8, top_p=1.0, max_tokens=120, max_turn_tokens=36)


def two_or_three_turns(step: EpisodeStep) -> EpisodeOutcome:
    num_turns = 2 + draw(step.episode) % 2
    return outcome(1.0, has_ended=len(step.actions) == num_turns)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "0")


@pytest.fixture(scope="module")
def pool(cluster: None, folder: Path) -> Iterator[VllmPool]:
    started = start_pool(folder, num_engines=2, max_num_seqs=64)
    yield started
    started.close()


def conversation(uid: str) -> Prompt:
    """A prompt of more than one block of the prefix cache."""
    prompt = prompt_of(70, uid)
    return Prompt(uid, "task", "environment", prompt.token_ids, {"environment": "fake"})


def trajectories(pool: VllmPool, num_prompts: int = 2, num: int = 32) -> list[ScoredGroup]:
    verifier = EnvironmentVerifier(two_or_three_turns)
    sampler = Sampler(pool, verifier, Console(), chunk_size=8, seed=1)
    prompts = [conversation(f"train/{number}") for number in range(num_prompts)]
    groups = sampler.sample(prompts, num, TURNS, "test")
    assert max(verifier.host.num_steps.values()) == 1, "no turn is taken twice"
    assert verifier.host.num_made_anew == 0
    return groups


def test_log_probs_of_sampled_tokens_are_those_of_the_whole_trajectory_and_observations_have_none(
    pool: VllmPool, folder: Path
) -> None:
    before = pool.stats()
    groups = trajectories(pool)
    worst = 0.0
    for group in groups:
        assert sorted(group.indices.tolist()) == list(range(32))
        assert set(group.num_turns.tolist()) <= {2, 3}
        for chunk, record in zip(group.group.chunks, group.turns, strict=True):
            data = fetch(chunk.data)
            assert record is not None and data.is_sampled is not None
            num_observations = record.rewards.shape[1] - 1
            for start, end in list(pairwise(data.offsets.tolist()))[:2]:
                is_sampled = data.is_sampled[start:end]
                tokens = data.token_ids[start:end]
                assert tokens[~is_sampled].tolist() == list(OBSERVATION) * num_observations
                assert (data.log_probs[start:end][~is_sampled] == 0).all()
                expected = hf_log_probs(folder, group.prompt, tokens.tolist(), TURNS.temperature)
                difference = np.abs(expected - data.log_probs[start:end])[is_sampled]
                worst = max(worst, float(difference.max()))
    assert worst < 2e-4
    metrics = generation_metrics(before, pool.stats(), 1.0)
    assert metrics["generation/resumed_hit_rate"] > 0.5, "later turns find what their engine has"


def test_trajectories_do_not_depend_on_which_engine_was_free(pool: VllmPool) -> None:
    def tokens(groups: list[ScoredGroup]) -> dict[tuple[str, int], list[int]]:
        found: dict[tuple[str, int], list[int]] = {}
        for group in groups:
            for chunk in group.group.chunks:
                data = fetch(chunk.data)
                for index, (start, end) in zip(chunk.indices.tolist(), pairwise(data.offsets.tolist()), strict=True):
                    found[group.prompt.uid, index] = data.token_ids[start:end].tolist()
        return found

    together, alone = tokens(trajectories(pool)), tokens(trajectories(pool, num_prompts=1))
    assert {key: together[key] for key in alone} == alone


def test_what_is_cut_within_and_between_turns_is_carried_and_goes_on(pool: VllmPool) -> None:
    verifier = EnvironmentVerifier(two_or_three_turns)
    sampler = Sampler(pool, verifier, Console(), chunk_size=8, seed=1)
    prompt = conversation("train/9")
    stream = sampler.open_stream()
    with closing(stream):
        stream.open(prompt, 32, TURNS)
        while not verifier.host.num_steps:
            stream.advance()
        stream.cut()
        while not stream.is_idle:
            stream.advance(0.1)
        (group,) = stream.ledger.groups.values()
        stream.release(prompt.uid)
    assert group.num_partial > 0
    later = sampler.open_stream()
    with closing(later):
        later.resume(group)
        while not later.is_idle:
            later.advance()
        scored = later.release(prompt.uid).close()
    assert sorted(scored.indices.tolist()) == list(range(32))
    assert set(scored.num_turns.tolist()) == {2, 3}
    assert max(verifier.host.num_steps.values()) == 1, "no turn is taken twice"


SMALL = [
    "data.source=reasoning_gym", "data.tasks=[{name: gcd, config: {max_value: 30}}]",
    "data.environment=verify_and_retry", "data.environment_settings={max_turns: 3, retry_discount: 0.5}",
    "rollouts.num_per_prompt=16", "rollouts.prompts_per_step=2", "rollouts.chunk_size=4",
    "rollouts.max_response_tokens=280", "rollouts.max_turn_tokens=10", "generation.max_model_len=500",
    "dynamic_sampling.enabled=false", "policy.tokens_per_micro_batch=8192", "algorithm.num_mini_batches=1",
    "evaluation.num_prompts=2", "evaluation.samples_per_prompt=2", "data.max_prompt_tokens=200",
    "trainer.val_interval=1", "trainer.save_interval=1", "trainer.rehearsal=false", "parity.enabled=false",
    "generation.num_engines=1", "rewards.num_workers=1", "rollouts.save_samples=0", "policy.data_parallel_size=1",
]  # fmt: skip
VOLATILE = ("time/", "generation/", "sync/")  # how fast, and what was in the cache
OF_THE_MOMENT = {"groups": [], "rollouts": ["engine", "sampled_at", "sampling_s", "scored_at", "scoring_s"]}  # columns


def line(base: Path, folder: Path, *overrides: str) -> list[str]:
    return ["train", *SMALL, f"policy.model={base}", f"exp_manager.explicit_log_dir={folder}", *overrides]


def rows(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(row).items() if not name.startswith(VOLATILE)} for row in text]


def kept(folder: Path, table: str, step: int) -> pa.Table:
    """What the store has of a step, but for who computed it and when."""
    found = pq.read_table(folder / "store" / table, filters=[("step", "==", step)])
    return found.drop_columns(OF_THE_MOMENT[table])


def test_a_run_killed_between_turns_and_resumed_learns_the_same_again(folder: Path, tmp_path: Path) -> None:
    """Two processes of environments, three turns at most, of which most trajectories take all. The run is killed in
    step 3, with the checkpoint of step 2 unfinished, and learns step 2 anew."""
    run_folder = tmp_path / "run"
    killed = Command(*line(folder, run_folder, "trainer.max_steps=3"))
    checkpoints = run_folder / "checkpoints"
    killed.wait_for(lambda: any(checkpoints.glob("step_2*")))
    killed.kill()
    shutil.rmtree(checkpoints / "step_2", ignore_errors=True)  # there if it was finished before the signal came
    whole = rows(run_folder)
    assert [row["step"] for row in whole] == [0, 1, 2]
    for row in whole[1:]:
        assert row["trajectories/turns"] > 2, "a random model answers wrongly"
        assert row["trajectories/observation_tokens"] > 0
        assert row["policy/log_prob_mismatch"] < 1e-4
        assert row["validation/turns"] > 2
    tables = {name: kept(run_folder, name, step=2) for name in OF_THE_MOMENT}
    assert all(len(table) for table in tables.values())
    output = run(*line(folder, run_folder, "trainer.max_steps=2")).output
    assert "resumed after step 1" in output
    assert rows(run_folder) == whole
    assert all(kept(run_folder, name, step=2).equals(table) for name, table in tables.items())
