"""Sample a whole batch at once in vLLM's CPU build, which loops over its requests in Python.

For each sampled token, vLLM's CPU sampler draws a number from the request's generator, and its model runner records the
token. Both take 7 µs a token, and with the lean scheduler they are the largest costs that depend on the number of
requests. Here generators draw many numbers ahead, and tokens are recorded by arrays. Tokens and log-probs are bit for
bit those of vLLM. GPUs have another sampler and another model runner.

Written against vLLM 0.32.0, whose private names it uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Generator, Tensor
from vllm import envs
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import SamplerOutput
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

SEED_END = 2**31  # vLLM's noise seeds are in [0, SEED_END)
NUM_AHEAD = 64


def sample_by_arrays(runner: CPUModelRunner) -> None:
    """Replace a vLLM model runner's loops over requests by array operations.

    Call it before the runner's first request. A runner with speculative decoding or asynchronous scheduling keeps
    vLLM's own code.
    """
    sampler = runner.sampler.topk_topp_sampler
    if runner.speculative_config is not None or runner.use_async_scheduling or sampler.use_fp64_gumbel:
        return
    sampler.forward = SeededSampler(sampler).sample
    if not envs.VLLM_COMPUTE_NANS_IN_LOGITS:
        runner._bookkeeping_sync = TokenRecorder(runner).record
    # It copies draft tokens, and there are none.
    runner.input_batch.update_req_spec_token_ids = lambda request, draft_tokens: None


class SeededSampler:
    """vLLM's sampler for CPUs, with noise seeds that the generators of requests draw ahead."""

    def __init__(self, sampler: TopKTopPSampler) -> None:
        self._returns_log_probs = sampler.logprobs_mode == "processed_logprobs"
        self._returns_logits = sampler.logprobs_mode == "processed_logits"
        self._ahead: WeakKeyDictionary[Generator, list[int]] = WeakKeyDictionary()  # next seed last

    def sample(
        self,
        logits: Tensor,
        generators: dict[int, Generator],
        top_k: Tensor | None,
        top_p: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Sample one token for each row of `logits` [requests, vocabulary].

        `generators` holds the random generators of those requests that have a seed of their own. Returns token ids
        [requests], and the processed logits or log-probs where the engine's `logprobs_mode` requests them.
        """
        logits = apply_top_k_top_p(logits, top_k, top_p)
        returned = None
        if self._returns_log_probs:
            returned = logits.log_softmax(dim=-1, dtype=torch.float32)
        elif self._returns_logits:
            returned = logits
        seeds = torch.randint(0, SEED_END, (len(logits),))
        if generators:
            seeds[list(generators)] = torch.tensor([self.next_seed(generator) for generator in generators.values()])
        return torch.ops._C.fused_gumbel_argmax(logits.to(torch.float32), seeds), returned

    def next_seed(self, generator: Generator) -> int:
        """Return the number that `torch.randint` would draw next from a random generator."""
        ahead = self._ahead.get(generator)
        if not ahead:
            ahead = torch.randint(0, SEED_END, (NUM_AHEAD,), generator=generator).tolist()
            ahead.reverse()
            self._ahead[generator] = ahead
        return ahead.pop()


class TokenRecorder:
    """The recorder of a step's sampled tokens in a model runner's batch."""

    def __init__(self, runner: CPUModelRunner) -> None:
        self._runner = runner
        self._record_one_by_one = runner._bookkeeping_sync

    def record(
        self,
        scheduler_output: SchedulerOutput,
        sampler_output: SamplerOutput,
        logits: Tensor | None,
        hidden_states: Tensor,
        num_scheduled_tokens: int,
    ) -> tuple[Any, ...]:
        """Record one sampled token for each request, and return what vLLM's `_bookkeeping_sync` returns.

        vLLM's own code does this instead when a request is in the middle of its prompt, or wants the prompt's
        log-probs.
        """
        runner, batch = self._runner, self._runner.input_batch
        num = batch.num_reqs
        sampled = sampler_output.sampled_token_ids
        is_plain = sampled.shape == (num, 1) and not runner.discard_request_mask.np[:num].any()
        if not is_plain or runner.num_prompt_logprobs:
            return self._record_one_by_one(
                scheduler_output, sampler_output, logits, hidden_states, num_scheduled_tokens
            )
        rows, ends = np.arange(num), batch.num_tokens_no_spec[:num]
        batch.token_ids_cpu[rows, ends] = sampled[:, 0].numpy()
        batch.is_token_ids[rows, ends] = True
        ends += 1
        tokens = sampled.tolist()
        for name, own_tokens in zip(batch.req_ids, tokens, strict=True):
            runner.requests[name].output_token_ids += own_tokens
        log_probs = sampler_output.logprobs_tensors
        lists = None if log_probs is None else log_probs.tolists()
        # No NaNs are counted, no prompt has log-probs, and all rows are valid.
        return {}, None, lists, tokens, {}, batch.req_ids.copy(), batch.req_id_to_index.copy(), []
