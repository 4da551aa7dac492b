"""Sample and score: from prompts to scored groups through the Generator and Verifier ports. Training, validation, evaluation
and the warm-up's probes all come through here."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_brorl.console import Console
from nemo_brorl.object_store import fetch
from nemo_brorl.ports import Generator, Verifier
from nemo_brorl.rollouts.assemble import assemble
from nemo_brorl.rollouts.requests import requests_for
from nemo_brorl.types import Prompt, RolloutChunk, Sampling, ScoredGroup, TrainBatch


@dataclass(frozen=True)
class Sampled:
    """Scored groups in the order of their prompts, and where the time went."""

    groups: list[ScoredGroup]
    generate_s: float  # until the last chunk was sampled
    reward_s: float  # after that, until the last one was scored


class Sampler:
    """Draws and scores groups; scoring overlaps sampling."""

    def __init__(self, generator: Generator, verifier: Verifier, console: Console, chunk_size: int, seed: int) -> None:
        self.generator = generator
        self.verifier = verifier
        self.console = console
        self.chunk_size = chunk_size
        self.seed = seed

    def sample(self, prompts: Sequence[Prompt], num_per_prompt: int, sampling: Sampling, stage: str) -> Sampled:
        """`num_per_prompt` rollouts of each prompt. The order of the result does not depend on which engine was faster."""
        requests = requests_for(prompts, num_per_prompt, self.chunk_size, sampling, self.seed)
        start = time.monotonic()
        generated_at = start

        def note_end(chunks: Iterable[RolloutChunk]) -> Iterator[RolloutChunk]:
            nonlocal generated_at
            yield from chunks
            generated_at = time.monotonic()

        total = len(prompts) * num_per_prompt
        chunks = self.console.track(stage, note_end(self.generator.generate(requests)), total, "rollouts", self.chunk_size)
        closed = {scored.prompt.uid: scored for scored in assemble(prompts, num_per_prompt, self.verifier.score(chunks))}
        return Sampled(
            groups=[closed[prompt.uid] for prompt in prompts],
            generate_s=generated_at - start,
            reward_s=time.monotonic() - generated_at,
        )


def write_samples(path: Path, batch: TrainBatch, num: int, decode: Callable[[Sequence[int]], str]) -> None:
    """Write the first rollout of `num` groups as text, to read what the model does; 0: no file."""
    if not num:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for group, advantages in list(zip(batch.groups, batch.advantages, strict=True))[:num]:
            arrays = fetch(group.group.chunks[0].data)
            row = {
                "prompt": decode(group.prompt.token_ids),
                "response": decode(arrays.token_ids[: arrays.offsets[1]].tolist()),
                "reward": float(group.rewards[0]),
                "advantage": float(advantages[0]),
                "group_mean": float(group.rewards.mean()),
            }
            file.write(json.dumps(row) + "\n")
