"""The gate at the start."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from nemo_brorl.config.parity import ParityConfig
from nemo_brorl.config.rollouts import RolloutsConfig
from nemo_brorl.config.run_sizes import FP32_PARITY
from nemo_brorl.core.errors import ParityError
from nemo_brorl.ports import Generator, Policy
from nemo_brorl.training.device_handover import DeviceHandover
from nemo_brorl.training.parity import ParityReport, check_parity, mismatch_fault
from nemo_brorl.types import Float32, Prompt
from tests.support.environments import PROMPT_TOKENS, VOCABULARY, TurnGenerator, environment_prompt
from tests.support.fakes import FakeGenerator, FakePolicy, make_prompt


def checked(
    prompts: Sequence[Prompt], policy: Policy, generator: Generator, has_fp8: bool = False, version: int = 0
) -> ParityReport:
    """The gate at its defaults."""
    settings = (RolloutsConfig(), ParityConfig())
    handover = DeviceHandover(policy, generator)
    handover.version = version
    return check_parity(prompts, handover, *settings, bound=FP32_PARITY, has_fp8=has_fp8, seed=1)


class OtherHf(FakePolicy):
    def hf_log_probs(self, prompt_ids: Sequence[Sequence[int]], response_ids: Sequence[Sequence[int]]) -> list[Float32]:
        return [np.full(len(response), -0.75, np.float32) for response in response_ids]


class Quantised(FakePolicy):
    """FP8 adds 0.25 nats."""

    def log_probs(
        self, prompt_ids: Sequence[Sequence[int]], response_ids: Sequence[Sequence[int]], with_fp8: bool = True
    ) -> list[Float32]:
        return [log_probs - 0.25 * with_fp8 for log_probs in super().log_probs(prompt_ids, response_ids)]


def test_agreement_passes_with_three_zeros() -> None:
    report = checked([make_prompt()], FakePolicy(), FakeGenerator())
    assert (report.hf_megatron, report.hf_vllm, report.megatron_vllm) == (0.0, 0.0, 0.0)
    assert report.num_tokens == 8  # 4 responses of 2 tokens


def test_disagreement_refuses_to_start_and_prints_the_three_numbers() -> None:
    with pytest.raises(ParityError, match=r"HF-Megatron 2.5e-01, HF-vLLM 2.5e-01, Megatron-vLLM 0.0e\+00"):
        checked([make_prompt()], OtherHf(), FakeGenerator())


def test_fp8_is_left_out_of_the_comparison_and_measured_apart(caplog: pytest.LogCaptureFixture) -> None:
    report = checked([make_prompt()], Quantised(), FakeGenerator(), has_fp8=True)
    assert (report.worst, report.fp8) == (0.0, 0.25)
    assert "FP8 adds 2.5e-01" in str(report)
    assert "above parity.max_fp8_mismatch=0.02" in caplog.text


class Scorer(FakePolicy):
    """Knows what `TurnGenerator` says of its own tokens, and nothing of observations."""

    def log_probs(
        self, prompt_ids: Sequence[Sequence[int]], response_ids: Sequence[Sequence[int]], with_fp8: bool = True
    ) -> list[Float32]:
        self.responses = response_ids
        return [np.array([-0.1 - token / VOCABULARY for token in response], np.float32) for response in response_ids]

    hf_log_probs = log_probs


def test_prompts_of_environments_are_compared_over_two_turns_at_sampled_tokens_alone() -> None:
    policy = Scorer()
    report = checked([environment_prompt()], policy, TurnGenerator())
    assert report.worst < 1e-6, "an observation's log-prob is 0 there and never 0 here"
    lengths = [len(response) for response in policy.responses]
    assert report.num_tokens == sum(lengths) - 4 * PROMPT_TOKENS, "the prompt's three tokens are what was said between"


def test_a_step_without_rollouts_of_the_current_weights_has_no_mismatch() -> None:
    config = ParityConfig(max_step_mismatch=0.05)
    assert mismatch_fault({"policy/log_prob_mismatch": math.nan}, config) is None
    assert mismatch_fault({"policy/log_prob_mismatch": 0.25}, config) is None
    fault = mismatch_fault({"policy/log_prob_mismatch": 0.26}, config)
    assert fault is not None
    assert "0.260, above 5 × parity.max_step_mismatch=0.25" in fault
