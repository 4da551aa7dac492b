"""Rules between sections, and the check of all rules.

A rule is a function that yields messages: what is wrong, its value, what to write instead. Rules within one section are
its `violations`; those that need the model's config.json are in `cluster/fit/memory.py`.

Most say "A needs B" and are rows of `NEEDS`. A condition there is a setting, a sign and a value,
`rollouts.top_p<1`; `a|b` is either of two values.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import yaml

from nemo_brorl.config.algorithm import ADVANTAGES_BY_WAVE
from nemo_brorl.config.declare import wrong_values
from nemo_brorl.config.derived import (
    benchmark_limits,
    data_parallel_size,
    longest_response,
    max_model_len,
    model_parallel_size,
    num_engines,
    num_gpus,
    num_policy_ranks,
    overlaps_gradients,
    parity_bound,
    stage_sizes,
)
from nemo_brorl.config.named_verifiers import services_are_set_as_endpoints
from nemo_brorl.config.schema import BroRLConfig, as_yaml, settings
from nemo_brorl.core.environment_values import hidden
from nemo_brorl.core.errors import ConfigError

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

BF16_PARITY_BOUND = 0.02  # nats; bf16 alone makes log-probs differ by more than a tighter bound allows
MIN_CPU_HEAD_DIM = 32  # vLLM's CPU attention has no kernel for less


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


def check_rules(config: BroRLConfig) -> None:
    """Raise one ConfigError with every violated rule. Single values come first: rules divide by what they guard."""
    _raise_all(wrong_values(config), config)
    _raise_all(violations(config), config)


def violations(config: BroRLConfig) -> Iterator[str]:
    """One message for every rule that is broken."""
    for field in dataclasses.fields(config):
        section = getattr(config, field.name)
        if hasattr(section, "violations"):
            yield from section.violations()
    yield from unmet(config)
    for rule in RULES:
        yield from rule(config)


def check_demonstrations(config: BroRLConfig) -> None:
    """A demonstration that calls a calculator must be answered by one."""
    _raise_all(unmet(config, SFT_NEEDS), config)


def _raise_all(messages: Iterable[str], config: BroRLConfig) -> None:
    """Raise one ConfigError with all messages, which show environment variables by name, never their values."""
    found = [hidden(message, config) for message in messages]
    if len(found) == 1:
        raise ConfigError(found[0])
    if found:
        raise ConfigError(f"{len(found)} settings are wrong:\n" + "\n".join(f"  - {message}" for message in found))


def groups_fill_mini_batches(config: BroRLConfig) -> Iterator[str]:
    mini_batches, replicas = config.algorithm.num_mini_batches, data_parallel_size(config)
    trained = config.algorithm.train_rollouts
    for sampled, prompts in stage_sizes(config):
        num = sampled if trained is None else min(sampled, trained)
        name = "rollouts.num_per_prompt" if num == sampled else "algorithm.train_rollouts"
        samples = num * prompts
        shape = f"{name} × rollouts.prompts_per_step = {num} × {prompts} = {samples}"
        if samples % mini_batches:
            fitting = max(divisor for divisor in range(1, mini_batches + 1) if samples % divisor == 0)
            yield (
                f"algorithm.num_mini_batches={mini_batches} does not divide {shape}: write "
                f"algorithm.num_mini_batches={fitting}"
            )
        elif samples // mini_batches < replicas:
            yield (
                f"{shape} in {mini_batches} mini-batches leaves {samples // mini_batches} rollouts for {replicas} "
                "data-parallel ranks: lower algorithm.num_mini_batches or raise rollouts.prompts_per_step"
            )


def groups_are_large_enough(config: BroRLConfig) -> Iterator[str]:
    algorithm, least = config.algorithm, config.dynamic_sampling.min_groups
    sizes = stage_sizes(config) or [(config.rollouts.num_per_prompt, least)]
    fewest = min(prompts for _, prompts in sizes)
    if least > fewest:
        yield (
            f"dynamic_sampling.min_groups={least} is more than the {fewest} groups that a step samples: write {fewest} "
            "or less, or dynamic_sampling.fill=full"
        )
    smallest = min(num for num, _ in sizes)
    smallest = min(smallest, algorithm.train_rollouts or smallest)
    if algorithm.advantage == "pass_at_k" and algorithm.pass_at_k > smallest:
        yield (
            f"algorithm.pass_at_k={algorithm.pass_at_k} is more than N = {smallest} rollouts of a group: write "
            f"{smallest} or less"
        )


def first_wave_fits(config: BroRLConfig) -> Iterator[str]:
    first, sizes = config.rollouts.waves.first_wave, stage_sizes(config)
    if config.rollouts.allocation != "waves" or not sizes:
        return
    largest = max(num for num, _ in sizes)
    if largest - first < first / 2:
        yield (
            f"rollouts.waves.first_wave={first} leaves less than half a wave to decide about with N = {largest}: write "
            f"for example rollouts.waves.first_wave={max(2, largest // 8)}, or rollouts.allocation=fixed"
        )
    mini_batches, replicas = config.algorithm.num_mini_batches, data_parallel_size(config)
    fewest = min(min(first, num) * prompts for num, prompts in sizes)
    if fewest < mini_batches * replicas:
        yield (
            f"a step may sample no more than its first waves, {fewest} rollouts, which cannot fill "
            f"algorithm.num_mini_batches={mini_batches} on {replicas} data-parallel ranks: raise "
            "rollouts.waves.first_wave or rollouts.prompts_per_step"
        )


def questions_are_there(config: BroRLConfig) -> Iterator[str]:
    """With benchmarks, `evaluate` never opens data; training says what is missing when it opens its files."""
    if not config.evaluation.benchmarks:
        for where, source in config.data.sources():
            yield from source.missing(where)
    for where, benchmark in config.evaluation.selected():
        if benchmark.source == "reasoning_gym" and config.data.held_out_fraction == 0:
            yield (
                f"{where} asks questions held out of training, and data.held_out_fraction=0: write a share above 0, "
                "for example 0.1"
            )


def lengths_fit(config: BroRLConfig) -> Iterator[str]:
    room, prompt, response = max_model_len(config), config.data.max_prompt_tokens, longest_response(config)
    if prompt + response > room:
        yield (
            f"generation.max_model_len={room} is less than data.max_prompt_tokens + the longest response = {prompt} + "
            f"{response}: write generation.max_model_len={prompt + response} or shorten rollouts.max_response_tokens"
        )
    for where, benchmark in config.evaluation.selected():
        limits = benchmark_limits(config, benchmark)
        asked = limits.max_prompt_tokens + limits.max_response_tokens
        if asked > room:
            yield (
                f"generation.max_model_len={room} is less than what {where} ({benchmark.name}) asks for, "
                f"{limits.max_prompt_tokens} tokens for the prompt + {limits.max_response_tokens} for the response: "
                f"write generation.max_model_len={asked}, or shorten {where}.max_prompt_tokens or "
                f"{where}.max_response_tokens"
            )
    trained, ranks = prompt + config.rollouts.max_response_tokens, config.policy.context_parallel_size
    given = config.policy.tokens_per_micro_batch
    if given is not None and trained > given * ranks:
        yield (
            f"policy.tokens_per_micro_batch={given} × policy.context_parallel_size={ranks} cannot hold one prompt and "
            f"response of {trained} tokens: write {-(-trained // ranks)} or more"
        )
    buffer, limit = config.rewards.shaping.overlong_buffer, config.rollouts.max_response_tokens
    if buffer >= limit:
        yield (
            f"rewards.shaping.overlong_buffer={buffer} is not shorter than rollouts.max_response_tokens={limit}: every "
            f"response would be punished; write for example {max(1, limit // 4)}, or 0 to turn it off"
        )


def policy_fills_its_devices(config: BroRLConfig) -> Iterator[str]:
    gpus, model_size, ranks = num_gpus(config), model_parallel_size(config), num_policy_ranks(config)
    is_chosen_later = gpus == 0 and config.policy.data_parallel_size is None
    experts, stage = config.policy.expert_model_parallel_size, ranks // config.policy.pipeline_model_parallel_size
    if stage % experts and not is_chosen_later:
        yield (
            f"policy.expert_model_parallel_size={experts} must divide the TP × CP × DP = {stage} ranks of a pipeline "
            "stage, from which it takes its ranks: write a divisor, or raise policy.data_parallel_size"
        )
    if gpus == 0:
        if not is_chosen_later and config.trainer.num_nodes > min(ranks, num_engines(config)):
            yield (
                f"trainer.num_nodes={config.trainer.num_nodes} with {ranks} policy ranks and {num_engines(config)} "
                "engines on CPU: a node would have none of them; lower it, or raise policy.data_parallel_size and "
                "generation.num_engines"
            )
    elif model_size > gpus:
        yield (
            f"a policy replica needs TP × PP × CP = {model_size} GPUs and the run has {gpus} (trainer.num_nodes × "
            "trainer.gpus_per_node): lower policy.tensor_model_parallel_size or policy.pipeline_model_parallel_size"
        )
    elif config.generation.placement == "colocated" and ranks != gpus:
        yield (
            f"{gpus} GPUs cannot be filled by {data_parallel_size(config)} policy replicas of TP × PP × CP = "
            f"{model_size}: choose sizes whose product is the number of GPUs, and leave policy.data_parallel_size=null"
        )


def engines_fill_their_devices(config: BroRLConfig) -> Iterator[str]:
    gpus, generation, for_policy = num_gpus(config), config.generation, 0
    degree, on_node = generation.tensor_parallel_size, config.trainer.gpus_per_node
    if gpus == 0:
        return
    if on_node % degree:
        yield (
            f"generation.tensor_parallel_size={degree} does not divide trainer.gpus_per_node={on_node}, and an engine "
            "must be on one node: write a divisor"
        )
    if generation.placement == "disaggregated":
        if config.policy.data_parallel_size is None and generation.num_engines is None:
            yield (
                "generation.placement=disaggregated does not share out the GPUs: write generation.num_engines or "
                "policy.data_parallel_size"
            )
            return
        for_policy = num_policy_ranks(config)
    wanted, left = num_engines(config) * degree, gpus - for_policy
    if for_policy and wanted < left:
        yield (
            f"the policy takes {for_policy} GPUs and generation {wanted}, which leaves {left - wanted} of {gpus} idle: "
            "change generation.num_engines, generation.tensor_parallel_size or policy.data_parallel_size"
        )
    if wanted > left:
        yield (
            f"generation.num_engines={num_engines(config)} × generation.tensor_parallel_size={degree} = {wanted} GPUs "
            f"and {left} are there for generation: write generation.num_engines=null to fill them"
        )
    if on_node % degree == 0 and for_policy % degree:
        yield (
            f"the policy takes the first {for_policy} GPUs, and engines of generation.tensor_parallel_size={degree} "
            f"fill nodes of {on_node} only after a multiple of {degree}: change policy.data_parallel_size or "
            "generation.tensor_parallel_size"
        )


def kernels_exist(config: BroRLConfig) -> Iterator[str]:
    engine_args, is_on_gpu = config.generation.engine_args, num_gpus(config) > 0
    size, unit, device = config.generation.block_size, 32, "CPU"
    if is_on_gpu:
        unit, device = 16, "GPU"
    if size % unit:
        fitting = max(unit, size // unit * unit)
        yield f"generation.block_size={size} must be a multiple of {unit} on {device}: write {fitting}"
    quantises = "generation.engine_args quantises what samples (quantization, kv_cache_dtype)"
    if config.generation.is_quantised and not is_on_gpu:
        yield f"{quantises}, which needs GPUs: leave it out on CPU"
    if config.generation.is_quantised and not config.algorithm.importance_correction.enabled:
        yield (
            f"{quantises}, so rollouts are not of the policy that learns from them: write "
            "algorithm.importance_correction.enabled=true"
        )
    if engine_args.get("speculative_config") is not None and not is_on_gpu:
        yield (
            "generation.engine_args.speculative_config needs GPUs: with drafts, some log-probs of vLLM's CPU build are "
            "not finite; leave it out on CPU"
        )
    head_dim, rest = divmod(config.sft.hidden_size, config.sft.num_attention_heads)
    if rest == 0 and head_dim < MIN_CPU_HEAD_DIM and not is_on_gpu:
        yield (
            f"sft.hidden_size={config.sft.hidden_size} over sft.num_attention_heads={config.sft.num_attention_heads} "
            f"gives heads of {head_dim}, and vLLM's CPU build needs {MIN_CPU_HEAD_DIM}: write fewer heads"
        )


def precision_and_overlap_are_possible(config: BroRLConfig) -> Iterator[str]:
    """Weights overlap where gradients do by Megatron's own rule (Megatron-LM, arguments.py)."""
    policy, parity, chosen = config.policy, config.parity, config.policy.overlap_grad_reduce
    is_bf16 = "bf16" in (policy.precision, config.generation.precision)
    if parity.enabled and is_bf16 and parity_bound(config) < BF16_PARITY_BOUND:
        yield (
            f"parity.max_mean_abs_diff={parity.max_mean_abs_diff} is tighter than bf16 can meet: write "
            "parity.max_mean_abs_diff=auto, which is 0.05, or fp32 for policy.precision and generation.precision"
        )
    if policy.overlap_param_gather and not overlaps_gradients(config):
        yield (
            "policy.overlap_param_gather=true needs gradients that overlap, and "
            f"policy.overlap_grad_reduce={as_yaml(chosen)} has them reduced in one piece here: write "
            "policy.overlap_grad_reduce=true, or policy.overlap_param_gather=false"
        )


RULES: tuple[Callable[[BroRLConfig], Iterator[str]], ...] = (
    groups_fill_mini_batches,
    groups_are_large_enough,
    first_wave_fits,
    questions_are_there,
    services_are_set_as_endpoints,
    lengths_fit,
    policy_fills_its_devices,
    engines_fill_their_devices,
    kernels_exist,
    precision_and_overlap_are_possible,
)
