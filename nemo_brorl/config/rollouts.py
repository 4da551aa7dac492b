"""Declare settings of rollouts: their number, how they are sampled, and which groups are trained on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from nemo_brorl.config.declare import section, setting


@dataclass
class StageConfig:
    """One stage of a schedule of N, the rollouts per prompt."""

    num_per_prompt: int = setting(MISSING, "N of this stage", at_least=2)
    num_steps: int | None = setting(None, "steps of a stage under kind=staged; null: until the end", at_least=1)
    num_rollouts: int | None = setting(
        None,
        "rollouts sampled in a stage under kind=budget, including those not trained on; null: until the end",
        at_least=1,
    )


@dataclass
class PlateauConfig:
    """Test for stalled validation, over `window` validations and `patience` times in a row."""

    window: int = setting(16, "validations to which a slope is fitted", at_least=3)
    patience: int = setting(3, "stalled windows in a row before the next stage", at_least=1)
    confidence: float = setting(
        0.95,
        "confidence of either bound of the slope",
        within=(0.5, 0.9999),
    )
    min_gain: float = setting(
        0.0,
        "rise of pass@1 per validation that matters: stalled is a slope whose upper bound is below it; 0: a slope "
        "whose lower bound is not above 0",
        at_least=0,
    )


@dataclass
class ScheduleConfig:
    """Schedule of N, the rollouts per prompt, over a run."""

    kind: str = setting(
        "constant",
        "when N changes. constant: never; staged: after each stage's steps; budget: after each stage's "
        "rollouts; on_plateau: when validation stalls",
        choices=("constant", "staged", "budget", "on_plateau"),
    )
    stages: list[StageConfig] = setting([], "stages in order; empty under kind=constant")
    sample_budget: int | None = setting(
        None, "most rollouts in a step: prompts per step shrink as N grows; null: prompts per step stay", at_least=1
    )
    learning_rate_scaling: str = setting(
        "sqrt",
        "scaling of the learning rate with the rollouts of a step, relative to the first stage",
        choices=("sqrt", "linear", "constant"),
    )
    plateau: PlateauConfig = section(PlateauConfig)

    def violations(self) -> Iterator[str]:
        if self.kind == "constant" and self.stages:
            yield (
                f"rollouts.schedule.stages has {len(self.stages)} stages and rollouts.schedule.kind=constant uses "
                "none: set kind=staged, budget or on_plateau, or leave stages empty"
            )
        if self.kind != "constant" and not self.stages:
            yield (
                f"rollouts.schedule.kind={self.kind} has no stages: set for example "
                "rollouts.schedule.stages=[{num_per_prompt: 16, num_steps: 100}, {num_per_prompt: 512}]"
            )
        ends_by = {"staged": "num_steps", "budget": "num_rollouts"}
        for index, stage in enumerate(self.stages):
            for kind, name in ends_by.items():
                where, length = f"rollouts.schedule.stages.{index}.{name}", getattr(stage, name)
                if kind == self.kind and length is None and stage is not self.stages[-1]:
                    yield f"{where} is missing: only the last stage may go on to the end; set where this one ends"
                if kind != self.kind != "constant" and length is not None:
                    yield f"{where}={length} ends a stage of kind={kind}, not of kind={self.kind}: set null"


@dataclass
class PromptPoolConfig:
    """Choice of the stream's prompts that are sampled."""

    name: str | None = setting(
        None,
        "function that makes the prompt pool, as package.module:function, for example "
        "brorl_lab.prompt_pool:retiring_pool; null: every prompt is sampled",
    )
    params: dict[str, Any] = setting({}, "parameters of the function that makes the prompt pool, by name")


@dataclass
class RolloutsConfig:
    """Number of rollouts, and how they are sampled and cut."""

    num_per_prompt: int = setting(512, "number of rollouts per prompt, N in BroRL", at_least=2)
    prompts_per_step: int = setting(16, "prompts that a step trains on", at_least=1, may_change=True)
    chunk_size: int = setting(64, "rollouts of a prompt that one engine samples in one request", at_least=1)
    temperature: float = setting(1.0, "sampling temperature", above=0)
    top_p: float = setting(
        1.0, "nucleus sampling: share of the probability mass that tokens are sampled from", above=0, at_most=1
    )
    stop_tokens: list[str] = setting(
        [], "texts of further tokens that end a response, beside the model's own end tokens"
    )
    stop_strings: list[str] = setting(
        [], "texts that end a response once it holds one; their tokens were sampled and stay in the response"
    )
    max_response_tokens: int = setting(32, "longest response in tokens; longer ones are truncated", at_least=1)
    max_turn_tokens: int | None = setting(
        None,
        "most tokens sampled in one turn of an environment's trajectory; null: only max_response_tokens limits a turn",
        at_least=1,
    )
    prompt_pool: PromptPoolConfig = section(PromptPoolConfig)
    save_samples: int = setting(4, "responses of a step or validation that are written as text; 0: none", at_least=0)
    deadline_s: float | None = setting(
        None,
        "seconds from the start of a chunk, or of a turn of it, until its unfinished rollouts are cut; null: never",
        above=0,
    )
    step_deadline_s: float | None = setting(
        None,
        "seconds of filling a batch after which all rollouts are cut and the step trains on the finished "
        "ones; null: never",
        above=0,
    )
    min_fraction: float = setting(
        1.0,
        "share of a group's rollouts that must have ended for the group to close when the rest are cut",
        above=0,
        at_most=1,
    )
    unfinished: str = setting(
        "finish",
        "rollouts in flight when a batch is full. finish: they are sampled to the end, for the next step; "
        "resume: they are cut and resumed in the next step with its newer weights, like rollouts cut by a "
        "deadline; drop: they are cut and lost",
        choices=("finish", "resume", "drop"),
    )
    overlap: bool = setting(False, "sample the next batch while the policy trains (one step off-policy)")
    schedule: ScheduleConfig = section(ScheduleConfig)

    @property
    def stops(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Further stop tokens and stop strings, as `Sampling` takes them."""
        return tuple(self.stop_tokens), tuple(self.stop_strings)

    def stage_sizes(self) -> list[tuple[int, int]]:
        """Return N (rollouts per prompt) and prompts per step for every stage of the schedule that raises N.

        If a step has a budget of samples, the number of prompts shrinks as N grows.
        """
        numbers = [stage.num_per_prompt for stage in self.schedule.stages]
        if self.schedule.kind == "constant":
            numbers = [self.num_per_prompt]
        elif self.schedule.kind == "on_plateau":
            numbers.insert(0, self.num_per_prompt)
        sizes = []
        for num in numbers:
            prompts = self.prompts_per_step
            if self.schedule.sample_budget is not None:
                prompts = max(1, min(prompts, self.schedule.sample_budget // num))
            sizes.append((num, prompts))
        return sizes

    def stage_samples(self) -> list[int]:
        """Return the rollouts in one update, N × prompts, for every stage of the schedule that raises N."""
        return [num * prompts for num, prompts in self.stage_sizes()]

    def violations(self) -> Iterator[str]:
        yield from self.schedule.violations()
        if "" in (*self.stop_tokens, *self.stop_strings):
            yield "rollouts.stop_tokens and rollouts.stop_strings hold an empty text: leave it out"
        stages = self.schedule.stages
        if self.schedule.kind in ("staged", "budget") and stages and stages[0].num_per_prompt != self.num_per_prompt:
            yield (
                f"rollouts.num_per_prompt={self.num_per_prompt} and the first stage's num_per_prompt="
                f"{stages[0].num_per_prompt} differ: set the same number in both"
            )


@dataclass
class DynamicSamplingConfig:
    """Dynamic sampling, which trains on informative groups only: groups whose rewards differ."""

    enabled: bool = setting(True, "train on informative groups only, those whose rewards differ; false: on every group")
    fill: str = setting(
        "full",
        "rule that ends a step's sampling. With P = rollouts.prompts_per_step: full: after P informative "
        "groups; samples: after P groups, and more only while none is informative; at_least: after P "
        "groups, and more until min_groups are informative",
        choices=("full", "samples", "at_least"),
    )
    min_groups: int = setting(1, "smallest number of informative groups in a step under fill=at_least", at_least=1)
    min_reward_range: float = setting(
        0.0,
        "smallest difference between best and worst raw reward of an informative group, as a share of "
        "data.success_reward; 0: any difference",
        within=(0, 1),
    )
    max_sampled: float = setting(
        10.0,
        "most groups sampled in a step, as a multiple of the wanted groups; beyond it the step counts as starved",
        at_least=1,
    )
    max_staleness: int = setting(
        1,
        "most updates that an informative group beyond the batch may wait to be trained on; 0: it is dropped",
        at_least=0,
    )

    @property
    def varies(self) -> bool:
        """Whether the number of groups that a step trains on varies with their rewards."""
        return self.enabled and self.fill != "full"

    @property
    def least_range(self) -> float | None:
        """Smallest range of raw rewards for which a group is trained on. None: all groups are trained on."""
        return self.min_reward_range if self.enabled else None
