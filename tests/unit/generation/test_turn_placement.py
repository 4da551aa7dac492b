"""The next turn of trajectories goes to the engine with their tokens, while that costs less."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nemo_brorl.generation.placement.costs import PlacementCosts
from nemo_brorl.generation.placement.placement import ChunkPlacement
from nemo_brorl.types import PartialRollouts, RolloutRequest
from tests.unit.generation.test_placement import assign_all, chunks_of


def turn_of(uid: str, first: int, engine: int, size: int = 64, length: int = 100) -> RolloutRequest:
    """The next turn of trajectories that `engine` sampled."""
    (request,) = chunks_of(uid, 1, size, max_tokens=length + 32)
    indices = np.arange(first, first + size, dtype=np.int32)
    lengths = np.full(size, length, np.int32)
    return replace(request, first_index=first, partial=PartialRollouts(indices, lengths, 0, None, engine=engine))


def test_the_next_turn_is_sampled_first_by_the_engine_that_has_its_tokens() -> None:
    placement = ChunkPlacement(chunks_of("A", 4), max_rollouts=64)
    placement.add_engine(0)
    placement.add_engine(1)
    assert assign_all(placement) == [(0, 0), (1, 1), (0, 2), (1, 3)]
    for chunk in (0, 1, 2, 3):
        placement.finish(chunk % 2, chunk)
    placement.submit([*chunks_of("B", 2), turn_of("A", 0, 0), turn_of("A", 64, 1), turn_of("A", 128, 0)])
    assert assign_all(placement) == [(0, 6), (1, 7), (0, 8), (1, 4)], "B waits, though it is longer or as long"


def test_a_turn_moves_when_its_engine_has_so_much_more_work_that_computing_its_tokens_anew_costs_less() -> None:
    """64 trajectories of 100 tokens and the prompt's 10: 0.2 × 6410 = 1282 tokens of work."""
    placement = ChunkPlacement(chunks_of("A", 1, max_tokens=32), max_rollouts=512)
    placement.add_engine(0)
    assert assign_all(placement) == [(0, 0)]  # 64 × 32 = 2048 and a little for their context
    placement.add_engine(1)
    placement.submit([turn_of("B", 0, 0)])
    assert assign_all(placement) == [(1, 1)]
    placement.submit([turn_of("B", 64, 1, length=2000), turn_of("C", 0, 0, size=1)])
    assert assign_all(placement) == [(0, 3), (1, 2)], "2000 tokens each are not computed anew for this"


def test_a_turn_whose_engine_is_lost_is_anybodys() -> None:
    placement = ChunkPlacement([], max_rollouts=64)
    placement.add_engine(0)
    placement.add_engine(1)
    placement.submit([turn_of("A", 0, 0), turn_of("A", 64, 0)])
    placement.lose(0)
    assert assign_all(placement) == [(1, 0), (1, 1)]
    placement.add_engine(0)
    placement.finish(1, 0)
    placement.finish(1, 1)
    assert placement.is_finished
    placement.submit([turn_of("A", 0, 5)])
    assert assign_all(placement)[0][1] == 2, "an engine that there is not"


def test_every_turn_is_sampled_once_whatever_happens() -> None:
    requests = [request for uid in "ABCD" for request in chunks_of(uid, 4)]
    placement = ChunkPlacement(requests, max_rollouts=128, costs=PlacementCosts(cached_prompt_tokens=20_000))
    for engine in range(3):
        placement.add_engine(engine)
    held: list[tuple[int, int]] = []
    finished: list[int] = []
    num_submitted = len(requests)
    for turn in range(1000):
        held += assign_all(placement)
        if turn % 7 == 3:
            lost = turn % 3
            placement.lose(lost)
            held = [(engine, chunk) for engine, chunk in held if engine != lost]
            placement.add_engine(lost)
        elif held:
            engine, chunk = held.pop(turn % len(held))
            placement.finish(engine, chunk)
            finished.append(chunk)
            if num_submitted < 64:
                (number,) = placement.submit([turn_of("ABCD"[chunk % 4], chunk, engine)])
                assert number == num_submitted
                num_submitted += 1
        if placement.is_finished:
            break
    assert sorted(finished) == list(range(64))
    assert placement._holders._names == {}, "nothing is remembered of what is gone"
