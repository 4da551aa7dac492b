"""The recipe of the paper's five domains on small files made here: every domain is drawn, sampled by an engine,
verified in the pool (programs in the sandbox) and measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from nemo_brorl.commands.wiring import read_inputs, start_actors, wait_ready
from nemo_brorl.config.load import load_config
from nemo_brorl.core.clock import Stopwatch
from nemo_brorl.core.console import Console
from nemo_brorl.core.tokenizer import ChatTokenizer
from nemo_brorl.rollouts.metrics import reward_metrics
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.scoring.grader_settings import configure
from nemo_brorl.types import ChunkArrays, Prompt, RolloutChunk, RolloutRequest, Sampling
from tests.support.ray_cluster import end_ray
from tests.support.tiny_model import make_tiny_model

pytestmark = pytest.mark.end_to_end

SAMPLING = Sampling(temperature=1.0, top_p=1.0, max_tokens=24)
PROGRAM = "```python\nprint(sum(map(int, input().split())))\n```"
RIGHT = {"math": "so \\boxed{0.5}", "code": PROGRAM, "science": "it is \\boxed{B}", "instructions": "no such mark here"}
ON_CPU = [
    "trainer.num_nodes=1", "trainer.gpus_per_node=0", "policy.precision=fp32", "policy.recompute=null",
    "generation.precision=fp32", "generation.sleep=off", "generation.enforce_eager=true", "generation.num_engines=1",
    "generation.max_model_len=512", "generation.max_num_seqs=64", "generation.kv_cache_gib=0.1",
    "rollouts.num_per_prompt=4", "rollouts.chunk_size=4", "rollouts.max_response_tokens=24",
    "data.max_prompt_tokens=400",
    "data.held_out_fraction=0.3", "rewards.num_workers=1", "evaluation.num_prompts=20",
    "evaluation.max_response_tokens=24",
]  # fmt: skip


def write_data(folder: Path) -> list[str]:
    """Twenty rows of each kind of file, in the layouts of the recipe, and the settings that name them. Weights are made
    equal."""
    numbers = range(20)
    math = [
        {"problem": f"What is {number} times one half, over {number}?", "answer": "\\frac{1}{2}"} for number in numbers
    ]
    tests = json.dumps({"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]})
    code = [
        {
            "data_source": "taco",
            "prompt": [{"role": "user", "content": f"Add two numbers ({number})."}],
            "ability": "code",
            "reward_model": {"style": "rule", "ground_truth": tests},
        }
        for number in numbers
    ]
    science = [
        {"domain": "physics", "problem": f"{number}: (A) hot (B) cold?", "solution": "It is \\boxed{B}."}
        for number in numbers
    ]
    asks = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    instructions = [{"key": number, "prompt": f"Write line {number} without a comma.", **asks} for number in numbers]
    settings = [f"data.domains.{index}.weight=1" for index in range(5)]
    for index, (name, rows) in enumerate(
        (("math", math), ("code", code), ("science", science), ("instructions", instructions))
    ):
        path = folder / f"{name}.{'parquet' if name in ('code', 'science') else 'jsonl'}"
        if path.suffix == ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            pq.write_table(pa.Table.from_pylist(rows), path)
        settings.append(f"data.domains.{index}.path={path}")
    return [*settings, "data.domains.4.tasks=[{name: gcd}]"]


def right_answer(prompt: Prompt) -> str:
    return RIGHT.get(prompt.domain) or f"<answer>{prompt.payload['answer']}</answer>"


def answered(tokenizer: ChatTokenizer, prompt: Prompt, text: str) -> RolloutChunk:
    """A response as an engine would hand it on."""
    ids = np.array(tokenizer.encode(text), np.int32)
    data = ChunkArrays(ids, np.zeros(len(ids), np.float32), np.array([0, len(ids)]))
    request = RolloutRequest(prompt, 0, 1, 0, SAMPLING)
    return RolloutChunk(
        request, request.indices, np.array([len(ids)], np.int32), np.ones(1, bool), 0, 0, engine=0, data=ray.put(data)
    )


def test_every_domain_of_the_recipe_is_sampled_verified_and_measured(tmp_path: Path) -> None:
    end_ray()  # the wiring starts its own
    model = make_tiny_model(tmp_path / "model")
    overrides = [
        *ON_CPU,
        *write_data(tmp_path),
        f"policy.model={model}",
        f"exp_manager.explicit_log_dir={tmp_path / 'run'}",
    ]
    config = load_config("brorl_five_domains", overrides)
    configure(config)
    inputs = read_inputs(config, model)
    prompts = inputs.prompts.take_prompts(20)
    domains = {domain.name for domain in config.data.domains}
    assert {prompt.domain for prompt in prompts} == domains
    with start_actors(config, model, inputs.verifiers, Stopwatch(), with_policy=False) as actors:
        wait_ready(actors, Stopwatch())
        sampler = Sampler(actors.generator, actors.verifier, Console(), config.rollouts.chunk_size, seed=1)
        metrics = reward_metrics(sampler.sample(prompts, config.rollouts.num_per_prompt, SAMPLING, "test"))
        scored = list(
            actors.verifier.score([answered(inputs.tokenizer, prompt, right_answer(prompt)) for prompt in prompts])
        )
    assert [item.chunk.request.prompt.domain for item in scored if item.rewards.tolist() != [1.0]] == []
    assert sum(item.num_failed for item in scored) == metrics["reward/num_failed"] == 0
    assert sum(metrics[f"domain/{name}/groups"] for name in domains) == 20
    assert {"reward/math", "reward/code", "reward/science", "reward/instructions", "reward/gcd"} <= metrics.keys()
    assert metrics["domain/instructions/reward"] > 0  # most of what a random model says has no comma
    assert metrics["domain/code/reward"] == metrics["domain/code/informative"] == 0
