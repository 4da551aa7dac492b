"""Rules that say "A needs B", whichever sections A and B are of.

A condition is a setting, a sign and a value, `rollouts.top_p<1`; `a|b` is either of two values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import yaml

from nemo_brorl.config.algorithm import ADVANTAGES_BY_WAVE
from nemo_brorl.config.schema import BroRLConfig, as_yaml, settings

CONDITION = re.compile(r"([\w.]+)(!=|=|>|<)(.+)")
SIGNS = {"=": "=", "!=": " other than ", ">": " above ", "<": " below "}

GPUS = "trainer.gpus_per_node>0"
OLDER = "dynamic_sampling.max_staleness>0 and algorithm.importance_correction.enabled=true"
REFERENCE = "algorithm.kl.coefficient>0"
REFERENCE_OR_OPTIMIZER = f"{REFERENCE} or algorithm.reference_reset.clear_optimizer=true"

# What works only where something else holds, and why: the sentence that the first begins. Conditions joined by ` and `
# are all given, or all needed; of those joined by ` or ` one is.
NEEDS = {
    "profile.kind=nsys": {GPUS: "records what GPUs do"},
    "profile.kind!='off'": {"profile.steps!=[] and profile.ranks!=[]": "is of some steps and ranks"},
    "profile.memory_snapshot=true": {GPUS: "is of GPU memory"},
    "timeline.opentelemetry=true": {"timeline.enabled=true": "hands on what the timeline has"},
    "policy.sequence_parallel=true": {"policy.tensor_model_parallel_size>1": "splits activations over such ranks"},
    "policy.virtual_pipeline_model_parallel_size!=null": {
        "policy.pipeline_model_parallel_size>1": "cuts stages of a pipeline into chunks"
    },
    "policy.moe.aux_loss_coefficient>0": {"policy.moe.freeze_router=false": "trains the router"},
    "policy.moe.fused_permutation=true": {GPUS: "takes Transformer Engine's kernels"},
    "policy.attention=flash|flex": {GPUS: "has kernels for GPUs"},
    "policy.attention=flash": {"policy.precision=bf16": "takes bf16"},
    "policy.overlap_param_gather=true": {
        "policy.fp8_params=false": "would leave copies that are made of FP8 weights after a gather as they were"
    },
    f"policy.fp8!=null and {GPUS}": {"policy.precision=bf16": "trains on top of bf16"},
    "policy.fp8_recipe=delayed and policy.fp8!=null": {
        "policy.fp8_bf16_first_layers=0 and policy.fp8_bf16_last_layers=0": "takes its scales over all layers at once"
    },
    "policy.fp8_params=true and policy.fp8!=null": {
        GPUS: "keeps weights in FP8, which is emulated on CPU with weights as they are",
        "algorithm.kl.coefficient=0": "keeps weights in FP8, which no KL reference can be exchanged with unrounded",
    },
    "policy.offload!=none": {f"{GPUS} and generation.placement=colocated": "makes room for engines on the same GPUs"},
    "generation.tensor_parallel_size>1": {GPUS: "is of GPUs (on CPU raise generation.num_engines)"},
    "generation.sleep!='off'": {"generation.placement=colocated": "makes room for the policy on the same devices"},
    "generation.max_residual_gib!=null": {"generation.sleep!='off'": "limits what sleeping engines hold"},
    "generation.weight_transport=cuda_ipc": {
        f"{GPUS} and generation.placement=colocated": "shares memory of the GPUs that policy and engines are on"
    },
    f"generation.weight_transport=collective and {GPUS}": {
        "generation.placement=disaggregated": "is NCCL, which refuses two processes on one GPU"
    },
    "rollouts.schedule.kind=on_plateau": {"trainer.val_interval>0": "looks at validations"},
    "rollouts.min_fraction<1": {
        "rollouts.deadline_s!=null or rollouts.step_deadline_s!=null": "acts where a deadline cuts rollouts"
    },
    "rollouts.top_p<1": {
        "algorithm.importance_correction.enabled=false": "cuts the distribution that a correction would compare"
    },
    "rollouts.overlap=true": {
        OLDER: "learns from rollouts of older weights",
        "policy.offload=none and generation.sleep='off'": "lets no role wait for another's turn",
    },
    f"rollouts.overlap=true and {GPUS}": {"generation.placement=disaggregated": "samples while the policy learns"},
    "rollouts.unfinished=resume": {OLDER: "learns from rollouts of older weights"},
    "rollouts.allocation=waves": {
        f"algorithm.advantage={'|'.join(ADVANTAGES_BY_WAVE)}": (
            "compares each wave with its own mean, and others mean something else for every size of a group"
        ),
        "algorithm.train_rollouts=null": "weighs all rollouts by how they came to be sampled",
        "algorithm.rare_success_exponent=0": "makes the share of correct rollouts depend on a group's size",
        "algorithm.credit!=turn": "compares each wave with itself, not turns with those of the whole group",
        "dynamic_sampling.in_flight!=restart|drop": "extends the groups that are still sampled when a batch is full",
        "dynamic_sampling.order=prompt or dynamic_sampling.carry_over=true": "extends the groups that close last",
    },
    "dynamic_sampling.in_flight=resume": {OLDER: "learns from rollouts of older weights"},
    "dynamic_sampling.fill!=full": {"dynamic_sampling.enabled=true": "asks for groups, informative or not"},
    "dynamic_sampling.min_groups>1": {"dynamic_sampling.fill=at_least": "is how many a step samples on for"},
    "dynamic_sampling.carry_over=true": {"dynamic_sampling.max_staleness>0": "keeps groups for a later update"},
    "algorithm.loss=gspo|gmpo": {
        "algorithm.aggregation!=token_mean": "takes a ratio of whole responses, not to be weighed by length"
    },
    "algorithm.credit=turn": {
        "algorithm.advantage!=opo|maxrl|pass_at_k": "compares returns of turns, not of whole responses"
    },
    "algorithm.turn_discount!=1": {"algorithm.credit!=outcome": "discounts rewards of turns"},
    "algorithm.kl.placement=reward": {
        REFERENCE: "takes the KL off the advantage",
        "algorithm.kl.estimator=k1": "has the gradient of the KL with one estimator alone",
    },
    "algorithm.covariance.kind=kl_cov": {
        "algorithm.num_mini_batches>1": "holds tokens near the policy before the update, where its first step starts"
    },
    "algorithm.reference_reset.kl_above!=null": {REFERENCE: "looks at the KL to a reference"},
    "algorithm.reference_reset.interval>0": {REFERENCE_OR_OPTIMIZER: "resets a reference"},
    "algorithm.reference_reset.patience>0": {REFERENCE_OR_OPTIMIZER: "resets a reference"},
}
# What the warm-up alone needs.
SFT_NEEDS = {"sft.calling_rate!=null": {"data.environment=calculator": "demonstrates calls of a calculator"}}


def unmet(config: BroRLConfig, needs: Mapping[str, Mapping[str, str]] = NEEDS) -> Iterator[str]:
    """One message for everything that is needed and missing: what needs it, its value, what to write instead."""
    for given_text, needed in needs.items():
        given = [Condition.of(text) for text in given_text.split(" and ")]
        if not all(condition.holds(config) for condition in given):
            continue
        subject = " with ".join(f"{condition.name}={condition.now(config)}" for condition in given)
        for text, why in needed.items():
            for wish in _missing(config, text):
                yield f"{subject} {why}, and needs {wish}: write that, or {given[0].taken_back()}"


def _missing(config: BroRLConfig, needed: str) -> Iterator[str]:
    for text in needed.split(" and "):
        choices = [Condition.of(one) for one in text.split(" or ")]
        if not any(condition.holds(config) for condition in choices):
            yield " or ".join(condition.wish(config) for condition in choices)


@dataclass(frozen=True)
class Condition:
    """A setting compared with values."""

    name: str
    sign: str
    values: list[Any]

    @classmethod
    def of(cls, text: str) -> Condition:
        match = CONDITION.fullmatch(text)
        assert match is not None, f"{text} is no condition"
        name, sign, written = match.groups()
        values = [yaml.safe_load(value) for value in written.split("|")]
        return cls(name, sign, values)

    def holds(self, config: BroRLConfig) -> bool:
        value = attrgetter(self.name)(config)
        if self.sign == ">":
            return bool(value > self.values[0])
        if self.sign == "<":
            return bool(value < self.values[0])
        return (value in self.values) == (self.sign == "=")

    def now(self, config: BroRLConfig) -> str:
        return as_yaml(attrgetter(self.name)(config))

    def wish(self, config: BroRLConfig) -> str:
        """What to write, and what stands there."""
        sign, values = self.sign, self.values
        choices = settings()[self.name].declared.choices
        if sign == "!=" and choices:
            sign, values = "=", [choice for choice in choices if choice not in self.values]
        written = " or ".join(as_yaml(value) for value in values)
        return f"{self.name}{SIGNS[sign]}{written} (now {self.now(config)})"

    def taken_back(self) -> str:
        """The setting so that the condition does not hold: its default, or the opposite."""
        is_default = self.values == [True] and settings()[self.name].default == "true"
        return f"{self.name}={'false' if is_default else settings()[self.name].default}"
