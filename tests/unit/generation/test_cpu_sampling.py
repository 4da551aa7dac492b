"""Sampling by arrays on vLLM's CPU build, against vLLM's own sampler. End-to-end tests compare whole engines."""

from __future__ import annotations

import pytest
import torch
from vllm.platforms import current_platform
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

from nemo_brorl.generation.cpu_sampling import NUM_AHEAD, SEED_END, SeededSampler

current_platform.import_kernels()


def generators_of(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def test_seeds_drawn_ahead_are_those_that_a_generator_draws_one_by_one() -> None:
    sampler = SeededSampler(TopKTopPSampler("processed_logprobs"))
    ours, vllms = generators_of(1, 2), generators_of(1, 2)
    for step in range(3 * NUM_AHEAD):
        # The second request joins later, and misses every third step.
        for row in range(2 if step > 10 and step % 3 else 1):
            (expected,) = torch.randint(0, SEED_END, (1,), generator=vllms[row]).tolist()
            assert sampler.next_seed(ours[row]) == expected


@pytest.mark.parametrize("mode", ["processed_logprobs", "processed_logits", "raw_logprobs"])
@pytest.mark.parametrize("top_p", [None, 0.8])
def test_a_batch_is_sampled_as_vllms_sampler_does(mode: str, top_p: float | None) -> None:
    vllms = TopKTopPSampler(mode)
    ours = SeededSampler(vllms)
    limits = None if top_p is None else torch.full((4,), top_p)
    # Rows 0 and 2 have a seed of their own.
    ours_by_row = dict(zip((2, 0), generators_of(5, 6), strict=True))
    vllms_by_row = dict(zip((2, 0), generators_of(5, 6), strict=True))
    for step in range(5):
        logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(step))
        torch.manual_seed(step)
        expected_ids, expected = vllms.forward_cpu(logits.clone(), vllms_by_row, None, limits)
        torch.manual_seed(step)
        ids, returned = ours.sample(logits.clone(), ours_by_row, None, limits)
        assert ids.tolist() == expected_ids.tolist()
        assert (returned is None) == (expected is None)
        if returned is not None:
            assert torch.equal(returned, expected)


def test_a_generator_that_has_ended_leaves_no_seeds_behind() -> None:
    sampler = SeededSampler(TopKTopPSampler("processed_logprobs"))
    (generator,) = generators_of(1)
    sampler.next_seed(generator)
    assert len(sampler._ahead) == 1
    del generator
    assert len(sampler._ahead) == 0
