"""Measure what it costs to continue trajectories, and the throughput lost while environments think.

The next turn on the engine that has a trajectory's tokens is compared with computing all tokens again at every turn.

    python -m bench.turns [--rollouts 512] [--turns 4] [--engines 1] [--turn-tokens 32] [--observation-tokens 16]
        [--think-s 1.0] [--prompts 2] [--repeats 3] [--json FILE]

The real session, placement, judging of turns and vLLM engines on random weights; the environment answers at once and
in no process. `anew`: each request begins with tokens of its own, so that nothing of it is found in the cache.
`thinking`: as `continued`, but environments answer each chunk after `--think-s` seconds; what it lacks of `continued`
is the share of time that places of the batch were empty for that. Arms take turns; ratios are of medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
from brorl_graders.environments.protocol import EpisodeOutcome, EpisodeStep

from bench.generation import PromptMaker, make_model
from nemo_brorl.cluster.object_store import fetch
from nemo_brorl.config.rewards import RewardsConfig
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console, format_table
from nemo_brorl.core.tokenizer import ChatTokenizer
from nemo_brorl.generation.metrics import generation_metrics
from nemo_brorl.generation.pool import VllmPool
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.rollouts.stream import RolloutStream
from nemo_brorl.scoring.pool import scored_chunk
from nemo_brorl.scoring.turns import TurnJudge
from nemo_brorl.types import Prompt, RolloutChunk, RolloutRequest, Sampling, ScoredChunk

ARMS = ("continued", "anew", "thinking")


class FixedTurns:
    """Every trajectory has as many turns as it is told."""

    def __init__(self, num_turns: int) -> None:
        self.num_turns = num_turns

    def step(self, steps: Sequence[EpisodeStep]) -> list[EpisodeOutcome]:
        outcomes: list[EpisodeOutcome] = []
        for step in steps:
            has_ended = len(step.actions) == self.num_turns
            outcomes.append(EpisodeOutcome((), 1.0, has_ended, False, {}, ""))
        return outcomes

    def end(self, episodes: Collection[str]) -> None:
        pass

    def close(self) -> None:
        pass


class FixedTokens:
    """An observation of so many tokens."""

    def __init__(self, num_tokens: int) -> None:
        self.tokens = list(range(10, 10 + num_tokens))

    def after(self, messages: object, response_ids: object, is_stopped: bool, observation: object) -> list[int]:
        return self.tokens


class NoText(ChatTokenizer):
    """Nobody reads what is said; responses end with the token that ends them for `make_model`'s model."""

    @property
    def eos_token_id(self) -> int:
        return 1

    def decode(self, token_ids: Sequence[int]) -> str:
        return ""


@ray.remote(num_cpus=0)
class Clock:
    """Answers later, so that the driver waits in place of asking."""

    async def after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ThinkingVerifier:
    """Judges turns in this process, each chunk `think_s` seconds after it came."""

    def __init__(self, judge: TurnJudge, think_s: float) -> None:
        self.judge = judge
        self.think_s = think_s
        self.clock = Clock.remote()  # type: ignore[attr-defined]
        self.waiting: dict[Any, RolloutChunk] = {}  # by what is ready when they have thought

    def submit(self, chunk: RolloutChunk) -> None:
        self.waiting[self.clock.after.remote(self.think_s)] = chunk

    def poll(self) -> list[ScoredChunk]:
        if not self.waiting:
            return []
        due, _ = ray.wait(list(self.waiting), num_returns=len(self.waiting), timeout=0)
        return [self.judged(self.waiting.pop(answer)) for answer in due]

    def judged(self, chunk: RolloutChunk) -> ScoredChunk:
        scores, ended, unfinished = self.judge.judge(chunk, fetch(chunk.data))
        return scored_chunk(chunk, scores, ended, None if unfinished is None else ray.put(unfinished))

    def pending(self) -> list[Any]:
        return list(self.waiting)

    def forget(self) -> None:
        self.waiting = {}

    def score(self, chunks: object) -> Any:
        return iter(())

    def stalled(self, seconds: float) -> list[str]:
        return []

    def close(self) -> None:
        pass


class AnewStream(RolloutStream):
    """Every request begins with another first token, which no engine has seen."""

    num_requests = 0

    def _submit(self, requests: Sequence[RolloutRequest]) -> None:
        changed: list[RolloutRequest] = []
        for request in requests:
            AnewStream.num_requests += 1
            rest = request.prompt.token_ids[2:]
            marks = (10 + self.num_requests % 89, 10 + self.num_requests // 89 % 89)
            prompt = replace(request.prompt, token_ids=(*marks, *rest))
            partial = request.partial
            if partial is not None:
                partial = replace(partial, engine=-1)
            changed.append(replace(request, prompt=prompt, partial=partial))
        super()._submit(changed)


def run_arm(arm: str, pool: VllmPool, sampler: Sampler, prompts: Sequence[Prompt], options: Any) -> dict[str, float]:
    """Run one arm, and return its seconds and tokens."""
    response = options.turns * (options.turn_tokens + options.observation_tokens)
    sampling = Sampling(1.0, 1.0, max_tokens=response, max_turn_tokens=options.turn_tokens)
    kind = AnewStream if arm == "anew" else RolloutStream
    verifier = ThinkingVerifier(sampler.verifier.judge, options.think_s if arm == "thinking" else 0.0)  # type: ignore[attr-defined]
    stream = kind(pool, verifier, sampler.chunk_size, sampler.seed, sampler.heartbeat)
    before = pool.stats()
    start = time.monotonic()
    lengths: list[int] = []
    with closing(stream):
        for prompt in prompts:
            stream.open(prompt, options.rollouts, sampling)
        while not stream.is_idle:
            for group in stream.advance():
                closed = stream.release(group.uid).close()
                lengths += closed.group.num_sampled.tolist()
    seconds = time.monotonic() - start
    metrics = generation_metrics(before, pool.stats(), seconds)
    return {
        "seconds": seconds,
        "tokens": float(np.sum(lengths)),
        "turn_hit_rate": metrics.get("generation/resumed_hit_rate", 0.0),
        "rollouts": float(len(lengths)),
    }


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=512, help="of each prompt")
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--turn-tokens", type=int, default=32)
    parser.add_argument("--observation-tokens", type=int, default=16)
    parser.add_argument("--think-s", type=float, default=1.0)
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--batch", type=int, default=256, help="places of an engine")
    parser.add_argument("--kv-gib", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    """Both arms in turn, their ratio."""
    options = parse_arguments()
    config = BroRLConfig()
    config.generation.num_engines = options.engines
    config.generation.max_num_seqs = options.batch
    config.generation.kv_cache_gib = options.kv_gib
    response = options.turns * (options.turn_tokens + options.observation_tokens)
    config.generation.max_model_len = options.prompt_tokens + response + 2
    ray.init(num_cpus=options.engines + 1, include_dashboard=False, logging_level="ERROR")
    found: dict[str, list[Mapping[str, float]]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as scratch:
        folder = make_model(Path(scratch), config.generation.max_model_len)
        vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
        pool = VllmPool(config.generation, RunSizes.from_config(config), folder)
        pool.wait_ready()
        judge = TurnJudge(
            NoText(None, None, {}),  # type: ignore[arg-type]
            FixedTurns(options.turns),
            FixedTokens(options.observation_tokens),
            RewardsConfig(),
        )
        verifier = ThinkingVerifier(judge, 0.0)
        sampler = Sampler(pool, verifier, Console(), options.chunk, seed=1)
        maker = PromptMaker(vocabulary)
        for _ in range(options.repeats + 1):
            made = maker.make(options.prompts, options.prompt_tokens)
            prompts = [replace(prompt, verifier="environment", payload={"environment": "fixed"}) for prompt in made]
            for arm in ARMS:
                found[arm].append(run_arm(arm, pool, sampler, prompts, options))
        pool.close()
    rows: list[list[str]] = []
    medians: dict[str, float] = {}
    for arm, runs in found.items():
        measured = runs[1:]  # the first warms up
        medians[arm] = statistics.median(run["tokens"] / run["seconds"] for run in measured)
        seconds = statistics.median(run["seconds"] for run in measured)
        hit_rate = statistics.median(run["turn_hit_rate"] for run in measured)
        rows.append([arm, f"{seconds:.1f}", f"{medians[arm]:,.0f}", f"{hit_rate:.1%}"])
    print("\n".join(format_table(["arm", "s", "tokens/s", "hit rate of later turns"], rows)))
    print(f"continued over anew: {medians['continued'] / medians['anew']:.2f}")
    print(f"lost while environments think: {1 - medians['thinking'] / medians['continued']:.1%}")
    if options.json:
        options.json.write_text(json.dumps({"options": str(vars(options)), "runs": found}, indent=1))


if __name__ == "__main__":
    main()
