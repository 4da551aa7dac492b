"""Placement decides who samples a chunk; the traces are worked by hand."""

from nemo_brorl.rollouts.placement import ChunkPlacement
from nemo_brorl.types import Prompt, RolloutRequest, Sampling


def chunks_of(uid: str, num_chunks: int, size: int = 64, prompt_tokens: int = 10, max_tokens: int = 32) -> list[RolloutRequest]:
    prompt = Prompt(uid, "task", "verifier", tuple(range(prompt_tokens)), {})
    return [RolloutRequest(prompt, i * size, size, 7, Sampling(1.0, 1.0, max_tokens)) for i in range(num_chunks)]


def assign_all(placement: ChunkPlacement) -> list[tuple[int, int]]:
    assigned = []
    while (assignment := placement.assign()) is not None:
        assigned.append(assignment)
    return assigned


def test_each_prompt_stays_with_the_engine_that_has_it_cached() -> None:
    placement = ChunkPlacement(chunks_of("A", 2) + chunks_of("B", 2), max_rollouts=512)
    placement.add_engine(0)
    placement.add_engine(1)
    assert assign_all(placement) == [(0, 0), (1, 2), (0, 1), (1, 3)]


def test_one_prompt_is_shared_out_evenly_when_there_is_no_other() -> None:
    placement = ChunkPlacement(chunks_of("A", 4), max_rollouts=512)
    placement.add_engine(0)
    placement.add_engine(1)
    assert assign_all(placement) == [(0, 0), (1, 1), (0, 2), (1, 3)]


def test_an_engine_holds_one_chunk_more_than_its_batch() -> None:
    placement = ChunkPlacement(chunks_of("A", 10), max_rollouts=128)
    placement.add_engine(0)
    assert assign_all(placement) == [(0, 0), (0, 1), (0, 2)]
    placement.finish(0, 1)
    assert assign_all(placement) == [(0, 3)]


def test_the_engine_with_fewer_outstanding_tokens_is_served_first() -> None:
    long, short = chunks_of("long", 1, max_tokens=100), chunks_of("short", 3, max_tokens=10)
    placement = ChunkPlacement(long + short, max_rollouts=512)
    placement.add_engine(0)
    placement.add_engine(1)
    assert assign_all(placement) == [(0, 0), (1, 1), (1, 2), (1, 3)]


def test_an_engine_without_own_prompts_takes_what_is_longest() -> None:
    short, long = chunks_of("A", 3, max_tokens=10), chunks_of("B", 4, max_tokens=30)
    placement = ChunkPlacement(short + long, max_rollouts=0)
    placement.add_engine(0)
    assert placement.assign() == (0, 3)
    placement.add_engine(1)
    assert placement.assign() == (1, 4), "computing B's 10 tokens once more costs 2, A is 64 × 20 less work"


def test_chunks_of_a_lost_engine_go_to_another_before_anything_else() -> None:
    placement = ChunkPlacement(chunks_of("A", 4), max_rollouts=64)
    placement.add_engine(0)
    placement.add_engine(1)
    assert assign_all(placement) == [(0, 0), (1, 1), (0, 2), (1, 3)]
    placement.finish(0, 0)
    placement.lose(0)
    assert placement.assign() is None, "engine 1 holds as much as it may"
    placement.finish(1, 1)
    assert placement.assign() == (1, 2)
    placement.finish(1, 2)
    placement.finish(1, 3)
    assert placement.is_finished


def test_a_returning_engine_starts_with_an_empty_cache() -> None:
    placement = ChunkPlacement(chunks_of("A", 2) + chunks_of("B", 2), max_rollouts=0)
    placement.add_engine(0)
    assert placement.assign() == (0, 0)
    placement.finish(0, 0)
    placement.lose(0)
    placement.add_engine(1)
    assert placement.assign() == (1, 1)
    placement.add_engine(0)
    assert placement.assign() == (0, 2), "A belongs to engine 1 now, B to nobody"


def test_nothing_is_assigned_before_an_engine_is_ready() -> None:
    assert ChunkPlacement(chunks_of("A", 1), max_rollouts=64).assign() is None


def test_no_requests_are_finished_at_once() -> None:
    assert ChunkPlacement([], max_rollouts=64).is_finished
