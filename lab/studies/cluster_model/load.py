"""Describe a load to sample, and the cluster that samples it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lab.studies.cluster_model.curve import EngineCurve
from nemo_brorl.generation.session import REPORT_EVERY, REPORT_S


@dataclass(frozen=True)
class ClusterShape:
    """A cluster of equal engines, and the costs of its messages."""

    num_engines: int
    curve: EngineCurve
    max_batch: int = 256  # rollouts that an engine decodes at a time
    cached_prompt_tokens: int = 200_000  # tokens in an engine's prefix cache
    latency_s: float = 0.01  # latency of a message between driver and engine
    report_every: int = REPORT_EVERY  # rollouts between reports; finished chunks are reported at once
    report_s: float = REPORT_S


@dataclass(frozen=True)
class Load:
    """Groups to sample: response lengths by prompt, and the lengths of the prompts."""

    prompt_tokens: Sequence[int]
    lengths: Sequence[Sequence[int]]  # [prompt][rollout]
    tasks: Sequence[str]  # [prompt]
