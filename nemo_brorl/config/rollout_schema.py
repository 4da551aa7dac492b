"""Settings of rollouts: how many, how they are drawn, which groups are kept (`schema.py` puts the sections together)."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING


@dataclass
class StageConfig:
    """One stage of a schedule of N."""

    num_per_prompt: int = MISSING
    num_steps: int | None = None  # of kind staged; null: to the end


@dataclass
class PlateauConfig:
    """When validation counts as stalled: no rise over `window` validations, `patience` times in a row."""

    window: int = 6
    patience: int = 3
    confidence: float = 0.95  # that the slope is above min_gain, to count as rising
    min_gain: float = 0.0  # pass@1 per validation


@dataclass
class ScheduleConfig:
    """N over a run."""

    kind: str = "constant"  # constant: rollouts.num_per_prompt; staged: after each stage's steps; on_plateau: when validation stalls
    stages: list[StageConfig] = field(default_factory=list)
    sample_budget: int | None = None  # rollouts of a step at most: prompts per step shrink as N grows; null: prompts stay
    learning_rate_scaling: str = "sqrt"  # sqrt, linear, constant: with the rollouts of a step, relative to the first stage
    plateau: PlateauConfig = field(default_factory=PlateauConfig)


@dataclass
class RolloutsConfig:
    """How many, and how they are drawn."""

    num_per_prompt: int = 512  # N, the scaling axis
    prompts_per_step: int = 16
    chunk_size: int = 64  # rollouts of a prompt that one engine samples in one request
    temperature: float = 1.0
    top_p: float = 1.0
    max_response_tokens: int = 32
    save_samples: int = 4  # rollouts per step written as text to the run folder; 0: none
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)


@dataclass
class DynamicSamplingConfig:
    """Keep informative groups only; refill until the batch is full."""

    enabled: bool = True
    max_rounds: int = 10
    carry_over: bool = True  # surplus informative groups serve the next step
    max_staleness: int = 1  # updates a carried group may lag behind
