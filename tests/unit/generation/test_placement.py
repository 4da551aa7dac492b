"""Placement decides who samples a chunk; the traces are worked by hand."""

from nemo_brorl.generation.placement.costs import PlacementCosts
from nemo_brorl.generation.placement.lengths import FullLength
from nemo_brorl.generation.placement.placement import ChunkPlacement, Steal
from nemo_brorl.types import Prompt, RolloutRequest, Sampling


def chunks_of(
    uid: str, num_chunks: int, size: int = 64, prompt_tokens: int = 10, max_tokens: int = 32
) -> list[RolloutRequest]:
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


def test_chunks_may_be_added_while_others_are_sampled() -> None:
    placement = ChunkPlacement(chunks_of("A", 1), max_rollouts=512)
    placement.add_engine(0)
    assert assign_all(placement) == [(0, 0)]
    assert list(placement.submit(chunks_of("B", 2))) == [1, 2]
    assert assign_all(placement) == [(0, 1), (0, 2)]


def test_a_waiting_chunk_can_be_cancelled_and_a_held_one_cannot() -> None:
    placement = ChunkPlacement(chunks_of("A", 3), max_rollouts=0)
    placement.add_engine(0)
    assert placement.assign() == (0, 0)
    assert placement.cancel(1)
    assert not placement.cancel(0)
    placement.finish(0, 0)
    assert placement.assign() == (0, 2)
    placement.lose(0)
    assert placement.cancel(2), "it waits again"
    assert placement.is_finished


def test_slots_of_ended_rollouts_are_free_before_the_chunk_is_done() -> None:
    placement = ChunkPlacement(chunks_of("A", 3), max_rollouts=64)
    placement.add_engine(0)
    assert assign_all(placement) == [(0, 0), (0, 1)]
    placement.progress(0, 0, num_started=64, num_ended=63)
    assert placement.assign() is None, "65 rollouts are left, more than a batch"
    placement.progress(0, 0, num_started=64, num_ended=64)
    placement.progress(0, 0, num_started=64, num_ended=10)
    assert placement.assign() == (0, 2), "news that comes late takes nothing back"


def test_news_of_a_chunk_that_is_gone_is_ignored() -> None:
    placement = ChunkPlacement(chunks_of("A", 1), max_rollouts=64)
    placement.add_engine(0)
    placement.assign()
    placement.finish(0, 0)
    placement.progress(0, 0, 64, 3)
    placement.progress(7, 0, 64, 3)
    assert placement.is_finished


def test_an_engine_takes_another_prompt_before_a_second_chunk_of_its_own() -> None:
    requests = chunks_of("A", 2, max_tokens=100) + chunks_of("B", 1, max_tokens=95)
    placement = ChunkPlacement(requests, max_rollouts=512, costs=PlacementCosts(concentration=0.1))
    placement.add_engine(0)
    assert assign_all(placement) == [(0, 0), (0, 2), (0, 1)], "A's second chunk counts 64 × 90, B's 64 × 95"


def test_a_long_prompt_is_not_computed_on_one_more_engine_for_a_little_balance() -> None:
    requests = chunks_of("A", 2, size=4, prompt_tokens=1000, max_tokens=100) + chunks_of(
        "B", 1, size=4, prompt_tokens=1000, max_tokens=80
    )
    placement = ChunkPlacement(requests, max_rollouts=0, costs=PlacementCosts(prefill=0.2))
    placement.add_engine(0)
    assert placement.assign() == (0, 0)
    placement.add_engine(1)
    assert placement.assign() == (1, 2), "A's second chunk is 4 × 20 tokens longer and costs 200 more"


def test_a_prompt_that_fell_out_of_the_cache_is_nobodys() -> None:
    requests = chunks_of("A", 2) + chunks_of("B", 2)
    placement = ChunkPlacement(
        requests, max_rollouts=0, costs=PlacementCosts(cached_prompt_tokens=10, concentration=0.0)
    )
    placement.add_engine(0)
    trace = []
    for _ in range(3):
        engine, chunk = placement.assign() or (-1, -1)
        placement.finish(engine, chunk)
        trace.append(chunk)
    assert trace == [0, 1, 2]
    placement.add_engine(1)
    placement.submit(chunks_of("A", 1))
    assert [placement.assign(), placement.assign()] == [(0, 3), (1, 4)], "B is in the cache of engine 0, A nowhere"


class Doubled(FullLength):
    """Expects twice as much of prompt B as of others."""

    def tokens(self, request: RolloutRequest, age: float = 0.0) -> float:
        return (2.0 if request.prompt.uid == "B" else 1.0) * super().tokens(request, age)


def test_a_token_late_in_a_long_response_is_more_work_than_one_early_in_a_short_one() -> None:
    """A response of 40 tokens counts 40 · (1 + 0.1 · (10 + 20)) = 160, two of 20 count 20 · (1 + 0.1 · (10 + 10)) = 60
    each."""
    long, short = chunks_of("A", 1, size=1, max_tokens=40), chunks_of("B", 6, size=1, max_tokens=20)
    for context_cost, expected in [(0.0, [0, 1, 1, 0, 1, 0, 1]), (0.1, [0, 1, 1, 1, 0, 1, 0])]:
        placement = ChunkPlacement(
            long + short, max_rollouts=512, costs=PlacementCosts(context=context_cost, prefill=0.0)
        )
        placement.add_engine(0)
        placement.add_engine(1)
        assert [engine for engine, _ in assign_all(placement)] == expected


def test_what_is_expected_to_be_longest_goes_first() -> None:
    placement = ChunkPlacement(chunks_of("A", 1) + chunks_of("B", 1), max_rollouts=512, forecast=Doubled())
    placement.add_engine(0)
    assert assign_all(placement) == [(0, 1), (0, 0)]


def loaded_engine_0() -> ChunkPlacement:
    """Engine 0 has the three chunks of A and has begun one, engine 1 has free slots and nothing."""
    placement = ChunkPlacement(chunks_of("A", 3), max_rollouts=128)
    placement.add_engine(0)
    assert assign_all(placement) == [(0, 0), (0, 1), (0, 2)]
    placement.progress(0, 0, num_started=64, num_ended=0)
    placement.add_engine(1)
    return placement


def test_an_idle_engine_takes_over_a_chunk_that_has_not_begun() -> None:
    placement = loaded_engine_0()
    assert placement.steals() == [Steal(victim=0, chunk=2, thief=1)]
    assert placement.steals() == [], "until it is answered"
    placement.withdrawn(2)
    assert placement.assign() == (1, 2)
    assert placement.steals() == [], "they have two chunks and one: moving another changes nothing"


def test_a_chunk_that_has_begun_stays() -> None:
    placement = loaded_engine_0()
    placement.steals()
    placement.kept(2)
    assert placement.steals() == [Steal(victim=0, chunk=1, thief=1)]
    placement.finish(0, 1)
    placement.withdrawn(1)
    placement.kept(1)
    assert placement.assign() is None, "answers that come too late change nothing"


def test_a_dead_victim_or_thief_ends_a_proposal() -> None:
    placement = loaded_engine_0()
    placement.steals()
    placement.lose(0)
    assert placement.assign() == (1, 0)
    placement.withdrawn(2)
    assert placement.num_waiting == 2, "chunks 1 and 2, each once"
    placement = loaded_engine_0()
    placement.steals()
    placement.lose(1)
    placement.withdrawn(2)
    assert placement.assign() == (0, 2)


def test_nothing_changes_engines_when_that_is_off_or_computing_the_prompt_costs_more() -> None:
    for costs in (PlacementCosts(can_steal=False), PlacementCosts(prefill=1000.0)):
        placement = ChunkPlacement(chunks_of("A", 3), max_rollouts=128, costs=costs)
        placement.add_engine(0)
        assign_all(placement)
        placement.progress(0, 0, num_started=64, num_ended=0)
        placement.add_engine(1)
        assert placement.steals() == []


def test_an_engine_with_more_than_its_share_waits_for_the_others() -> None:
    long, short = chunks_of("A", 2, max_tokens=100), chunks_of("B", 3, max_tokens=10)
    placement = ChunkPlacement(long, max_rollouts=64, costs=PlacementCosts(concentration=0.0))
    placement.add_engine(0)
    assert assign_all(placement) == [(0, 0), (0, 1)]
    placement.add_engine(1)
    placement.submit(short)
    assert assign_all(placement) == [(1, 2), (1, 3)]
    placement.progress(0, 0, num_started=64, num_ended=64)
    assert placement.assign() is None, "engine 0 has 64 × 100 left, engine 1 twice 64 × 10"
    placement.finish(1, 2)
    assert placement.assign() == (1, 4)


def test_every_chunk_is_sampled_once_whatever_happens() -> None:
    placement = ChunkPlacement([request for uid in "ABCDEFGH" for request in chunks_of(uid, 8)], max_rollouts=128)
    for engine in range(4):
        placement.add_engine(engine)
    held: list[tuple[int, int]] = []
    finished: list[int] = []
    for turn in range(1000):
        held += assign_all(placement)
        for steal in placement.steals():
            held.remove((steal.victim, steal.chunk))
            placement.withdrawn(steal.chunk)
        if turn % 7 == 3:
            lost = turn % 4
            placement.lose(lost)
            held = [(engine, chunk) for engine, chunk in held if engine != lost]
            placement.add_engine(lost)
        elif held:
            engine, chunk = held.pop(turn % len(held))
            placement.finish(engine, chunk)
            finished.append(chunk)
        if placement.is_finished:
            break
    assert sorted(finished) == list(range(64))
