"""Parity gate before training: Hugging Face, Megatron and vLLM must agree on the log-probs of the same tokens.

They are three implementations of one model. A silent difference between them (a rotary base, a missing bias, a stale LM
head) turns every importance ratio into noise, so a run does not start above the bound. The engines have the weights
that the policy has published, so the gate also finds weights that arrived wrong, in any one engine. In a resumed run
the policy's weights are not those of the model folder, and Hugging Face is left out.

Prompts of environments are answered in two turns, with their last tokens as the observation. Engines resume from the
first turn, and only sampled tokens are compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from nemo_brorl.cluster.object_store import fetch, store
from nemo_brorl.config.parity import ParityConfig
from nemo_brorl.config.rollouts import RolloutsConfig
from nemo_brorl.core.clock import Stopwatch
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import ParityError
from nemo_brorl.ports import Generator, Policy
from nemo_brorl.rollouts.ledger import requests_for
from nemo_brorl.scoring.response_arrays import with_observations
from nemo_brorl.training.device_handover import DeviceHandover
from nemo_brorl.types import Bool, Float32, Int32, PartialRollouts, Prompt, RolloutChunk, RolloutRequest, Sampling

_log = get_logger(__name__)
NUM_PROMPTS = 4
RESPONSES_PER_PROMPT = 4
RESPONSE_TOKENS = 64  # upper limit, because Hugging Face computes one response at a time
ENGINE_BOUND = 2.0  # a single engine's bound, over the bound of all engines together
FAULT = 5.0  # a step's mismatch over its bound from which the engines' weights are taken to be wrong
OBSERVED = 8  # tokens of an observation between two turns
_ALARMS = (
    ("policy/log_prob_mismatch", "max_step_mismatch", "Megatron - vLLM"),
    ("policy/fp8_mismatch", "max_fp8_mismatch", "FP8 - bf16"),
)


@dataclass(frozen=True)
class ParityReport:
    """Mean absolute differences of token log-probs, in nats."""

    hf_megatron: float | None  # None: a resumed run
    hf_vllm: float | None
    megatron_vllm: float
    num_tokens: int
    fp8: float | None = None  # difference between Megatron with and without FP8; None: no FP8, or a resumed run
    by_engine: Mapping[int, float] = field(default_factory=dict)  # `megatron_vllm` of each engine by itself

    @property
    def worst_engine(self) -> float:
        return float(np.max(list(self.by_engine.values()) or [0.0]))

    @property
    def worst_engine_line(self) -> str:
        engine = max(self.by_engine, key=lambda engine: np.nan_to_num(self.by_engine[engine], nan=np.inf))
        return f"engine {engine} differs most from Megatron, by {self.by_engine[engine]:.1e}"

    @property
    def worst(self) -> float:
        return float(np.max([self.megatron_vllm, self.hf_megatron or 0.0, self.hf_vllm or 0.0]))

    def __str__(self) -> str:
        text = f"Megatron-vLLM {self.megatron_vllm:.1e} (mean |difference| in nats over {self.num_tokens} tokens)"
        if self.hf_megatron is not None:
            text = f"HF-Megatron {self.hf_megatron:.1e}, HF-vLLM {self.hf_vllm:.1e}, {text}"
        if self.fp8 is None:
            return text
        return f"{text}; FP8 adds {self.fp8:.1e}"


def check_parity(
    prompts: Sequence[Prompt],
    handover: DeviceHandover,
    rollouts: RolloutsConfig,
    parity: ParityConfig,
    *,
    bound: float,
    has_fp8: bool,
    seed: int,
) -> ParityReport:
    """Sample a small fixed batch and compare the log-probs of Hugging Face, Megatron and vLLM on it.

    Every engine must also agree with Megatron by itself. The comparison is without FP8, whose noise would hide a
    difference. What FP8 adds is measured separately, with a warning above `parity.max_fp8_mismatch`. Raises ParityError
    for a difference above `bound`, or above `parity.max_mean_abs_diff` if that is set.
    """
    max_tokens = min(rollouts.max_response_tokens, RESPONSE_TOKENS)
    sampling = Sampling(rollouts.temperature, 1.0, max_tokens)
    num = RESPONSES_PER_PROMPT
    generator = handover.generator
    requests = requests_for(prompts, num, num, sampling, seed)
    chunks = list(_responses(requests, generator, rollouts.max_response_tokens))
    chunks.sort(key=lambda chunk: chunk.request.prompt.uid)
    others: list[RolloutChunk] = []
    num_engines = len(generator.weight_receivers())
    if num_engines > len({chunk.engine for chunk in chunks}):
        # Requests of equal size go to one engine each.
        others = list(generator.generate(requests_for(prompts[:1], num_engines, 1, sampling, seed)))
    with handover.policy_phase(Stopwatch()):
        report = _compare(chunks, others, handover.policy, has_fp8, with_hf=handover.version == 0)
    # A single engine's few tokens differ by more than the mean of all. False for NaN.
    is_within = report.worst <= bound and report.worst_engine <= ENGINE_BOUND * bound
    if not is_within or not np.isfinite(report.fp8 or 0.0):
        raise ParityError(
            f"log-probs do not agree: {report}; {report.worst_engine_line}; the bound is "
            f"parity.max_mean_abs_diff={bound:g}. With bf16 on either side a bound of 0.05 is usual; a larger "
            "difference means that one of the three computes another model or, where only vLLM differs, that the "
            "published weights arrive wrong: try generation.weight_transport=object_store"
        )
    measured = {} if report.fp8 is None else {"policy/fp8_mismatch": report.fp8}
    for alarm in alarms(measured, parity):
        _log.warning("%s", alarm)
    return report


def _compare(
    chunks: Sequence[RolloutChunk], others: Sequence[RolloutChunk], policy: Policy, has_fp8: bool, with_hf: bool
) -> ParityReport:
    """Return the differences of log-probs on the tokens of `chunks`. `others` count only for their engines."""
    prompt_ids, response_ids = _token_ids(chunks)
    log_probs, counts = _sampled(chunks)
    vllm = log_probs[counts]
    megatron = np.concatenate(policy.log_probs(prompt_ids, response_ids, with_fp8=False))[counts]
    hf_megatron = hf_vllm = fp8 = None
    if with_hf:
        hf = np.concatenate(policy.hf_log_probs(prompt_ids, response_ids))[counts]
        hf_megatron, hf_vllm = _mean_abs(hf - megatron), _mean_abs(hf - vllm)
    if with_hf and has_fp8:
        with_fp8 = np.concatenate(policy.log_probs(prompt_ids, response_ids))[counts]
        fp8 = _mean_abs(with_fp8 - megatron)
    engines, differences = _engines(chunks)[counts], np.abs(megatron - vllm)
    if others:
        log_probs, _ = _sampled(others)
        megatron_of_others = np.concatenate(policy.log_probs(*_token_ids(others), with_fp8=False))
        engines = np.concatenate([engines, _engines(others)])
        differences = np.concatenate([differences, np.abs(megatron_of_others - log_probs)])
    by_engine = {int(engine): float(differences[engines == engine].mean()) for engine in np.unique(engines)}
    return ParityReport(hf_megatron, hf_vllm, _mean_abs(megatron - vllm), len(vllm), fp8, by_engine)


def _engines(chunks: Sequence[RolloutChunk]) -> Int32:
    """Return the number of the engine that sampled it, for every response token."""
    numbers = [chunk.engine for chunk in chunks]
    return np.repeat(np.array(numbers, np.int32), [len(fetch(chunk.data).token_ids) for chunk in chunks])


def _token_ids(chunks: Sequence[RolloutChunk]) -> tuple[list[Sequence[int]], list[Sequence[int]]]:
    """Return the prompt and the response of every rollout as token ids."""
    prompt_ids: list[Sequence[int]] = []
    response_ids: list[Sequence[int]] = []
    for chunk in chunks:
        arrays = fetch(chunk.data)
        for low, high in pairwise(arrays.offsets.tolist()):
            prompt_ids.append(chunk.request.prompt.token_ids)
            response_ids.append(arrays.token_ids[low:high].tolist())
    return prompt_ids, response_ids


def _sampled(chunks: Sequence[RolloutChunk]) -> tuple[Float32, Bool]:
    """Return the log-probs of all response tokens by the engines, and a mask of the tokens that an engine sampled."""
    log_probs: list[Float32] = []
    masks: list[Bool] = []
    for chunk in chunks:
        arrays = fetch(chunk.data)
        log_probs.append(arrays.log_probs)
        is_sampled = arrays.is_sampled
        if is_sampled is None:
            is_sampled = np.ones(len(arrays.token_ids), bool)
        masks.append(is_sampled)
    return np.concatenate(log_probs), np.concatenate(masks)


def _responses(
    requests: Sequence[RolloutRequest],
    generator: Generator,
    max_tokens: int,
) -> Iterator[RolloutChunk]:
    """Yield sampled responses, with two turns for prompts that have an environment and one turn otherwise.

    There is no second turn if `max_tokens` leave no room for it.
    """
    seconds: list[RolloutRequest] = []
    for chunk in generator.generate(requests):
        is_conversation = chunk.request.prompt.has_episodes
        if is_conversation and chunk.lengths.max() + OBSERVED < max_tokens:
            seconds.append(_second_turn(chunk, max_tokens))
        else:
            yield chunk
    yield from generator.generate(seconds)


def _second_turn(chunk: RolloutChunk, max_tokens: int) -> RolloutRequest:
    """Return the request for a second turn of sampled rollouts.

    The end of the prompt takes the place of the environment's observation.
    """
    request = chunk.request
    told = request.prompt.token_ids[-OBSERVED:]
    arrays = fetch(chunk.data)
    longer = with_observations(arrays, [told] * request.num_rollouts)
    sampling = request.sampling
    both = int(chunk.lengths.max()) + len(told) + sampling.max_tokens
    partial = PartialRollouts(
        indices=chunk.indices,
        lengths=np.diff(longer.offsets).astype(np.int32),
        version=chunk.version,
        data=store(longer),
        engine=chunk.engine,
    )
    return replace(
        request,
        sampling=replace(sampling, max_tokens=min(both, max_tokens)),
        partial=partial,
    )


def alarms(metrics: Mapping[str, float], config: ParityConfig) -> Iterator[str]:
    """Yield a warning for each difference of log-probs between implementations that a step measured above its bound."""
    for metric, setting, what in _ALARMS:
        bound = getattr(config, setting)
        value = metrics.get(metric, 0.0)
        if value > bound:
            yield f"mean |{what}| log-prob is {value:.3f}, above parity.{setting}={bound:g}"


def mismatch_fault(metrics: Mapping[str, float], config: ParityConfig) -> str | None:
    """Return why a step's rollouts do not come from the policy's weights, or None.

    A step in which no rollout is of the current weights has no mismatch: its value is NaN.
    """
    bound = FAULT * config.max_step_mismatch
    value = metrics.get("policy/log_prob_mismatch", math.nan)
    if not value > bound:
        return None
    return (
        f"mean |Megatron - vLLM| log-prob is {value:.3f}, above {FAULT:g} × parity.max_step_mismatch={bound:g}: the "
        "engines sampled with other weights than the policy's. This step is not saved. Try "
        "generation.weight_transport=object_store, or raise parity.max_step_mismatch if this is expected"
    )


def _mean_abs(difference: Float32) -> float:
    return float(np.abs(difference).mean())
