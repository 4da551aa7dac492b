"""Agents on the real stack: what engines sampled for OpenAI's client is what is trained, on two ranks side by side in
every layer; and what the steps of such a run leave."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from brorl_lab.store_reader import sampled_groups
from brorl_lab.trace_reader import read_spans, timeline_steps

from nemo_brorl.cluster.object_store import fetch
from nemo_brorl.core.timeline import BETWEEN, top_stages
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.scoring.response_arrays import turn_bounds
from nemo_brorl.types import ChunkArrays
from tests.support.commands import Command, run
from tests.support.source_tree import CODE_PATH, ROOT

pytestmark = pytest.mark.end_to_end

MODEL = ROOT / "models" / "sums"
# The example, told to note what it is given.
NOTING = """
import json
from pathlib import Path
import agent

async def run(task, endpoint):
    await agent.run(task, endpoint)
    with Path({notes!r}).open("a") as file:
        file.write(endpoint.api_key + "\\n")
"""
SMALL = [
    "--config-name", "sums_cpu", f"policy.model={MODEL}", "policy.tensor_model_parallel_size=2",
    "policy.data_parallel_size=1", "parity.enabled=false", "data.environment=agent",
    "data.environment_settings={run: 'noting_agent:run'}", "generation.num_engines=1", "rewards.num_workers=1",
    "rollouts.num_per_prompt=16", "rollouts.prompts_per_step=4", "rollouts.chunk_size=8",
    "rollouts.max_response_tokens=160", "rollouts.max_turn_tokens=64", "dynamic_sampling.enabled=false",
    "algorithm.num_mini_batches=1", "evaluation.num_prompts=2", "evaluation.samples_per_prompt=2",
    "trainer.max_steps=2", "trainer.val_interval=0", "trainer.save_interval=1", "trainer.rehearsal=false",
    "profile.kind=torch", "profile.steps=[2]", "profile.ranks=[1]", "rewards.environments.step_timeout_s=100",
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, and in `notes` beside it a line for each trajectory's agent."""
    base = tmp_path_factory.mktemp("agents")
    (base / "noting_agent.py").write_text(NOTING.format(notes=str(base / "notes")))
    folder = base / "run"
    path = f"{CODE_PATH}:{ROOT / 'examples'}:{base}"
    command = Command("train", *SMALL, f"exp_manager.explicit_log_dir={folder}", variables={"PYTHONPATH": path})
    assert command.wait() == 0, command.output[-2000:] + command.errors[-4000:]
    return folder


def test_an_agent_written_against_openais_client_alone_is_trained_on_what_was_sampled(trained: Path) -> None:
    rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if row["step"]:
            assert row["policy/log_prob_mismatch"] < 1e-4, "the policy computes the engine's log-probs anew"
            assert row["reward/num_failed"] == 0
            assert row["trajectories/turns"] > 1
    tokens = (trained.parent / "notes").read_text().split()
    assert len(set(tokens)) == len(tokens) >= 2 * 4 * 16
    check_turns(trained)
    for parent, _, names in os.walk(trained):
        for name in names:
            content = (Path(parent) / name).read_bytes()
            assert not any(token.encode() in content for token in tokens[:20]), "a token is written down"


def trajectories(folder: Path) -> Iterator[tuple[str, ChunkArrays, int, int]]:
    """Right answer, arrays, and where they have the response, of each."""
    for _, group in sampled_groups(folder, [1, 2]):
        answer = group.prompt.payload["task"]["payload"]["answer"]
        for chunk in group.group.chunks:
            data = fetch(chunk.data)
            for start, end in pairwise(data.offsets.tolist()):
                yield answer, data, start, end


def check_turns(folder: Path) -> None:
    """A second turn follows where the first was wrong, behind the agent's words, which are no part of the loss."""
    tokenizer = load_tokenizer(MODEL)
    told = "\n<|im_start|>user\nNo.<|im_end|>\n<|im_start|>assistant\n"
    num_seen = 0
    for answer, data, start, end in trajectories(folder):
        bounds = turn_bounds(data, start, end)
        texts = [tokenizer.decode(data.token_ids[low:high].tolist()) for low, high in bounds]
        is_right = f"<answer>{answer}</answer>" in texts[0]
        assert len(texts) == (1 if is_right else 2)
        if not is_right:
            between = data.token_ids[bounds[0][1] : bounds[1][0]].tolist()
            said = tokenizer.backend.decode(between, skip_special_tokens=False)
            assert said.removeprefix("<|im_end|>") == told
            num_seen += 1
    assert num_seen > 10


def test_a_stored_step_of_two_tensor_parallel_ranks_is_the_same_update_bit_for_bit(trained: Path) -> None:
    output = run("replay", str(trained), "--step", "2").output
    assert "bit-identical" in output
    assert "differ" not in output


def test_every_step_leaves_a_trace_of_all_processes_whose_stages_are_its_time(trained: Path) -> None:
    assert timeline_steps(trained) == [0, 1, 2]
    spans = read_spans(trained, 2)
    assert {span.process for span in spans} >= {"driver", "verifier 0", "policy rank 0", "policy rank 1"}
    stages = top_stages(spans)
    assert sum(stage.seconds for stage in stages) >= 0.98 * spans[0].seconds
    assert sum(stage.seconds for stage in stages if stage.name == BETWEEN) <= 0.02 * spans[0].seconds
    sampled: set[str] = set()
    learnt: set[str] = set()
    for span in spans:
        if span.name == "sample":
            sampled.update(span.rollouts)
        elif span.name.startswith("mini-batch"):
            learnt.update(span.rollouts)
    assert sampled & learnt


def test_the_chosen_rank_leaves_a_profile_of_the_chosen_step_and_no_other_does(trained: Path) -> None:
    (path,) = (trained / "profiles").iterdir()
    assert path.name == "step_000002_rank_1.json.gz"
    profile = json.loads(gzip.decompress(path.read_bytes()))
    names = {event["name"] for event in profile["traceEvents"]}
    assert "aten::mm" in names
    assert any("Backward" in name for name in names)
