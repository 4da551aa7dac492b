"""Settings of rollouts: how many, how they are drawn, which groups are kept (`schema.py` puts the sections
together)."""

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

    # constant: rollouts.num_per_prompt; staged: after each stage's steps; on_plateau: when validation stalls
    kind: str = "constant"
    stages: list[StageConfig] = field(default_factory=list)
    # rollouts of a step at most: prompts per step shrink as N grows; null: prompts stay
    sample_budget: int | None = None
    # sqrt, linear, constant: with the rollouts of a step, relative to the first stage
    learning_rate_scaling: str = "sqrt"
    plateau: PlateauConfig = field(default_factory=PlateauConfig)


@dataclass
class PlacementConfig:
    """Which engine samples which chunk. Work is counted in decoded tokens."""

    # of computing one prompt token, relative to decoding one; what a prompt on one more engine costs
    prefill_cost: float = 0.2
    # of attending to one more token, relative to decoding one without context in a full batch
    context_cost: float = 5e-4
    # of a chunk, for each other one of its prompt the engine has, relative to the chunk's work
    concentration_cost: float = 0.1
    # prompts an engine is believed to keep in its prefix cache, last used ones first
    cached_prompt_tokens: int = 200_000
    steal: bool = True  # idle engines take over chunks that others have not begun


@dataclass
class WavesConfig:
    """How a group grows under allocation waves (`rollouts/group_size/waves.py`)."""

    first_wave: int = 64  # rollouts that every prompt gets
    growth: float = 4.0  # how many times as large a group is after another wave; N at most
    half_signal: float = 256.0  # rollouts at which half of a group's squared gradient estimate is signal
    # share of groups expected to get another wave; any is unbiased, one like rollouts/extended least noisy
    reach: float = 0.5
    min_probability: float = 0.2  # of another wave that is not worth its tokens; lower: fewer tokens, larger weights


@dataclass
class PosteriorConfig:
    """What is remembered of how often prompts were answered correctly."""

    memory: float = 0.95  # kept of older counts at each update; 1: nothing is forgotten
    prior_groups: float = 8.0  # groups that a task must have shown to count as much as the prior above it
    max_prompts: int = 50_000  # the least recently seen are dropped


@dataclass
class RolloutsConfig:
    """How many, and how they are drawn."""

    num_per_prompt: int = 512  # N, the scaling axis
    prompts_per_step: int = 16
    chunk_size: int = 64  # rollouts of a prompt that one engine samples in one request
    temperature: float = 1.0
    top_p: float = 1.0
    max_response_tokens: int = 32
    # fixed: N rollouts of every prompt (the paper); waves: more where they teach more, up to N
    allocation: str = "fixed"
    waves: WavesConfig = field(default_factory=WavesConfig)
    posterior: PosteriorConfig = field(default_factory=PosteriorConfig)
    save_samples: int = 4  # rollouts per step written as text to the run folder; 0: none
    # from when an engine begins with a chunk until what is unfinished of it is cut; null: never
    deadline_s: float | None = None
    # of filling a batch: then everything is cut, and the step learns from what there is
    step_deadline_s: float | None = None
    min_fraction: float = 1.0  # of a group's rollouts that must have ended for it to close when the others were cut
    unfinished: str = "drop"  # drop, resume: what was cut is gone on with in the next step, under its newer weights
    overlap: bool = False  # the next batch is sampled while the policy learns from this one (one step off-policy)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)


@dataclass
class DynamicSamplingConfig:
    """Keep informative groups only; refill until the batch is full."""

    enabled: bool = True
    # between a group's best and worst raw reward, for it to be informative; 0: any difference
    min_reward_range: float = 0.0
    max_sampled: float = 10.0  # groups of a step at most, times the groups it wants; then it counts as starved
    # prompt: groups are judged in the order of their prompts, reproducibly; completion: as they close
    order: str = "prompt"
    oversample: float = 1.0  # groups in flight, times what the keep rate says is needed
    # of a full batch's surplus: finish, resume (next step, partial), restart (next step, anew), drop
    in_flight: str = "finish"
    carry_over: bool = True  # surplus informative groups serve the next step
    max_staleness: int = 1  # updates a carried group may lag behind
