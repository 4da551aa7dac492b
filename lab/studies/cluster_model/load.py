"""What is sampled, on what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lab.studies.cluster_model.curve import EngineCurve
from nemo_brorl.generation.session import REPORT_EVERY, REPORT_S


@dataclass(frozen=True)
class ClusterShape:
    """Engines that are all alike, and what it takes to talk to them."""

    num_engines: int
    curve: EngineCurve
    max_batch: int = 256  # rollouts an engine decodes at a time
    cached_prompt_tokens: int = 200_000  # that an engine's prefix cache holds
    latency_s: float = 0.01  # of a message between driver and engine
    report_every: int = REPORT_EVERY  # rollouts; chunks that are done are told at once
    report_s: float = REPORT_S


@dataclass(frozen=True)
class Load:
    """Groups to sample: response lengths by prompt, and the prompts' own."""

    prompt_tokens: Sequence[int]
    lengths: Sequence[Sequence[int]]  # [prompt][rollout]
    tasks: Sequence[str]  # [prompt]
