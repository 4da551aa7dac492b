"""Parity gate before training, where Hugging Face, Megatron and vLLM must agree about the log-probs of the same tokens.

They are three implementations of one model. A silent difference between them (a rotary base, a missing bias, a stale LM
head) turns every importance ratio into noise, so a run refuses to start above the bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from nemo_brorl.config.derived import parity_bound
from nemo_brorl.config.schema import BroRLConfig, ParityConfig
from nemo_brorl.core.errors import ParityError
from nemo_brorl.core.logs import get_logger
from nemo_brorl.core.object_store import fetch
from nemo_brorl.ports import Generator, Policy
from nemo_brorl.rollouts.requests import requests_for
from nemo_brorl.types import Float32, Prompt, Sampling

_log = get_logger(__name__)
_ALARMS = (
    ("policy/log_prob_mismatch", "max_step_mismatch", "Megatron - vLLM"),
    ("policy/fp8_mismatch", "max_fp8_mismatch", "FP8 - bf16"),
)


@dataclass(frozen=True)
class ParityReport:
    """Mean absolute differences of token log-probs, in nats."""

    hf_megatron: float
    hf_vllm: float
    megatron_vllm: float
    num_tokens: int
    fp8: float | None = None  # Megatron with FP8 against without; None: no FP8

    @property
    def worst(self) -> float:
        return max(self.hf_megatron, self.hf_vllm, self.megatron_vllm)

    def __str__(self) -> str:
        text = (
            f"HF-Megatron {self.hf_megatron:.1e}, HF-vLLM {self.hf_vllm:.1e}, Megatron-vLLM {self.megatron_vllm:.1e}"
            f" (mean |difference| in nats over {self.num_tokens} tokens)"
        )
        if self.fp8 is None:
            return text
        return f"{text}; FP8 adds {self.fp8:.1e}"


def check_parity(
    config: BroRLConfig,
    prompts: Sequence[Prompt],
    policy: Policy,
    generator: Generator,
) -> ParityReport:
    """Sample a fixed small batch and compare, without FP8, whose noise would hide a difference; what FP8 adds is
    measured apart and warned about above `parity.max_fp8_mismatch`. Raises ParityError above
    `parity.max_mean_abs_diff`."""
    max_tokens = min(config.rollouts.max_response_tokens, config.parity.max_response_tokens)
    sampling = Sampling(config.rollouts.temperature, 1.0, max_tokens)
    num = config.parity.responses_per_prompt
    prompt_ids: list[Sequence[int]] = []
    response_ids: list[Sequence[int]] = []
    sampled: list[Float32] = []
    requests = requests_for(prompts, num, num, sampling, config.trainer.seed)
    for chunk in sorted(generator.generate(requests), key=lambda chunk: chunk.request.prompt.uid):
        arrays = fetch(chunk.data)
        for low, high in pairwise(arrays.offsets.tolist()):
            prompt_ids.append(chunk.request.prompt.token_ids)
            response_ids.append(arrays.token_ids[low:high].tolist())
            sampled.append(arrays.log_probs[low:high])
    vllm = np.concatenate(sampled)
    megatron = np.concatenate(policy.log_probs(prompt_ids, response_ids, with_fp8=False))
    hf = np.concatenate(policy.hf_log_probs(prompt_ids, response_ids))
    fp8 = None
    measured: dict[str, float] = {}
    if config.policy.fp8:
        with_fp8 = np.concatenate(policy.log_probs(prompt_ids, response_ids))
        fp8 = _mean_abs(with_fp8 - megatron)
        measured["policy/fp8_mismatch"] = fp8
    report = ParityReport(
        hf_megatron=_mean_abs(hf - megatron),
        hf_vllm=_mean_abs(hf - vllm),
        megatron_vllm=_mean_abs(megatron - vllm),
        num_tokens=len(vllm),
        fp8=fp8,
    )
    bound = parity_bound(config)
    is_within = report.worst <= bound  # NaN is not
    if not is_within or not np.isfinite(fp8 or 0.0):
        raise ParityError(
            f"log-probs do not agree: {report}; the bound is parity.max_mean_abs_diff={bound:g}. With bf16 on either"
            " side a bound of 0.05 is usual; a larger difference means that one of the three computes another model"
        )
    for alarm in alarms(measured, config.parity):
        _log.warning("%s", alarm)
    return report


def alarms(metrics: Mapping[str, float], config: ParityConfig) -> Iterator[str]:
    """A warning for every difference between stacks that a step measured above its bound."""
    for metric, setting, what in _ALARMS:
        bound = getattr(config, setting)
        value = metrics.get(metric, 0.0)
        if value > bound:
            yield f"mean |{what}| log-prob is {value:.3f}, above parity.{setting}={bound:g}"


def _mean_abs(difference: Float32) -> float:
    return float(np.abs(difference).mean())
