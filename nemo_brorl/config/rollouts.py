"""Settings of rollouts: how many, how they are drawn, which groups are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from omegaconf import MISSING

from nemo_brorl.config.declare import section, setting


@dataclass
class StageConfig:
    """One stage of a schedule of N."""

    num_per_prompt: int = setting(MISSING, "N of this stage", at_least=2)
    num_steps: int | None = setting(None, "steps of a stage of kind staged; null: to the end", at_least=1)
    num_rollouts: int | None = setting(
        None, "rollouts sampled in a stage of kind budget, those not learnt from too; null: to the end", at_least=1
    )


@dataclass
class PlateauConfig:
    """When validation counts as stalled: no rise over `window` validations, `patience` times in a row."""

    window: int = setting(6, "validations that a slope is fitted to", at_least=3)
    patience: int = setting(3, "windows in a row without a rise", at_least=1)
    confidence: float = setting(0.95, "probability of a slope above min_gain, to count as rising", within=(0.5, 0.9999))
    min_gain: float = setting(0.0, "pass@1 per validation", at_least=0)


@dataclass
class ScheduleConfig:
    """N over a run."""

    kind: str = setting(
        "constant",
        "constant: rollouts.num_per_prompt; staged: after each stage's steps; budget: after each stage's rollouts; "
        "on_plateau: when validation stalls",
        choices=("constant", "staged", "budget", "on_plateau"),
    )
    stages: list[StageConfig] = setting([], "stages in their order; none under kind=constant")
    sample_budget: int | None = setting(
        None, "rollouts of a step at most: prompts per step shrink as N grows; null: prompts stay", at_least=1
    )
    learning_rate_scaling: str = setting(
        "sqrt", "learning rate over rollouts of a step, from the first stage's", choices=("sqrt", "linear", "constant")
    )
    plateau: PlateauConfig = section(PlateauConfig)

    def violations(self) -> Iterator[str]:
        if self.kind == "constant" and self.stages:
            yield (
                f"rollouts.schedule.stages has {len(self.stages)} stages and rollouts.schedule.kind=constant uses "
                "none: write kind=staged, budget or on_plateau, or leave stages empty"
            )
        if self.kind != "constant" and not self.stages:
            yield (
                f"rollouts.schedule.kind={self.kind} has no stages: write for example "
                "rollouts.schedule.stages=[{num_per_prompt: 16, num_steps: 100}, {num_per_prompt: 512}]"
            )
        ends_by = {"staged": "num_steps", "budget": "num_rollouts"}
        for index, stage in enumerate(self.stages):
            for kind, name in ends_by.items():
                where, length = f"rollouts.schedule.stages.{index}.{name}", getattr(stage, name)
                if kind == self.kind and length is None and stage is not self.stages[-1]:
                    yield f"{where} is missing: only the last stage may go on to the end; write where this one ends"
                if kind != self.kind != "constant" and length is not None:
                    yield f"{where}={length} ends a stage of kind={kind}, not of kind={self.kind}: write null"


@dataclass
class PlacementConfig:
    """Which engine samples which chunk. Work is counted in decoded tokens."""

    prefill_cost: float = setting(0.2, "work of one prompt token: a prompt on one more engine costs it", at_least=0)
    context_cost: float = setting(
        5e-4, "work of attending to one more token, over decoding one without context in a full batch", at_least=0
    )
    concentration_cost: float = setting(
        0.1, "share of a chunk's work added for each other chunk of its prompt on the engine", within=(0, 1)
    )
    cached_prompt_tokens: int = setting(
        200_000, "tokens of prompts that an engine is believed to keep in its prefix cache, last used first", at_least=0
    )
    steal: bool = setting(True, "idle engines take over chunks that others have not begun")


@dataclass
class WavesConfig:
    """How a group grows under allocation waves (`rollouts/group_size/waves.py`)."""

    first_wave: int = setting(64, "rollouts that every prompt gets", at_least=2)
    growth: float = setting(4.0, "how many times as large a group is after another wave; N at most", within=(1.01, 64))
    half_signal: float = setting(256.0, "rollouts at which half of a squared gradient estimate is signal", above=0)
    reach: float = setting(
        0.5, "share of groups expected to get another wave; least noisy: as rollouts/extended", within=(0.01, 1)
    )
    min_probability: float = setting(
        0.2, "probability of a wave not worth its tokens; lower: fewer tokens, larger weights", within=(0.001, 1)
    )


@dataclass
class PosteriorConfig:
    """What is remembered of how often prompts were answered correctly."""

    memory: float = setting(0.95, "share of older counts kept at each update; 1: all", above=0, at_most=1)
    prior_groups: float = setting(8.0, "groups of a task that count as much as the prior above it", above=0)
    max_prompts: int = setting(50_000, "prompts remembered; the least recently seen are dropped", at_least=1)


@dataclass
class CoverageConfig:
    """When pass@1 is bought with pass@k, the largest k that groups have."""

    window: int = setting(20, "steps at the start of a run, and newest ones, that are compared", at_least=2)
    max_fall: float | None = setting(
        0.05, "fall of pass@k, while pass@1 rises, above which a warning is logged; null: never", within=(0, 1)
    )


@dataclass
class PoolConfig:
    """Which prompts are asked (`rollouts/prompt_pool.py`)."""

    enabled: bool = setting(
        False, "prompts that probably teach nothing are mostly passed over, without sampling; the others weigh more"
    )
    min_probability: float = setting(
        0.25,
        "probability to ask a prompt whatever is believed of it; lower: fewer samples, larger weights",
        within=(0.01, 1),
    )
    full_above: float = setting(
        0.5, "chance of an informative group from which on a prompt is always asked", within=(0.01, 1)
    )
    retire_from: float | None = setting(
        None,
        "share of a prompt's own rollouts, over all steps it is remembered of, that were correct, from which on it is "
        "not asked: another objective, no weight makes up for it; null: never",
        above=0,
        at_most=1,
    )
    recheck: float = setting(
        0.25,
        "share of a step's prompts that are retired ones, asked again: notices forgetting; 0: they stay retired",
        within=(0, 0.9),
    )


@dataclass
class RolloutsConfig:
    """How many, and how they are drawn."""

    num_per_prompt: int = setting(512, "N, the scaling axis", at_least=2)
    prompts_per_step: int = setting(16, "prompts that a step learns from", at_least=1, may_change=True)
    chunk_size: int = setting(64, "rollouts of a prompt that one engine samples in one request", at_least=1)
    temperature: float = setting(1.0, "divisor of the logits that tokens are drawn from", above=0)
    top_p: float = setting(1.0, "share of the probability mass that tokens are drawn from", above=0, at_most=1)
    max_response_tokens: int = setting(32, "tokens of a response at most; a longer one is truncated", at_least=1)
    max_turn_tokens: int | None = setting(
        None,
        "tokens sampled in one turn of an environment's trajectory; null: max_response_tokens bounds them all",
        at_least=1,
    )
    allocation: str = setting(
        "fixed",
        "fixed: N rollouts of every prompt (BroRL); waves: up to N, more where they teach",
        choices=("fixed", "waves"),
    )
    waves: WavesConfig = section(WavesConfig)
    posterior: PosteriorConfig = section(PosteriorConfig)
    pool: PoolConfig = section(PoolConfig)
    coverage: CoverageConfig = section(CoverageConfig)
    save_samples: int = setting(4, "rollouts per step written as text to the run folder; 0: none", at_least=0)
    deadline_s: float | None = setting(
        None,
        "seconds from the beginning of a chunk, or a turn of it, until what is unfinished of it is cut; null: never",
        above=0,
    )
    step_deadline_s: float | None = setting(
        None, "seconds of filling a batch: then all is cut and the step learns from what there is; null: never", above=0
    )
    min_fraction: float = setting(
        1.0, "share of a group's rollouts that must end for it to close when the others are cut", above=0, at_most=1
    )
    unfinished: str = setting(
        "drop", "resume: what was cut goes on in the next step, under its newer weights", choices=("drop", "resume")
    )
    overlap: bool = setting(False, "the next batch is sampled while the policy learns (one step off-policy)")
    schedule: ScheduleConfig = section(ScheduleConfig)
    placement: PlacementConfig = section(PlacementConfig)

    def violations(self) -> Iterator[str]:
        yield from self.schedule.violations()
        stages = self.schedule.stages
        if self.schedule.kind in ("staged", "budget") and stages and stages[0].num_per_prompt != self.num_per_prompt:
            yield (
                f"rollouts.num_per_prompt={self.num_per_prompt} and the first stage's num_per_prompt="
                f"{stages[0].num_per_prompt} differ: write the same number in both"
            )


@dataclass
class DynamicSamplingConfig:
    """Keep informative groups only."""

    enabled: bool = setting(True, "false: every group is taught, informative or not")
    fill: str = setting(
        "full",
        "what ends a step's sampling, of rollouts.prompts_per_step groups: full: so many informative ones; samples: so "
        "many sampled; at_least: so many sampled, and min_groups informative",
        choices=("full", "samples", "at_least"),
    )
    mean_over: str = setting(
        "sampled",
        "groups that a loss is the mean over where batches vary in size: sampled: all of the step; batch: those learnt "
        "from",
        choices=("sampled", "batch"),
    )
    min_groups: int = setting(1, "informative groups that a step under fill=at_least samples on for", at_least=1)
    min_reward_range: float = setting(
        0.0, "difference of best and worst raw reward for a group to be informative; 0: any", within=(0, 1)
    )
    max_sampled: float = setting(
        10.0, "groups of a step at most, times the groups it wants; then it counts as starved", at_least=1
    )
    order: str = setting(
        "prompt",
        "prompt: groups are judged in the order of their prompts, reproducibly; completion: as they close",
        choices=("prompt", "completion"),
    )
    oversample: float = setting(1.0, "groups in flight, times what the keep rate says is needed", at_least=1)
    in_flight: str = setting(
        "finish",
        "what becomes of a full batch's surplus: resume (next step, partial), restart (next step, anew)",
        choices=("finish", "resume", "restart", "drop"),
    )
    carry_over: bool = setting(True, "surplus informative groups serve the next step")
    max_staleness: int = setting(1, "updates a carried group may lag behind", at_least=0)
