"""Sampling and scoring of whole groups of a fixed size, for validation and the probes of `brorl base`.

Training and evaluation open a stream (`stream.py`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing

from nemo_brorl.core.console import Console
from nemo_brorl.core.stall_watch import Heartbeat, Stalled
from nemo_brorl.ports import ChunkScorer, Forecast, Generator
from nemo_brorl.rollouts.replay_cache import ReplayCache
from nemo_brorl.rollouts.stream import RolloutStream
from nemo_brorl.types import (
    Prompt,
    Sampling,
    ScoredGroup,
)


class Sampler:
    """Sampler and scorer of whole groups of a fixed size."""

    def __init__(
        self,
        generator: Generator,
        verifier: ChunkScorer,
        console: Console,
        chunk_size: int,
        seed: int,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        self.generator = generator
        self.verifier = verifier
        self.console = console
        self.chunk_size = chunk_size
        self.seed = seed
        self.heartbeat = heartbeat or Heartbeat()

    def stage(self, name: str, *others: Stalled) -> AbstractContextManager[None]:
        """Return a context in which a stage of the run waits for engines, verifiers and `others`.

        Those that stall are reported.
        """
        return self.heartbeat.stage(name, self.generator.stalled, self.verifier.stalled, *others)

    def open_stream(
        self,
        forecast: Forecast | None = None,
        chunk_size: int | None = None,
        replay_cache: ReplayCache | None = None,
    ) -> RolloutStream:
        """Open a stream of groups whose rollouts are started, resumed and cut one by one.

        Only one stream may be open at a time.
        """
        return RolloutStream(
            self.generator,
            self.verifier,
            chunk_size or self.chunk_size,
            self.seed,
            self.heartbeat,
            forecast,
            replay_cache,
        )

    def sample(
        self,
        prompts: Sequence[Prompt],
        num_per_prompt: int,
        sampling: Sampling,
        stage: str,
    ) -> list[ScoredGroup]:
        """Return a group of `num_per_prompt` scored rollouts for each prompt, in the order of the prompts."""
        start = time.monotonic()
        self.console.begin()
        stream = self.open_stream()
        closed: dict[str, ScoredGroup] = {}
        with closing(stream), self.stage(stage):
            for prompt in prompts:
                stream.open(prompt, num_per_prompt, sampling)
            while not stream.is_idle:
                for group in stream.advance():
                    stream.release(group.uid)
                    closed[group.uid] = group.close()
                seconds = time.monotonic() - start
                self.console.progress(stage, stream.num_settled, stream.num_asked, "rollouts", seconds)
        self.console.clear()
        return [closed[prompt.uid] for prompt in prompts]
