"""Groups are cut into requests and put together again whatever the order."""

from nemo_brorl.rollouts.ledger import close_group, group_seed, requests_for
from tests.support.fakes import SAMPLING, FakeGenerator, FakeVerifier, make_prompt


def test_a_group_is_cut_into_chunks_that_cover_it_once() -> None:
    requests = requests_for([make_prompt()], 10, 4, SAMPLING, run_seed=1)
    assert [(request.first_index, request.num_rollouts) for request in requests] == [(0, 4), (4, 4), (8, 2)]
    assert len({request.seed for request in requests}) == 1


def test_seeds_depend_on_run_and_prompt_alone() -> None:
    assert group_seed(1, "train/0") == group_seed(1, "train/0")
    assert len({group_seed(1, "train/0"), group_seed(2, "train/0"), group_seed(1, "train/1")}) == 3
    assert 0 <= group_seed(1, "train/0") < 2**48


def test_a_group_is_requested_in_chunks_the_last_one_smaller() -> None:
    requests = requests_for([make_prompt()], 6, 4, SAMPLING, run_seed=1, deadline_s=2.5)
    assert [(request.first_index, request.num_rollouts, request.deadline_s) for request in requests] == [
        (0, 4, 2.5),
        (4, 2, 2.5),
    ]


def test_groups_are_put_together_in_the_order_of_their_rollouts() -> None:
    prompt = make_prompt("train/1")
    chunks = FakeGenerator().generate(requests_for([prompt], 6, 4, SAMPLING, 1))  # arrives last first
    group = close_group(prompt, FakeVerifier().score(chunks))
    assert group.rewards.tolist() == [1, 0, 1, 0, 1, 0]
    assert [chunk.indices.tolist() for chunk in group.group.chunks] == [[0, 1, 2, 3], [4, 5]]
