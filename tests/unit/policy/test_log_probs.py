"""Log-prob, entropy and collision mass equal torch's in float64, in value and gradient, whatever the padding, tiles and
ranks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nemo_brorl.policy.model import log_probs
from nemo_brorl.policy.model.log_probs import TokenScores, take_rows, token_scores, vocab_slice
from tests.support.model_factory import make_config
from tests.support.policy_ranks import run_ranks, score_a_vocab_slice

pytestmark = pytest.mark.numbers

VOCAB, ROWS, TOKENS, WIDTH, TEMPERATURE = 133, 136, 10, 6, 0.7  # three rows of padding
# Log-probs go to 18, where a unit of float32 is 2e-6, and gradients are sums of terms of that size that cancel.
CLOSE = {"atol": 1e-5, "rtol": 1e-5}

Results = tuple[Tensor, Tensor, Tensor]  # scores [3, n], gradient of hidden, gradient of weight


def inputs(scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """hidden, weight with padding rows that would win, targets, gradient of each score [3, n]."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (
        scale * torch.randn(TOKENS, WIDTH, generator=generator),
        torch.randn(ROWS, WIDTH, generator=generator),
    )
    weight[VOCAB:] = 50.0
    return hidden, weight, 13 * torch.arange(TOKENS) + 12, torch.randn(3, TOKENS, generator=generator)


def expected(
    hidden: Tensor, weight: Tensor, targets: Tensor, grad: Tensor, temperature: float = TEMPERATURE
) -> Results:
    """By torch's log_softmax over the whole vocabulary, in float64."""
    hidden, weight = hidden.double().requires_grad_(), weight.double().requires_grad_()
    log_p = (hidden @ weight[:VOCAB].T / temperature).log_softmax(-1)
    scores = torch.stack(
        [log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(1), log_p.exp().square().sum(1)]
    )
    scores.backward(grad.double())
    assert hidden.grad is not None and weight.grad is not None
    return scores.detach().float(), hidden.grad.float(), weight.grad.float()


def computed(
    hidden: Tensor, weight: Tensor, targets: Tensor, grad: Tensor, temperature: float = TEMPERATURE, chunk: int = 4
) -> Results:
    """By `token_scores` on one rank."""
    hidden, weight = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    scores = token_scores(hidden, weight, targets, vocab_slice(VOCAB, ROWS, None), temperature, chunk)
    scores.backward(grad)
    assert hidden.grad is not None and weight.grad is not None
    return scores.detach(), hidden.grad, weight.grad


def assert_same(own: Results, theirs: Results, **tolerance: float) -> None:
    for one, other in zip(own, theirs, strict=True):
        torch.testing.assert_close(one, other, **(CLOSE | tolerance))


@pytest.mark.parametrize("chunk", [1, 4, 10, 100])
@pytest.mark.parametrize("tile", [1, 1 << 20], ids=["tiles of 64 columns", "one tile"])
def test_one_rank_equals_torch(chunk: int, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(log_probs._TILE_LOGITS, "cpu", tile)
    own = computed(*inputs(), chunk=chunk)
    assert_same(own, expected(*inputs()))
    assert own[2][VOCAB:].abs().max() == 0, "padding has no gradient"


@pytest.mark.parametrize("row", range(3), ids=TokenScores._fields)
def test_each_score_has_its_own_gradient(row: int) -> None:
    hidden, weight, targets, grad = inputs()
    alone = torch.zeros_like(grad)
    alone[row] = grad[row]
    assert_same(computed(hidden, weight, targets, alone), expected(hidden, weight, targets, alone))


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_vocabulary_cut_over_ranks_equals_torch(ranks: int) -> None:
    config = make_config(tensor_model_parallel_size=ranks)
    results = run_ranks(config, score_a_vocab_slice, *inputs(), VOCAB, TEMPERATURE)
    for scores, _, _ in results:
        assert torch.equal(scores, results[0][0]), "the same on every rank"
    hidden_grad = torch.stack([grad for _, grad, _ in results]).sum(0)
    assert_same((results[0][0], hidden_grad, torch.cat([grad for _, _, grad in results])), expected(*inputs()))


def test_a_rank_of_padding_only_changes_nothing() -> None:
    hidden, weight, targets, grad = inputs()
    padded = torch.cat([weight, torch.full_like(weight, 50.0)])  # the second rank's slice
    results = run_ranks(
        make_config(tensor_model_parallel_size=2),
        score_a_vocab_slice,
        hidden,
        padded,
        targets,
        grad,
        VOCAB,
        TEMPERATURE,
    )
    assert_same((results[1][0], results[0][1], results[0][2]), expected(*inputs()))
    assert results[1][1].abs().max() == 0 and results[1][2].abs().max() == 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_no_tokens_have_no_scores(ranks: int) -> None:
    hidden, weight, _, grad = inputs()
    none = torch.empty(0, dtype=torch.int64)
    config = make_config(tensor_model_parallel_size=ranks)
    for scores, hidden_grad, weight_grad in run_ranks(
        config, score_a_vocab_slice, hidden[:0], weight, none, grad[:, :0], VOCAB, 1.0
    ):
        assert scores.shape == (3, 0) and hidden_grad.shape == (0, WIDTH) and weight_grad.abs().max() == 0


def test_logits_of_thousands_stay_finite() -> None:
    arguments = inputs(scale=2000.0)
    scores, hidden_grad, weight_grad = computed(*arguments)
    assert_same((scores, hidden_grad, weight_grad), expected(*arguments), rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(TokenScores(*scores).entropies, torch.zeros(TOKENS), atol=1e-4, rtol=0)
    torch.testing.assert_close(TokenScores(*scores).collisions, torch.ones(TOKENS), atol=1e-4, rtol=0)


def test_even_odds_by_hand() -> None:
    scores = token_scores(torch.zeros(1, 2), torch.ones(4, 2), torch.tensor([3]), vocab_slice(4, 4, None), 1.0, 8)
    log_4 = 1.3862944
    torch.testing.assert_close(scores, torch.tensor([[-log_4], [log_4], [0.25]]))


def test_logits_of_bf16_weights_are_float32() -> None:
    """Of size 30, where bf16 has steps of 0.125: rounded, log-probs would be off by up to 0.06 each."""
    hidden, weight, targets, grad = (part.bfloat16() if part.is_floating_point() else part for part in inputs(30.0))
    own = computed(hidden, weight, targets, grad.float())
    assert own[0].dtype == torch.float32 and own[1].dtype == own[2].dtype == torch.bfloat16
    scores, hidden_grad, weight_grad = expected(hidden, weight, targets, grad.float())
    torch.testing.assert_close(own[0], scores, atol=1e-4, rtol=1e-5)
    for mine, theirs in ((own[1], hidden_grad), (own[2], weight_grad)):
        error = (mine.float() - theirs).norm() / theirs.norm()
        assert error < 2**-7  # the gradient of logits, and the result, are rounded to bf16


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_weight_with_a_gradient_buffer_gets_its_gradient_there_in_float32(is_tied: bool) -> None:
    """As Megatron's buffers are: a bf16 gradient would lose what is below 2^-9 of the sum so far."""
    hidden, weight, targets, grad = (part.bfloat16() if part.is_floating_point() else part for part in inputs())
    buffer = torch.full((ROWS, WIDTH), 1000.0)
    weight.main_grad = buffer.clone()
    weight.zero_out_wgrad = is_tied
    weight.requires_grad_()
    token_scores(hidden, weight, targets, vocab_slice(VOCAB, ROWS, None), 1.0, 4).backward(grad.float())
    assert weight.grad_added_to_main_grad
    if is_tied:
        assert not weight.grad.any()
    plain = weight.detach().clone().float().requires_grad_()
    scores = token_scores(hidden.float(), plain, targets, vocab_slice(VOCAB, ROWS, None), 1.0, 4)
    scores.backward(grad.float())
    error = (weight.main_grad - buffer - plain.grad).norm() / plain.grad.norm()
    assert error < 2**-7


def test_gradients_of_a_row_that_many_tokens_are_predicted_from_are_summed_in_float32() -> None:
    """512 responses of one prompt. A GPU's own sum of ones in bf16 ends at 256, where the next number is 258; a CPU's
    does not, so this holds the sum that replaces it, and cannot show the need."""
    table = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16, requires_grad=True)
    taken = take_rows(table, torch.ones(512, dtype=torch.int64))
    assert taken.tolist() == [[3.0, 4.0]] * 512
    taken.backward(torch.ones_like(taken))
    assert table.grad is not None
    assert table.grad.dtype == torch.bfloat16
    assert table.grad.tolist() == [[0.0, 0.0], [512.0, 512.0]]
