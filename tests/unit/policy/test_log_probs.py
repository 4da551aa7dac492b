"""Token log-probs equal torch's log_softmax in value and gradient, whatever the padding, the chunks and the ranks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nemo_brorl.policy.log_probs import token_log_probs, vocab_slice
from tests.model_factory import make_config
from tests.policy_ranks import run_ranks, score_a_vocab_slice

VOCAB, ROWS, TOKENS, WIDTH, TEMPERATURE = 13, 16, 10, 6, 0.7  # three rows of padding


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """hidden, weight with padding rows that would win, targets, gradient of each log-prob."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(TOKENS, WIDTH, generator=generator), torch.randn(ROWS, WIDTH, generator=generator)
    weight[VOCAB:] = 50.0
    return hidden, weight, torch.arange(TOKENS) % VOCAB, torch.randn(TOKENS, generator=generator)


def expected() -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, gradient of hidden, gradient of weight, by torch."""
    hidden, weight, targets, grad = inputs()
    hidden.requires_grad_()
    weight.requires_grad_()
    log_probs = (hidden @ weight[:VOCAB].T / TEMPERATURE).log_softmax(-1).gather(1, targets[:, None])[:, 0]
    log_probs.backward(grad)
    return log_probs.detach(), hidden.grad, weight.grad


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_one_rank_equals_torch(chunk: int) -> None:
    hidden, weight, targets, grad = inputs()
    hidden.requires_grad_()
    weight.requires_grad_()
    log_probs = token_log_probs(hidden, weight, targets, vocab_slice(VOCAB, ROWS, None), TEMPERATURE, chunk)
    log_probs.backward(grad)
    for own, theirs in zip((log_probs, hidden.grad, weight.grad), expected(), strict=True):
        torch.testing.assert_close(own, theirs, atol=1e-6, rtol=1e-5)
    assert weight.grad[VOCAB:].abs().max() == 0


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_vocabulary_cut_over_ranks_equals_torch(ranks: int) -> None:
    config = make_config(tensor_model_parallel_size=ranks)
    results = run_ranks(config, score_a_vocab_slice, *inputs(), VOCAB, TEMPERATURE)
    log_probs, hidden_grad, weight_grad = expected()
    for own, _, _ in results:
        torch.testing.assert_close(own, log_probs, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(sum(grad for _, grad, _ in results), hidden_grad, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(torch.cat([grad for _, _, grad in results]), weight_grad, atol=1e-6, rtol=1e-5)


def test_no_tokens_give_no_log_probs() -> None:
    hidden, weight, _, _ = inputs()
    none = torch.empty(0, dtype=torch.int64)
    assert token_log_probs(hidden[:0], weight, none, vocab_slice(VOCAB, ROWS, None), 1.0, 4).shape == (0,)
