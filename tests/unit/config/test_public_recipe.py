"""The numbers that conf/prorl_v2.yaml takes from the public ProRLv2 recipes."""

from __future__ import annotations

from nemo_brorl.config.load import load_config


def test_prorl_v2_has_the_numbers_of_the_public_recipes() -> None:
    algorithm = load_config("prorl_v2", []).algorithm
    assert (algorithm.clip_low, algorithm.clip_high, algorithm.dual_clip) == (0.2, 0.27, 0)
    correction = algorithm.importance_correction
    assert (correction.kind, correction.low, correction.high) == ("icepop", 0.5, 5.0)
    assert algorithm.advantage_params == {"whiten_over": "tokens"}
    assert (algorithm.kl.estimator, algorithm.kl.coefficient) == ("k2", 1e-4)
