"""Losses, regularisers, importance weights and aggregation, with numbers worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from nemo_brorl.algorithm.importance import importance_weights
from nemo_brorl.algorithm.losses import Loss, cispo, cross_entropy, gmpo, gspo, kl_per_token, ppo_clip
from nemo_brorl.algorithm.token_batch import MiniBatchSize, ResponseIndex, TokenBatch, TokenLengths, token_weights
from nemo_brorl.config.algorithm import AlgorithmConfig, ImportanceCorrectionConfig, KLConfig
from tests.support.token_batches import tokens

pytestmark = pytest.mark.numbers

OFF = ImportanceCorrectionConfig(enabled=False)


def batch(
    ratio: float, advantage: float, reference: float | None = None, sampled_ratio: float = 1.0, entropy: float = 0.0
) -> TokenBatch:
    """One token: policy = ratio · old, old = sampled_ratio · vLLM, reference given as a ratio to old."""
    log_reference = None if reference is None else math.log(reference)
    one = tokens([math.log(ratio)], [advantage], [1], mismatch=[math.log(sampled_ratio)], reference=log_reference)
    return replace(one, entropies=torch.tensor([entropy], requires_grad=True))


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 2.0, -2.0),
        (1.5, 2.0, -2.56),  # clipped at 1.28
        (0.5, 2.0, -1.0),  # below 0.8, not clipped: min(0.5 * 2, 0.8 * 2)
        (0.5, -2.0, 1.6),  # clipped at 0.8
        (1.5, -2.0, 3.0),  # not clipped
        (20.0, -2.0, 20.0),  # dual clip at 10
    ],
)
def test_ppo_clip_by_hand(ratio: float, advantage: float, expected: float) -> None:
    result = ppo_clip(batch(ratio, advantage), AlgorithmConfig(importance_correction=OFF))
    assert result.loss.item() == pytest.approx(expected, rel=1e-5)


def test_a_clipped_token_has_no_gradient_and_is_counted() -> None:
    one = batch(1.5, 2.0)
    result = ppo_clip(one, AlgorithmConfig(importance_correction=OFF))
    result.loss.backward()
    assert gradient(one).item() == 0.0
    assert result.metrics["policy/clip_fraction"].item() == 1.0


@pytest.mark.parametrize("loss", [ppo_clip, gspo, gmpo, cispo])
def test_the_distance_from_the_policy_before_has_no_exponential(loss: Loss) -> None:
    """A token that became a thousand times as likely: (ln 1000)² / 2 = 23.9 nats, where r - 1 - ln r is 992."""
    result = loss(batch(1000.0, 1.0), AlgorithmConfig(importance_correction=OFF))
    assert result.metrics["policy/approximate_kl"].item() == pytest.approx(23.86, rel=1e-3)


def gradient(used: TokenBatch) -> Tensor:
    assert used.log_probs.grad is not None
    return used.log_probs.grad


def test_gspo_clips_whole_responses() -> None:
    # response 0: log-ratios .2 and 0, mean .1; response 1: one token at −.05. Advantages 1 and −1, bounds .05 and .06.
    used = tokens([0.2, 0.0, -0.05], [1.0, 1.0, -1.0], [2, 1])
    config = AlgorithmConfig(importance_correction=OFF, clip_low=0.05, clip_high=0.06)
    result = gspo(used, config)
    # e^.1 = 1.105 is clipped at 1.06, twice; min(−e^−.05, −.95) = −.9512, not clipped
    assert result.loss.item() == pytest.approx(-2 * 1.06 + math.exp(-0.05), rel=1e-5)
    assert result.metrics["policy/clip_fraction"].item() == 2.0
    result.loss.backward()
    torch.testing.assert_close(gradient(used), torch.tensor([0.0, 0.0, math.exp(-0.05)]))


def test_gspo_has_the_gradient_of_the_sequence_ratio() -> None:
    used = tokens([0.02, -0.01, 0.03], [1.5, 1.5, 1.5], [3])
    config = AlgorithmConfig(importance_correction=OFF, clip_low=0.5, clip_high=0.5)
    gspo(replace(used, weights=torch.full((3,), 1 / 3)), config).loss.backward()
    leaf = used.log_probs.detach().clone().requires_grad_()
    (-1.5 * (leaf - used.old_log_probs).mean().exp()).backward()  # equation 5 of the paper, for one response
    torch.testing.assert_close(gradient(used), leaf.grad)


def test_cispo_keeps_the_gradient_of_a_clipped_token() -> None:
    used = batch(1.5, 2.0)
    result = cispo(used, AlgorithmConfig(importance_correction=OFF))
    result.loss.backward()
    assert result.loss.item() == pytest.approx(-1.28 * 2 * math.log(0.75), rel=1e-5)
    assert gradient(used).item() == pytest.approx(-1.28 * 2, rel=1e-5)


def test_truncated_importance_weights_stop_at_the_cap_and_carry_no_gradient() -> None:
    config = AlgorithmConfig(importance_correction=ImportanceCorrectionConfig(cap=2.0))
    assert importance_weights(batch(1.0, 1.0, sampled_ratio=1.5), config).item() == pytest.approx(1.5)
    weights = importance_weights(batch(1.0, 1.0, sampled_ratio=5.0), config)
    assert weights.item() == pytest.approx(2.0)
    assert not weights.requires_grad


def test_icepop_drops_tokens_outside_its_band_and_keeps_the_others_as_they_are() -> None:
    used = tokens([0.0] * 4, [1.0] * 4, [4], mismatch=[math.log(w) for w in (0.4, 0.6, 3.0, 6.0)])
    config = AlgorithmConfig(importance_correction=ImportanceCorrectionConfig(kind="icepop", low=0.5, high=5.0))
    torch.testing.assert_close(importance_weights(used, config), torch.tensor([0.0, 0.6, 3.0, 0.0]))
    assert ppo_clip(used, config).metrics["policy/importance_masked"].item() == 2.0


def test_a_sequence_mask_drops_whole_responses_by_their_geometric_mean() -> None:
    # response 0: √(8 · 0.5) = 2, inside; response 1: √(8 · 8) = 8, outside. Inside, weights are capped at 4.
    used = tokens([0.0] * 4, [1.0] * 4, [2, 2], mismatch=[math.log(w) for w in (8.0, 0.5, 8.0, 8.0)])
    config = AlgorithmConfig(
        importance_correction=ImportanceCorrectionConfig(kind="sequence_mask", cap=4.0, low=0.5, high=5.0)
    )
    torch.testing.assert_close(importance_weights(used, config), torch.tensor([4.0, 0.5, 0.0, 0.0]))


def test_kl_enters_the_loss_with_its_coefficient() -> None:
    config = AlgorithmConfig(importance_correction=OFF, kl=KLConfig(coefficient=0.1, estimator="k2"))
    result = ppo_clip(batch(1.0, 1.0, reference=math.e), config)  # log-ratio 1: k2 = 1/2
    assert result.loss.item() == pytest.approx(-1.0 + 0.05, rel=1e-5)
    assert result.metrics["policy/kl_to_reference"].item() == pytest.approx(0.5, rel=1e-5)


def test_kl_in_the_reward_lowers_every_advantage_of_a_response_by_its_sum() -> None:
    # two tokens of response 0 and one of response 1, log π_old/π_ref = .3 each: k1 sums .6 and .3, coefficient .5
    used = tokens([0.0] * 3, [1.0] * 3, [2, 1], reference=-0.3)
    config = AlgorithmConfig(
        importance_correction=OFF, kl=KLConfig(coefficient=0.5, estimator="k1", placement="reward")
    )
    result = ppo_clip(used, config)
    result.loss.backward()
    torch.testing.assert_close(gradient(used), -torch.tensor([0.7, 0.7, 0.85]))


def test_the_gradient_of_k2_is_that_of_teacher_minus_policy_as_an_advantage() -> None:
    # log π_T − log π = .5, −1 and .25, coefficient .4: the gradient of the mean is −.4 · these / 3
    differences = torch.tensor([0.5, -1.0, 0.25])
    taught = tokens([0.0] * 3, [0.0] * 3, [2, 1], reference=differences)
    kl = KLConfig(coefficient=0.4, estimator="k2")
    thirds = torch.full((3,), 1 / 3)
    ppo_clip(replace(taught, weights=thirds), AlgorithmConfig(importance_correction=OFF, kl=kl)).loss.backward()
    torch.testing.assert_close(gradient(taught), torch.tensor([-0.2, 0.4, -0.1]) / 3)
    rewarded = tokens([0.0] * 3, (0.4 * differences).tolist(), [2, 1])
    ppo_clip(replace(rewarded, weights=thirds), AlgorithmConfig(importance_correction=OFF)).loss.backward()
    torch.testing.assert_close(gradient(taught), gradient(rewarded))


def test_the_kl_of_later_mini_batches_is_not_weighed_by_the_ratio_of_the_policies() -> None:
    # log π/π_old = .2, log π_T/π_old = .7: the gradient is −(.7 − .2), where an advantage's has the factor e^.2
    taught = tokens([0.2], [0.0], [1], reference=0.7)
    kl = KLConfig(coefficient=1.0, estimator="k2")
    ppo_clip(taught, AlgorithmConfig(importance_correction=OFF, kl=kl)).loss.backward()
    torch.testing.assert_close(gradient(taught), torch.tensor([-0.5]))


@pytest.mark.parametrize("placement", ["loss", "reward"])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_tokens_without_a_reference_have_no_kl(placement: str, estimator: str) -> None:
    kl = KLConfig(coefficient=1.0, estimator=estimator, placement=placement)
    config = AlgorithmConfig(importance_correction=OFF, kl=kl)
    # Responses of one token: the second has no reference.
    both = replace(tokens([0.0] * 2, [0.0] * 2, [1, 1], reference=0.5), has_reference=torch.tensor([True, False]))
    alone = tokens([0.0], [0.0], [1], reference=0.5)
    result, expected = ppo_clip(both, config), ppo_clip(alone, config)
    (result.loss + expected.loss).backward()
    assert result.metrics["policy/kl_to_reference"] == expected.metrics["policy/kl_to_reference"]
    torch.testing.assert_close(gradient(both), torch.cat([gradient(alone), torch.zeros(1)]))


def test_the_entropy_bonus_lowers_the_loss_by_its_coefficient() -> None:
    used = batch(1.0, 1.0, entropy=2.0)
    result = ppo_clip(used, AlgorithmConfig(importance_correction=OFF, entropy_coefficient=0.1))
    result.loss.backward()
    assert result.loss.item() == pytest.approx(-1.0 - 0.1 * 2.0, rel=1e-6)
    assert used.entropies.grad is not None
    assert used.entropies.grad.item() == pytest.approx(-0.1)


# a response of one turn and token, and one of two turns, of 2 tokens and 1; none may have more than 8
LENGTHS = TokenLengths(
    sequence=torch.tensor([1.0, 3.0, 3.0, 3.0]),
    turn=torch.tensor([1.0, 2.0, 2.0, 1.0]),
    num_turns=torch.tensor([1.0, 2.0, 2.0, 2.0]),
)
SIZE = MiniBatchSize(num_tokens=4, num_sequences=2, num_turns=3, max_tokens=8)
AGGREGATIONS = ("token_mean", "sequence_mean", "turn_mean", "sequence_turn_mean")


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    # advantages 1, two responses of 1 and 3 tokens, at most 8: mean over 4 tokens; mean of 1 and 1; (1 + 3) / 8 over 2
    # responses; of turns too the mean of ones
    [
        ("token_mean", -1.0),
        ("sequence_mean", -1.0),
        ("constant", -0.25),
        ("turn_mean", -1.0),
        ("sequence_turn_mean", -1.0),
    ],
)
def test_aggregation_by_hand(aggregation: str, expected: float) -> None:
    weights = token_weights(aggregation, LENGTHS, SIZE)
    used = replace(tokens([0.0] * 4, [1.0] * 4, [1, 3]), weights=weights)
    assert ppo_clip(used, AlgorithmConfig(importance_correction=OFF)).loss.item() / 4 == pytest.approx(expected)


def test_a_sequence_mean_weighs_responses_alike_where_a_token_mean_does_not() -> None:
    advantages = torch.tensor([1.0, -1.0, -1.0, -1.0])  # of a short right and a long wrong response
    assert (token_weights("sequence_mean", LENGTHS, SIZE) @ advantages).item() / 4 == pytest.approx(0.0, abs=1e-6)
    assert (token_weights("token_mean", LENGTHS, SIZE) @ advantages).item() / 4 == pytest.approx(-0.5)


def test_means_over_turns_by_hand() -> None:
    advantages = torch.tensor([0.0, 0.0, 0.0, 1.0])  # 1 at the second turn of the second response, its last token
    found = {name: (token_weights(name, LENGTHS, SIZE) @ advantages).item() / 4 for name in AGGREGATIONS}
    # of 4 tokens; of 3 in the second of 2 responses; of 3 turns; of 2 turns in the second of 2 responses
    assert found == pytest.approx(
        {"token_mean": 1 / 4, "sequence_mean": 1 / 6, "turn_mean": 1 / 3, "sequence_turn_mean": 1 / 4}
    )


def two_tokens(logits: Tensor) -> TokenBatch:
    """The second and the third of a vocabulary of three, as one response, in float64."""
    log_p = logits.log_softmax(-1)
    chosen = log_p.gather(1, torch.tensor([[1], [2]]))[:, 0]
    old = torch.tensor([-1.1, -0.9], dtype=torch.float64)
    return TokenBatch(
        log_probs=chosen,
        entropies=-(log_p.exp() * log_p).sum(-1),
        old_log_probs=old,
        sampled_log_probs=old - 0.1,
        reference_log_probs=old + 0.2,
        advantages=torch.tensor([-2.0, -2.0], dtype=torch.float64),
        weights=torch.tensor([0.5, 2.0], dtype=torch.float64),
        sequences=ResponseIndex(torch.tensor([0, 0]), torch.tensor([2.0], dtype=torch.float64)),
    )


LOGITS = torch.tensor([[0.1, 0.0, -0.2], [0.3, -0.1, 0.2]], dtype=torch.float64)


@pytest.mark.parametrize("kind", ["tis", "icepop", "sequence_mask"])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_gradient_of_the_whole_loss_is_that_of_finite_differences(estimator: str, kind: str) -> None:
    correction = ImportanceCorrectionConfig(kind=kind)
    config = AlgorithmConfig(entropy_coefficient=0.3, kl=KLConfig(0.2, estimator), importance_correction=correction)
    assert torch.autograd.gradcheck(
        lambda logits: ppo_clip(two_tokens(logits), config).loss, LOGITS.clone().requires_grad_()
    )


def test_gspos_gradient_is_that_of_finite_differences() -> None:
    """Weighted alike, since the sequence ratio is spread over the response's tokens."""
    config = AlgorithmConfig(entropy_coefficient=0.3, kl=KLConfig(0.2), clip_low=0.5, clip_high=0.5)

    def loss(logits: Tensor) -> Tensor:
        return gspo(replace(two_tokens(logits), weights=torch.ones(2, dtype=torch.float64)), config).loss

    assert torch.autograd.gradcheck(loss, LOGITS.clone().requires_grad_())


def test_cispos_gradient_is_that_of_log_probs_under_frozen_weights() -> None:
    config = AlgorithmConfig(importance_correction=OFF, kl=KLConfig(0.0))
    at = two_tokens(LOGITS)
    frozen = at.weights * (at.log_probs - at.old_log_probs).exp().clamp(0.8, 1.28) * at.advantages

    def value(logits: Tensor) -> float:
        return -float(frozen @ two_tokens(logits).log_probs)

    leaf = LOGITS.clone().requires_grad_()
    cispo(replace(two_tokens(leaf), reference_log_probs=None), config).loss.backward()
    assert leaf.grad is not None
    for row in range(2):
        for column in range(3):
            bump = torch.zeros_like(LOGITS)
            bump[row, column] = 1e-6
            slope = (value(LOGITS + bump) - value(LOGITS - bump)) / 2e-6
            assert leaf.grad[row, column].item() == pytest.approx(slope, abs=1e-8)


@pytest.mark.parametrize(("estimator", "expected"), [("k1", -0.5), ("k2", 0.125), ("k3", math.exp(0.5) - 1.5)])
def test_kl_estimators_at_a_log_ratio_of_one_half(estimator: str, expected: float) -> None:
    zero, half = torch.zeros(1), torch.full((1,), 0.5)
    # e^0.5 is stored in units of 2^-23, of which a processor's exponential may be one off, and the difference another.
    assert kl_per_token(zero, half, estimator, 10.0).item() == pytest.approx(expected, abs=2**-22)


def test_the_log_ratio_is_clamped() -> None:
    assert kl_per_token(torch.zeros(1), torch.full((1,), 100.0), "k2", 10.0).item() == 50.0


def test_cross_entropy_is_the_negative_log_likelihood() -> None:
    assert cross_entropy(batch(1.0, 1.0), AlgorithmConfig()).loss.item() == pytest.approx(math.log(2), rel=1e-6)


def test_brorls_whole_loss_equals_an_independent_reference() -> None:
    """REINFORCE++-baseline advantages come in; clip-higher with dual clip, k2, truncated importance sampling, token
    mean."""
    torch.manual_seed(0)
    old, noise = torch.randn(500).sub(2), torch.randn(3, 500)
    log_probs, advantages = old + 0.3 * noise[0], torch.randn(500)
    used = TokenBatch(
        log_probs.clone().requires_grad_(), torch.zeros(500), old, old + 0.5 * noise[1], old + 0.2 * noise[2],
        advantages,
        torch.ones(500), ResponseIndex(torch.arange(500) // 5, torch.full((100,), 5.0)),
    )  # fmt: skip
    config = AlgorithmConfig(kl=KLConfig(coefficient=0.01))
    result = ppo_clip(used, config)
    result.loss.backward()

    leaf = log_probs.clone().requires_grad_()
    r = torch.exp(leaf - old)
    surrogate = torch.min(r * advantages, r.clip(0.8, 1.28) * advantages)
    surrogate = torch.where(advantages < 0, torch.max(surrogate, 10 * advantages), surrogate)
    trust = torch.exp(old - used.sampled_log_probs).clip(max=2.0)
    expected = (-trust * surrogate + 0.01 * 0.5 * (old + 0.2 * noise[2] - leaf) ** 2).sum()
    expected.backward()
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient(used), leaf.grad, rtol=1e-6, atol=1e-6)
