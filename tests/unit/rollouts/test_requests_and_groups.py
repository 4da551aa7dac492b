"""Groups are cut into requests and put together again whatever the order."""

import pytest

from nemo_brorl.rollouts.assemble import assemble
from nemo_brorl.rollouts.requests import group_seed, requests_for
from tests.fakes import SAMPLING, FakeGenerator, FakeVerifier, make_prompt


def test_a_group_is_cut_into_chunks_that_cover_it_once() -> None:
    requests = requests_for([make_prompt()], 10, 4, SAMPLING, run_seed=1)
    assert [(request.first_index, request.num_rollouts) for request in requests] == [(0, 4), (4, 4), (8, 2)]
    assert len({request.seed for request in requests}) == 1


def test_seeds_depend_on_run_and_prompt_alone() -> None:
    assert group_seed(1, "train/0") == group_seed(1, "train/0")
    assert len({group_seed(1, "train/0"), group_seed(2, "train/0"), group_seed(1, "train/1")}) == 3
    assert 0 <= group_seed(1, "train/0") < 2**48


def test_groups_close_complete_and_in_the_order_of_their_rollouts() -> None:
    prompts = [make_prompt("train/0"), make_prompt("train/1")]
    chunks = FakeGenerator().generate(requests_for(prompts, 6, 4, SAMPLING, 1))  # arrives last first
    groups = list(assemble(prompts, 6, FakeVerifier().score(chunks)))
    assert [group.prompt.uid for group in groups] == ["train/1", "train/0"]
    assert groups[0].rewards.tolist() == [1, 0, 1, 0, 1, 0]
    assert groups[0].group.chunks[0].request.first_index == 0


def test_a_lost_chunk_is_noticed() -> None:
    prompts = [make_prompt()]
    chunks = list(FakeGenerator().generate(requests_for(prompts, 6, 4, SAMPLING, 1)))[:1]
    with pytest.raises(AssertionError, match="1 groups did not get all"):
        list(assemble(prompts, 6, FakeVerifier().score(chunks)))
