"""Sample and score: from prompts to scored groups through the Generator and Verifier ports. Training, validation,
evaluation and the warm-up's probes all come through here."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path

from nemo_brorl.core.console import Console
from nemo_brorl.core.object_store import fetch, wait_any
from nemo_brorl.core.stall_watch import Heartbeat, Stalled
from nemo_brorl.ports import Forecast, GenerationSession, Generator, Verifier
from nemo_brorl.rollouts.group_size.waves import Draw
from nemo_brorl.rollouts.ledger import GroupLedger, OpenGroup
from nemo_brorl.rollouts.requests import requests_for, requests_to_resume
from nemo_brorl.rollouts.salvage import Salvage
from nemo_brorl.types import Prompt, RolloutChunk, RolloutRequest, Sampling, ScoredChunk, ScoredGroup, TrainBatch

TURN_S = 1.0  # a wait for news ends after this long, so that deadlines and stop requests are looked at


class RolloutStream:
    """Groups under way: requests go out, scored chunks come back, settled groups come out. Scoring overlaps sampling.

    Only small objects pass through here. The order in which groups settle depends on which engine was faster; what is
    sampled does not.
    """

    def __init__(
        self,
        generator: Generator,
        verifier: Verifier,
        chunk_size: int,
        seed: int,
        heartbeat: Heartbeat,
        forecast: Forecast | None = None,
        salvage: Salvage | None = None,
    ) -> None:
        """`salvage`: what is in it is not sampled, and what comes back is noted there."""
        self.session: GenerationSession = generator.open_session(forecast)
        self.verifier = verifier
        self.chunk_size = chunk_size
        self.seed = seed
        self.heartbeat = heartbeat
        self.ledger = GroupLedger()
        self.num_asked = 0  # rollouts, ever
        self.num_settled = 0  # rollouts that came back
        self.num_tokens = 0  # sampled here, also of rollouts that were cut
        self._num_sampling = 0  # rollouts that no engine has answered for
        self._salvage = salvage
        self._taken: list[ScoredChunk] = []  # from it, for the next turn
        self.sampled_at = time.monotonic()  # when the last of them was

    @property
    def is_idle(self) -> bool:
        """Whether no rollout is out."""
        return self.ledger.num_out == 0

    def open(self, prompt: Prompt, draw: Draw, sampling: Sampling, deadline_s: float | None = None) -> None:
        """Begin a group with its first wave."""
        self.ledger.open(OpenGroup(prompt, sampling, deadline_s))
        self.extend(prompt.uid, draw)

    def extend(self, uid: str, draw: Draw) -> None:
        """A further wave of a settled group."""
        group, num = self.ledger.groups[uid], draw.num_rollouts
        group.draws.append(draw)
        start = group.num_rollouts
        self.ledger.ask(uid, range(start, start + num))
        self._submit(
            requests_for([group.prompt], num, self.chunk_size, group.sampling, self.seed, start, group.deadline_s)
        )

    def resume(self, group: OpenGroup) -> None:
        """Go on with a group that was held: its beginnings are asked for again."""
        self.ledger.open(group)
        requests = requests_to_resume(group, self.seed)
        for request in requests:
            self.ledger.ask(group.uid, request.indices.tolist())
        self._submit(requests)

    def cut(self, uids: Collection[str]) -> None:
        """End these groups' rollouts now; the groups settle soon."""
        self.session.cut(uids)

    def advance(self, timeout_s: float = TURN_S) -> list[OpenGroup]:
        """Wait for news, at most `timeout_s`; groups that have settled since, in the order they did. They stay under
        way until `release` or `extend`. Raises StallError when the run was given up."""
        self.heartbeat.check()
        wait_any([*self.session.pending(), *self.verifier.pending()], 0.0 if self._taken else timeout_s)
        settled: list[OpenGroup | None] = []
        chunks, scores = self.session.poll(), [*self._taken, *self.verifier.poll()]
        self._taken = []
        if chunks or scores:
            self.heartbeat.beat(f"{self.num_settled:,} of {self.num_asked:,} rollouts")
        for chunk in chunks:
            self._note_sampled(chunk)
            if len(chunk.lengths):
                self.verifier.submit(chunk)
            else:
                settled.append(self.ledger.receive(chunk, None))
        for scored in scores:
            self.num_settled += len(scored.rewards)
            if self._salvage is not None:
                self._salvage.note(scored)
            settled.append(self.ledger.receive(scored.chunk, scored))
        return [group for group in settled if group is not None]

    def release(self, uid: str) -> OpenGroup:
        """Stop following a settled group."""
        return self.ledger.release(uid)

    def close(self) -> None:
        """Drop what is under way."""
        self.session.close()
        self.verifier.forget()

    def _submit(self, requests: Sequence[RolloutRequest]) -> None:
        num = sum(len(request.indices) for request in requests)
        self.num_asked += num
        self._num_sampling += num
        to_sample = [request for request in requests if not self._is_salvaged(request)]
        if to_sample:
            self.session.submit(to_sample)

    def _is_salvaged(self, request: RolloutRequest) -> bool:
        """Whether the answer to a request was there already; it comes back in the next turn."""
        scored = None if self._salvage is None else self._salvage.take(request)
        if scored is None:
            return False
        self._note_sampled(scored.chunk)
        self._taken.append(scored)
        return True

    def _note_sampled(self, chunk: RolloutChunk) -> None:
        rest, resumed = chunk.unfinished, chunk.request.resumed
        self.num_tokens += int(chunk.lengths.sum())
        self.num_tokens += 0 if rest is None else int(rest.lengths.sum())
        self.num_tokens -= 0 if resumed is None else int(resumed.lengths.sum())
        self._num_sampling -= len(chunk.request.indices)
        if self._num_sampling == 0:
            self.sampled_at = time.monotonic()


@dataclass(frozen=True)
class Sampled:
    """Scored groups in the order of their prompts, and where the time went."""

    groups: list[ScoredGroup]
    generate_s: float  # until the last chunk was sampled
    reward_s: float  # after that, until the last one was scored


class Sampler:
    """Draws and scores whole groups of a fixed size."""

    def __init__(
        self,
        generator: Generator,
        verifier: Verifier,
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
        """Inside, the run waits for engines, verifiers and those that `others` name."""
        return self.heartbeat.stage(name, self.generator.stalled, self.verifier.stalled, *others)

    def open_stream(
        self, forecast: Forecast | None = None, chunk_size: int | None = None, salvage: Salvage | None = None
    ) -> RolloutStream:
        """For groups that are begun, extended and cut one by one. One stream at a time."""
        return RolloutStream(
            self.generator, self.verifier, chunk_size or self.chunk_size, self.seed, self.heartbeat, forecast, salvage
        )

    def sample(self, prompts: Sequence[Prompt], num_per_prompt: int, sampling: Sampling, stage: str) -> Sampled:
        """`num_per_prompt` rollouts of each prompt. The order of the result does not depend on which engine was
        faster."""
        start = time.monotonic()
        self.console.begin()
        stream = self.open_stream()
        closed: dict[str, ScoredGroup] = {}
        with closing(stream), self.stage(stage):
            for prompt in prompts:
                stream.open(prompt, Draw(num_per_prompt, 1.0), sampling)
            while not stream.is_idle:
                for group in stream.advance():
                    closed[group.uid] = stream.release(group.uid).close()
                self.console.progress(stage, stream.num_settled, stream.num_asked, "rollouts", time.monotonic() - start)
        self.console.clear()
        return Sampled(
            [closed[prompt.uid] for prompt in prompts], stream.sampled_at - start, time.monotonic() - stream.sampled_at
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
