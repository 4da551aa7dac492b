"""Placement of chunks on engines: which engine samples which chunk.

Pure bookkeeping without Ray, clock or randomness. Seeds belong to rollouts, so placement never changes what is sampled,
only how fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nemo_brorl.generation.placement.costs import ChunkCosts, PlacementCosts
from nemo_brorl.generation.placement.engine_load import AssignedChunk, EngineLoad, EngineOrder
from nemo_brorl.generation.placement.lengths import FullLength
from nemo_brorl.generation.placement.prefix_holders import PrefixHolders
from nemo_brorl.generation.placement.waiting import WaitingChunks, WaitingPrompt
from nemo_brorl.ports import Forecast
from nemo_brorl.types import Int32, RolloutRequest

# An engine with less than this share of a full batch may exceed its equal share of the work.
_HALF_FULL = 0.5


@dataclass(frozen=True)
class Steal:
    """Proposal that engine `victim` gives `chunk`, if it has not started it, to engine `thief`, which is free."""

    victim: int
    chunk: int
    thief: int


class ChunkPlacement:
    """Assignment of chunks to engines. Chunks and engines may come and go at any time.

    Life of a chunk: waiting ──assign──► held by an engine ──progress──► started ──finish──► removed. `lose` queues the
    chunks of a dead engine again, first in line. `withdrawn` does so with a chunk that an engine gave back before it
    started. `cancel` ends a waiting chunk. Chunks are numbered in the order of submission, from 0.

    `assign` charges the engine with the cost of the chunk (`ChunkCosts`). `progress`, `finish` and `lose` free it.

    The next engine is the one with the least work among those with room. An engine has room while it holds at most
    `max_rollouts` unfinished rollouts. That is one chunk more than its batch, so that the next rollouts are there when
    slots in the batch become free. An engine with more work than an equal share of everything waits until its batch is
    half empty, because started chunks cannot be moved.

    It gets the chunk with the most work, because long chunks must not start last. A prompt that only other engines hold
    counts for less, by the price of computing it again. A prompt of which the engine has chunks counts for less by
    `concentration` for each, because they are long or short together. Among equal chunks, one of a prompt that the
    engine holds is preferred. The next turn of trajectories is first in line at the engine with their tokens. Another
    engine takes it if that one has less work even after computing these tokens again.

    At the end nothing waits, and some engines have free slots while others have chunks that they have not started.
    `steals` proposes chunks to move. The caller asks the victim and reports `withdrawn` or `kept`.

    Example with two engines, and prompts A and B of two chunks each, all of the same length: A0→0, B0→1, A1→0, B1→1.
    """

    def __init__(
        self,
        requests: Sequence[RolloutRequest],
        max_rollouts: int,
        costs: PlacementCosts | None = None,
        forecast: Forecast | None = None,
    ) -> None:
        """Start to place these requests on engines, with no engine available yet.

        `forecast` gets progress reports, and is queried again about a prompt's lengths when there is news of the
        prompt.
        """
        self.max_rollouts = max_rollouts
        self._numbers = costs or PlacementCosts()
        self._forecast = forecast or FullLength()
        self._costs = ChunkCosts(self._numbers, self._forecast)
        self._requests: dict[int, RolloutRequest] = {}  # unfinished requests; key: chunk number
        self._num_submitted = 0
        self._waiting = WaitingChunks()
        self._engines: dict[int, EngineLoad] = {}  # available engines
        self._assigned_work = 0.0  # sum of the work of all engines
        self._holders = PrefixHolders(self._engines, self._waiting, self._costs)
        self._open_steals: dict[int, Steal] = {}  # proposals without answer; key: chunk number
        self._with_room = EngineOrder(self._engines)  # least work first
        self._with_free_places = EngineOrder(self._engines)  # engines with free slots in their batch, least work first
        self._with_unstarted_chunks = EngineOrder(self._engines, most_first=True)
        self.submit(requests)

    @property
    def is_finished(self) -> bool:
        """Return True if every chunk of rollouts is finished or cancelled."""
        return not self._requests

    @property
    def num_waiting(self) -> int:
        """Return the number of chunks of rollouts that are not assigned to an engine."""
        return self._waiting.num_chunks + len(self._waiting.first_in_line)

    def submit(self, requests: Sequence[RolloutRequest]) -> range:
        """Queue a chunk of rollouts for each request, and return the chunk numbers in order."""
        first = self._num_submitted
        self._num_submitted += len(requests)
        for chunk, request in enumerate(requests, start=first):
            self._requests[chunk] = request
            name = self._holders.add(chunk, request)
            work_of_one = self._costs.of_rollout(request)
            is_fresh = name not in self._holders.by_prefix
            self._waiting.add(name, chunk, request.num_rollouts, work_of_one, is_fresh)
        return range(first, self._num_submitted)

    def add_engine(self, engine: int) -> None:
        """Add an engine that is ready to sample, with an empty prefix cache."""
        self._engines[engine] = EngineLoad(self._numbers.cached_prompt_tokens)
        self._requeue_engine(engine)

    def assign(self) -> tuple[int, int] | None:
        """Assign the next chunk of rollouts to an engine.

        Returns (engine, chunk), or None when no chunk waits or no engine has room.
        """
        engine = self._with_room.first()
        if engine is None or not self.num_waiting:
            return None
        # Chunks that an engine lost or gave back have waited once already.
        if self._waiting.first_in_line:
            chunk = self._waiting.first_in_line.popleft()
        elif self._has_more_than_its_share(engine):
            return None
        else:
            prompt = self._best_prompt(engine)
            chunk = prompt.chunks[0]
            engine = self._holder_or(engine, chunk)
            request = self._requests[chunk]
            self._waiting.remove(prompt.uid, chunk, request.num_rollouts)
        self._charge_engine(engine, chunk)
        return engine, chunk

    def progress(
        self,
        engine: int,
        chunk: int,
        num_started: int,
        num_ended: int,
        age: float = 0.0,
    ) -> None:
        """Update how many rollouts of a chunk an engine has started and ended, and the mean tokens of running rollouts.

        `age` is the mean number of tokens. The numbers of started and ended rollouts never fall. A report about a chunk
        that the engine does not hold is ignored.
        """
        load = self._engines.get(engine)
        if load is None or chunk not in load.chunks:
            return
        request = self._requests[chunk]
        # A chunk that has not started says nothing about lengths.
        if num_started:
            self._forecast.record_progress(request, num_ended, num_started - num_ended, age)
        load.advance(chunk, num_started, num_ended, self._costs.of_rollout(request, age))
        self._requeue_engine(engine)
        self._reprice_waiting(self._holders.name(chunk))

    def finish(
        self,
        engine: int,
        chunk: int,
        lengths: Int32 | None = None,
    ) -> None:
        """Record that an engine has returned a chunk of rollouts.

        lengths: [m] of the responses that ended, for the forecast of response lengths.
        """
        self._engines[engine].remove(chunk)
        self._resolve_steal(chunk)
        self._requeue_engine(engine)
        request = self._requests.pop(chunk)
        if lengths is not None:
            self._forecast.record_finished(request, lengths)
        name = self._holders.remove(chunk)
        self._reprice_waiting(name)

    def cancel(self, chunk: int) -> bool:
        """Cancel a chunk of rollouts that is not assigned to an engine.

        Returns False if an engine holds the chunk and must end it.
        """
        request = self._requests[chunk]
        is_waiting = self._waiting.discard(self._holders.name(chunk), chunk, request.num_rollouts)
        if is_waiting:
            del self._requests[chunk]
            self._holders.remove(chunk)
        return is_waiting

    def lose(self, engine: int) -> None:
        """Remove an engine that died, and put its chunks of rollouts at the front of the queue.

        The engine is unavailable until `add_engine`, and its prefix cache is lost.
        """
        load = self._engines.pop(engine)
        self._assigned_work -= load.counted_work
        # In reverse, because extendleft puts each chunk before the last one: the oldest ends up first.
        self._waiting.first_in_line.extendleft(sorted(load.chunks, reverse=True))
        for chunk in load.chunks:
            self._resolve_steal(chunk)
        for name in load.cache.uids():
            self._holders.forget(engine, name)

    def steals(self) -> list[Steal]:
        """Return proposals to move chunks of rollouts between engines, once no chunk waits for an engine.

        A chunk stays with its engine until the proposal is answered. The engine with the least work among those with
        free slots takes a chunk from the engine with the most work. It does so if, with the chunk and the prefill of
        its prompt, it has less work than the other engine has now. It waits for one answer at a time.
        """
        proposed: list[Steal] = []
        while self._numbers.can_steal and not self.num_waiting:
            thief = self._with_free_places.first()
            victim = self._with_unstarted_chunks.first()
            if thief is None or victim is None or thief == victim:
                break
            chunk = self._engines[victim].last_unstarted_chunk()
            if chunk is None:
                break
            assigned = self._engines[victim].chunks[chunk]
            prefill_work = self._prefill_work(thief, chunk)
            moved_work = assigned.num_left * assigned.work_of_one + prefill_work
            if self._engines[thief].work + moved_work >= self._engines[victim].work:
                break
            steal = Steal(victim, chunk, thief)
            self._open_steals[chunk] = steal
            self._engines[victim].offer(chunk)
            # This ends the loop, because each thief waits for one answer at a time.
            self._engines[thief].is_stealing = True
            self._requeue_engine(thief)
            self._requeue_engine(victim)
            proposed.append(steal)
        return proposed

    def withdrawn(self, chunk: int) -> None:
        """Put a chunk of rollouts at the front of the queue, because its engine gave it back before starting it."""
        steal = self._resolve_steal(chunk)
        if steal is not None:
            self._engines[steal.victim].remove(chunk)
            self._requeue_engine(steal.victim)
            self._waiting.first_in_line.append(chunk)

    def kept(self, chunk: int) -> None:
        """Leave a chunk of rollouts with its engine, which had started it before it was asked to give it back."""
        steal = self._resolve_steal(chunk)
        if steal is not None:
            # Without this it would be proposed again at once.
            self.progress(steal.victim, chunk, num_started=1, num_ended=0)

    def _resolve_steal(self, chunk: int) -> Steal | None:
        """Close the proposal to move a chunk of rollouts to another engine.

        Returns the proposal, or None if there is none.
        """
        steal = self._open_steals.pop(chunk, None)
        # The thief may have died meanwhile.
        if steal is not None and steal.thief in self._engines:
            self._engines[steal.thief].is_stealing = False
            self._requeue_engine(steal.thief)
        return steal

    def _requeue_engine(self, engine: int) -> None:
        """Insert an engine whose load has changed into the heaps that order engines by work.

        The engine's earlier entries in the heaps become void.
        """
        load = self._engines[engine]
        load.stamp += 1
        self._assigned_work += load.work - load.counted_work
        load.counted_work = load.work
        if load.num_rollouts <= self.max_rollouts:
            self._with_room.push(engine)
        if load.num_rollouts < self.max_rollouts and not load.is_stealing:
            self._with_free_places.push(engine)
        if load.last_unstarted_chunk() is not None:
            self._with_unstarted_chunks.push(engine)

    def _has_more_than_its_share(self, engine: int) -> bool:
        """Return True if an engine with a batch at least half full has more than an equal share of all work.

        The engine could not give rollouts away after starting them, so it would finish last if it got more.
        """
        load = self._engines[engine]
        if load.num_rollouts < _HALF_FULL * self.max_rollouts:
            return False
        all_work = self._assigned_work + self._waiting.work
        return load.work > all_work / len(self._engines)

    def _charge_engine(self, engine: int, chunk: int) -> None:
        """Add a chunk of rollouts to an engine's load, and its prompt to the engine's estimated prefix cache."""
        request = self._requests[chunk]
        load = self._engines[engine]
        assigned = AssignedChunk(
            uid=self._holders.name(chunk),
            num_rollouts=request.num_rollouts,
            work_of_one=self._costs.of_rollout(request),
            prefill_work=self._prefill_work(engine, chunk),
        )
        load.add(chunk, assigned)
        self._holders.add_holder(engine, chunk, request)
        self._requeue_engine(engine)

    def _reprice_waiting(self, uid: str) -> None:
        """Update the predicted lengths of a prompt's waiting rollouts after news about its other responses."""
        if uid in self._waiting:
            request = self._requests[self._waiting[uid].chunks[0]]
            self._waiting.expect(uid, self._costs.of_rollout(request), is_fresh=uid not in self._holders.by_prefix)

    def _prefill_work(self, engine: int, chunk: int) -> float:
        """Return the work of prefilling a chunk's prompt and resumed tokens on an engine, in decoded tokens.

        The work is 0 if the engine's prefix cache holds these tokens.
        """
        is_held = self._holders.name(chunk) in self._engines[engine].cache
        return 0.0 if is_held else self._costs.of_first_tokens(self._requests[chunk])

    def _holder_or(self, engine: int, chunk: int) -> int:
        """Return the engine that a chunk of rollouts is assigned to.

        That is the engine that holds the tokens of a trajectory's last turn, if it has room and not more work than
        `engine` would have. Otherwise it is `engine`.
        """
        holder = self._holders.turn_holder(chunk)
        if holder is None or self._engines[holder].num_rollouts > self.max_rollouts:
            return engine
        work = self._engines[engine].work + self._prefill_work(engine, chunk)
        return holder if self._engines[holder].work <= work else engine

    def _best_prompt(self, engine: int) -> WaitingPrompt:
        """Return the waiting prompt of which an engine should sample the next chunk of rollouts.

        A trajectory's next turn whose tokens the engine holds comes first, then the prompt with the greatest benefit.
        Among equals a prompt in the engine's prefix cache is preferred, then a prompt that no engine holds.
        """
        # The next turn of trajectories starts with many tokens that no other engine has.
        turn = self._waiting.longest_of(self._engines[engine].cached_turns)
        if turn is not None:
            return turn
        best = self._waiting.longest()
        assert best is not None, "nothing waits"
        most = self._benefit(engine, best)
        fresh = self._waiting.longest_fresh(self._holders.by_prefix)
        assigned = self._waiting.longest_of(self._engines[engine].cached_prompts)
        for prompt in filter(None, (fresh, assigned)):
            benefit = self._benefit(engine, prompt)
            if benefit >= most:
                best = prompt
                most = benefit
        return best

    def _benefit(self, engine: int, prompt: WaitingPrompt) -> float:
        """Return the work of a prompt's next chunk of rollouts, less the disadvantages of sampling it on this engine.

        The disadvantages are the work of prefilling the prompt if only other engines hold it, and a penalty for each
        chunk of the prompt that the engine already has.
        """
        chunk = prompt.chunks[0]
        work = self._requests[chunk].num_rollouts * prompt.work_of_one
        num_held = self._engines[engine].num_chunks_of.get(prompt.uid, 0)
        benefit = work - self._numbers.concentration * work * num_held
        if prompt.uid in self._holders.by_prefix:
            benefit -= self._prefill_work(engine, chunk)
        return benefit
