"""Which engine samples which chunk. Pure bookkeeping: no Ray, no clock, no randomness.

Seeds belong to rollouts, so placement never changes what is sampled, only how fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nemo_brorl.config.schema import PlacementConfig
from nemo_brorl.generation.placement.engine_load import EngineLoad, EngineOrder, HeldChunk
from nemo_brorl.generation.placement.lengths import FullLength
from nemo_brorl.generation.placement.waiting_chunks import WaitingChunks, WaitingPrompt
from nemo_brorl.ports import Forecast
from nemo_brorl.types import Int32, RolloutRequest


@dataclass(frozen=True)
class Steal:
    """Ask `victim` to give back `chunk` if it has not begun it: `thief` could begin at once."""

    victim: int
    chunk: int
    thief: int


_HALF_FULL = 0.5  # of a batch: with fewer rollouts an engine takes what there is


class ChunkPlacement:
    """Hands chunks to engines; chunks and engines come and go meanwhile.

    Life of a chunk: waiting ──assign──► held by an engine ──progress──► begun ──finish──► gone.
    Ways back: `lose` puts the unfinished chunks of a dead engine to waiting, first in line; `withdrawn` a chunk that an
    engine gave back before it began. `cancel` ends a waiting chunk. Chunks are numbered in the order of submission,
    from 0.

    The unit of work is one decoded token. A chunk costs its rollouts times the tokens forecast for one of them, each of
    which costs `context_cost` more for every token it attends to, and its prompt times `prefill_cost` on an engine that
    does not hold the prompt. `assign` charges the engine with that; `progress`, `finish` and `lose` free it.

    Whose turn: of the engines with room, the one with the least work. An engine has room while it holds at most
    `max_rollouts` rollouts that have not ended, that is one chunk more than its batch, so that the next rollouts are
    there when slots fall free. One with more work than an equal share of everything waits until its batch is half
    empty: what it has begun cannot be moved. What it gets: the chunk with the most work, because what is long must not
    begin last. A prompt that another engine holds, and this one does not, counts for less by the price of computing it
    once more; one of which it has chunks, for `concentration_cost` less for each, because they are long or short
    together. Of equal chunks, one of a prompt it holds.

    At the end nothing waits, and some engines have free slots while others have chunks they have not begun. `steals`
    says who could take over what. The caller asks the victim and answers with `withdrawn` or `kept`. No chunk is
    proposed twice at a time.

    Two engines, prompts A and B of two chunks each, all of the same length: A0→0, B0→1, A1→0, B1→1.
    """

    def __init__(
        self,
        requests: Sequence[RolloutRequest],
        max_rollouts: int,
        config: PlacementConfig | None = None,
        forecast: Forecast | None = None,
    ) -> None:
        """`forecast` is told of progress, and asked again about a prompt when there is news of it; None:
        `FullLength`."""
        self._max_rollouts = max_rollouts
        self._config = config if config is not None else PlacementConfig()
        self._forecast = forecast if forecast is not None else FullLength()
        self._requests: dict[int, RolloutRequest] = {}  # not finished, by chunk
        self._num_submitted = 0
        self._waiting = WaitingChunks()
        self._loads: dict[int, EngineLoad] = {}  # by available engine
        self._work = 0.0  # of all engines
        self._holders: dict[str, set[int]] = {}  # prompt uid → engines that are believed to hold it
        self._claimed: dict[int, Steal] = {}  # by chunk, not answered
        self._turns = EngineOrder(self._loads)  # engines with room, least work first
        self._thieves = EngineOrder(self._loads)  # engines with free slots, least work first
        self._victims = EngineOrder(self._loads, most_first=True)  # engines with chunks not begun
        self.submit(requests)

    @property
    def is_finished(self) -> bool:
        """Whether every chunk is finished or cancelled."""
        return not self._requests

    @property
    def num_waiting(self) -> int:
        """Chunks that no engine holds."""
        return self._waiting.num_chunks + len(self._waiting.first_in_line)

    def submit(self, requests: Sequence[RolloutRequest]) -> range:
        """More chunks. Returns their numbers, in order."""
        first = self._num_submitted
        self._num_submitted += len(requests)
        for chunk, request in enumerate(requests, start=first):
            self._requests[chunk] = request
            self._wait(chunk)
        return range(first, self._num_submitted)

    def add_engine(self, engine: int) -> None:
        """An engine is ready, with an empty prefix cache."""
        self._loads[engine] = EngineLoad(self._config.cached_prompt_tokens)
        self._take_turn(engine)

    def assign(self) -> tuple[int, int] | None:
        """(engine, chunk) of the next assignment; None when nothing waits or no engine has room."""
        engine = self._turns.first() if self.num_waiting else None
        first = self._waiting.first_in_line
        if engine is None or (not first and self._has_its_share(engine)):
            return None
        chunk = first.popleft() if first else self._next_of(self._choose_prompt(engine))
        self._give(engine, chunk)
        return engine, chunk

    def progress(self, engine: int, chunk: int, num_begun: int, num_ended: int, age: float = 0.0) -> None:
        """How many rollouts of a chunk its engine has begun and ended so far, and the tokens that those going on have,
        on average.

        Slots of ended ones are free for others. Numbers never fall; news about a chunk the engine does not hold is
        ignored.
        """
        load = self._loads.get(engine)
        if load is None or chunk not in load.chunks:
            return
        request = self._requests[chunk]
        if num_begun:
            self._forecast.watch(request, num_ended, num_begun - num_ended, age)
        load.advance(chunk, num_begun, num_ended, self._work_of_one(request, age))
        self._take_turn(engine)
        self._look_again(request.prompt.uid)

    def finish(self, engine: int, chunk: int, lengths: Int32 | None = None) -> None:
        """A chunk arrived from an engine, which has room again. lengths: [m] of the responses that ended, for the
        forecast."""
        self._loads[engine].remove(chunk)
        self._answer(chunk)
        self._take_turn(engine)
        request = self._requests.pop(chunk)
        if lengths is not None:
            self._forecast.note_ended(request, lengths)
        self._look_again(request.prompt.uid)

    def cancel(self, chunk: int) -> bool:
        """End a chunk that waits. False: an engine holds it, and must be asked; then it ends by `finish` as any
        other."""
        request = self._requests[chunk]
        uid = request.prompt.uid
        if chunk in self._waiting.first_in_line:
            self._waiting.first_in_line.remove(chunk)
        elif uid in self._waiting and chunk in self._waiting[uid].chunks:
            self._waiting.remove(uid, chunk, request.num_rollouts)
        else:
            return False
        del self._requests[chunk]
        return True

    def lose(self, engine: int) -> None:
        """An engine died: it is unavailable until `add_engine`, its cache is gone, and what it held waits again."""
        load = self._loads.pop(engine)
        self._work -= load.counted_work
        self._waiting.first_in_line.extendleft(sorted(load.chunks, reverse=True))
        for chunk in load.chunks:
            self._answer(chunk)
        for uid in load.cache.uids():
            self._forget(engine, uid)

    def steals(self) -> list[Steal]:
        """Chunks that should change engines, when nothing waits. Each stays with its engine until it is answered.

        The engine with the least work among those with free slots takes from the one with the most work, if it has less
        with the chunk, and its prompt computed once more, than the other has now. An engine waits for one answer at a
        time.
        """
        proposed: list[Steal] = []
        while self._config.steal and not self.num_waiting:
            thief, victim = self._thieves.first(), self._victims.first()
            chunk = None if victim is None else self._loads[victim].stealable()
            if thief is None or victim is None or chunk is None or thief == victim:
                break
            held, request = self._loads[victim].chunks[chunk], self._requests[chunk]
            moved = held.num_left * held.work_of_one + self._prefill_work(thief, request)
            if self._loads[thief].work + moved >= self._loads[victim].work:
                break
            self._claimed[chunk] = Steal(victim, chunk, thief)
            held.is_claimed = True
            self._loads[thief].is_promised = True
            self._take_turn(thief)
            self._take_turn(victim)
            proposed.append(self._claimed[chunk])
        return proposed

    def withdrawn(self, chunk: int) -> None:
        """A victim gave a chunk back that it had not begun: it waits again, first in line."""
        steal = self._answer(chunk)
        if steal is not None:
            self._loads[steal.victim].remove(chunk)
            self._take_turn(steal.victim)
            self._waiting.first_in_line.append(chunk)

    def kept(self, chunk: int) -> None:
        """A victim had begun a chunk when it was asked: it stays where it is."""
        steal = self._answer(chunk)
        if steal is not None:
            self.progress(steal.victim, chunk, num_begun=1, num_ended=0)

    def _answer(self, chunk: int) -> Steal | None:
        """The proposal about a chunk, which is settled with this; None when there is none any more."""
        steal = self._claimed.pop(chunk, None)
        if steal is not None and steal.thief in self._loads:
            self._loads[steal.thief].is_promised = False
            self._take_turn(steal.thief)
        return steal

    def _take_turn(self, engine: int) -> None:
        """Put an engine where it belongs now; where it was before is void."""
        load = self._loads[engine]
        load.stamp += 1
        self._work += load.work - load.counted_work
        load.counted_work = load.work
        if load.num_rollouts <= self._max_rollouts:
            self._turns.push(engine)
        if load.num_rollouts < self._max_rollouts and not load.is_promised:
            self._thieves.push(engine)
        if load.stealable() is not None:
            self._victims.push(engine)

    def _has_its_share(self, engine: int) -> bool:
        """Whether an engine with a batch at least half full has more work left than an equal share of all there is:
        what it began cannot be moved, so it would be the last with anything on top."""
        load = self._loads[engine]
        share = (self._work + self._waiting.work) / len(self._loads)
        return load.num_rollouts >= _HALF_FULL * self._max_rollouts and load.work > share

    def _next_of(self, uid: str) -> int:
        chunk = self._waiting[uid].chunks[0]
        self._waiting.remove(uid, chunk, self._requests[chunk].num_rollouts)
        return chunk

    def _give(self, engine: int, chunk: int) -> None:
        request = self._requests[chunk]
        load = self._loads[engine]
        work, prefill = self._work_of_one(request), self._prefill_work(engine, request)
        load.add(chunk, HeldChunk(request.prompt.uid, request.num_rollouts, work, prefill))
        self._hold(engine, request)
        self._take_turn(engine)

    def _wait(self, chunk: int) -> None:
        request = self._requests[chunk]
        uid = request.prompt.uid
        holders = self._holders.get(uid, ())
        self._waiting.add(uid, chunk, request.num_rollouts, self._work_of_one(request), is_fresh=not holders)
        for engine in holders:
            self._loads[engine].own[uid] = None

    def _hold(self, engine: int, request: RolloutRequest) -> None:
        """The prompt of a request is in an engine's cache from now on, and what had to go for it is not."""
        uid, load = request.prompt.uid, self._loads[engine]
        self._holders.setdefault(uid, set()).add(engine)
        load.own[uid] = None
        for gone in load.cache.use(uid, len(request.prompt.token_ids)):
            self._forget(engine, gone)
            load.own.pop(gone, None)

    def _forget(self, engine: int, uid: str) -> None:
        holders = self._holders[uid]
        holders.discard(engine)
        if not holders:
            del self._holders[uid]
            self._waiting.note_fresh(uid)

    def _look_again(self, uid: str) -> None:
        """Something of a prompt arrived: the forecast of what waits may have changed."""
        if uid in self._waiting:
            request = self._requests[self._waiting[uid].chunks[0]]
            self._waiting.expect(uid, self._work_of_one(request), is_fresh=uid not in self._holders)

    def _work_of_one(self, request: RolloutRequest, age: float = 0.0) -> float:
        """What is left of one of its rollouts, which have `age` tokens: each further token attends to all before it."""
        tokens = self._forecast.tokens(request, age)
        begun = age if age or request.resumed is None else float(request.resumed.lengths.mean())
        return tokens * (1.0 + self._config.context_cost * (len(request.prompt.token_ids) + begun + tokens / 2))

    def _prefill_work(self, engine: int, request: RolloutRequest) -> float:
        """What it costs to have the prompt on an engine, in decoded tokens."""
        if request.prompt.uid in self._loads[engine].cache:
            return 0.0
        return self._config.prefill_cost * len(request.prompt.token_ids)

    def _choose_prompt(self, engine: int) -> str:
        """The most work, less what is wasted by computing a prompt that another engine has."""
        own = self._longest_own(engine)
        candidates = [own, self._waiting.longest_fresh(self._holders), self._waiting.longest()]
        values = [
            (self._value(engine, prompt), -order, prompt.uid)
            for order, prompt in enumerate(candidates)
            if prompt is not None
        ]
        return max(values)[2]

    def _longest_own(self, engine: int) -> WaitingPrompt | None:
        load = self._loads[engine]
        load.own = {uid: None for uid in load.own if uid in self._waiting}
        own = [self._waiting[uid] for uid in load.own]
        return max(own, key=lambda prompt: (prompt.work_of_one, -prompt.order), default=None)

    def _value(self, engine: int, prompt: WaitingPrompt) -> float:
        """Work of a prompt's next chunk, less what speaks against this engine: the price of the prompt where only
        others hold it, and chunks of the prompt it has already."""
        request, load = self._requests[prompt.chunks[0]], self._loads[engine]
        work = request.num_rollouts * prompt.work_of_one
        value = work - self._config.concentration_cost * work * load.num_chunks_of.get(prompt.uid, 0)
        return value - self._prefill_work(engine, request) if self._holders.get(prompt.uid) else value
