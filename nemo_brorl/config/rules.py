"""What must fit together, each rule a small function that yields messages: what is wrong, its value, what to write
instead.

All violated rules are reported together. Rules that need the model's config.json are in `model_rules.py`, memory in
`memory.py`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator

from nemo_brorl.config.data_rules import DATA_RULES
from nemo_brorl.config.derived import (
    TIME_LIMIT,
    data_parallel_size,
    longest_response,
    model_parallel_size,
    num_engines,
    num_gpus,
    num_policy_ranks,
)
from nemo_brorl.config.evaluation_rules import EVALUATION_RULES
from nemo_brorl.config.fp8_rules import fp8_goes_together
from nemo_brorl.config.generation_rules import GENERATION_RULES
from nemo_brorl.config.policy_rules import fp8_weights_have_no_reference, offload_frees_something, reference_resets
from nemo_brorl.config.ranges import out_of_range, unknown_choices
from nemo_brorl.config.reward_rules import REWARD_RULES
from nemo_brorl.config.rollout_rules import ROLLOUT_RULES
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError

BF16_PARITY_BOUND = 0.02  # nats; bf16 alone makes log-probs differ by more than a tighter bound allows

Rule = Callable[[BroRLConfig], Iterator[str]]


def check_rules(config: BroRLConfig) -> None:
    """Raise one ConfigError with every violated rule. Ranges come first: cross-field rules divide by what they
    guard."""
    _raise_all([message for rule in SINGLE_SETTINGS for message in rule(config)])
    _raise_all([message for rule in CROSS_FIELD for message in rule(config)])


def check_sft_rules(config: BroRLConfig) -> None:
    """What only the warm-up needs: its model must hold a prompt and a response."""
    longest = config.data.max_prompt_tokens + config.rollouts.max_response_tokens
    if longest > config.sft.max_position_embeddings:
        raise ConfigError(
            f"sft.max_position_embeddings={config.sft.max_position_embeddings} is less than data.max_prompt_tokens + "
            f"rollouts.max_response_tokens = {longest}: write sft.max_position_embeddings={longest} or more"
        )


MIN_CPU_HEAD_DIM = 32  # vLLM's CPU attention has no kernel for less


def _raise_all(found: list[str]) -> None:
    if len(found) == 1:
        raise ConfigError(found[0])
    if found:
        raise ConfigError(f"{len(found)} settings are wrong:\n" + "\n".join(f"  - {message}" for message in found))


def betas(config: BroRLConfig) -> Iterator[str]:
    pair = config.policy.optim.betas
    if len(pair) != 2 or not all(0 <= beta < 1 for beta in pair):
        yield f"policy.optim.betas={list(pair)} must be two numbers in [0, 1): write policy.optim.betas=[0.9,0.95]"


def time_limit_format(config: BroRLConfig) -> Iterator[str]:
    limit = config.trainer.time_limit
    if limit is not None and not TIME_LIMIT.fullmatch(limit):
        yield f'trainer.time_limit={limit} is not HH:MM:SS: write "04:00:00" for four hours (with quotes in YAML)'


def stall_times(config: BroRLConfig) -> Iterator[str]:
    warning, timeout = config.trainer.stall_warning_s, config.trainer.stall_timeout_s
    if timeout is not None and timeout < warning:
        yield (
            f"trainer.stall_timeout_s={timeout:g} is before trainer.stall_warning_s={warning:g}: write at least "
            f"{warning:g}, or null"
        )


def world_size(config: BroRLConfig) -> Iterator[str]:
    gpus, model_size, ranks = num_gpus(config), model_parallel_size(config), num_policy_ranks(config)
    if gpus == 0 and config.trainer.num_nodes > min(ranks, num_engines(config)):
        yield (
            f"trainer.num_nodes={config.trainer.num_nodes} with {ranks} policy ranks and {num_engines(config)} "
            f"engines on CPU: a node would"
            " have none of them; lower it, or raise policy.data_parallel_size and generation.num_engines"
        )
    if gpus == 0:
        return
    if model_size > gpus:
        yield (
            f"a policy replica needs TP × PP × CP = {model_size} GPUs and the run has {gpus} (trainer.num_nodes × "
            "trainer.gpus_per_node): lower policy.tensor_model_parallel_size or policy.pipeline_model_parallel_size"
        )
    elif config.generation.placement == "colocated" and ranks != gpus:
        yield (
            f"{gpus} GPUs cannot be filled by {data_parallel_size(config)} policy replicas of TP × PP × CP = "
            f"{model_size}: choose "
            "sizes whose product is the number of GPUs, and leave policy.data_parallel_size=null"
        )


def engines_fit(config: BroRLConfig) -> Iterator[str]:
    gpus, generation = num_gpus(config), config.generation
    if gpus == 0 and generation.tensor_parallel_size > 1:
        yield (
            f"generation.tensor_parallel_size={generation.tensor_parallel_size} needs GPUs: on CPU write 1 and raise "
            f"generation.num_engines"
        )
    if gpus == 0:
        return
    if (
        generation.placement == "disaggregated"
        and config.policy.data_parallel_size is None
        and generation.num_engines is None
    ):
        yield (
            "generation.placement=disaggregated does not share out the GPUs: write generation.num_engines or "
            "policy.data_parallel_size"
        )
        return
    for_policy = num_policy_ranks(config) if generation.placement == "disaggregated" else 0
    wanted = num_engines(config) * generation.tensor_parallel_size
    if generation.placement == "disaggregated" and for_policy + wanted < gpus:
        yield (
            f"the policy takes {for_policy} GPUs and generation {wanted}, which leaves {gpus - for_policy - wanted} "
            f"of {gpus} idle: "
            "change generation.num_engines, generation.tensor_parallel_size or policy.data_parallel_size"
        )
    if wanted > gpus - for_policy:
        yield (
            f"generation.num_engines={num_engines(config)} × "
            f"generation.tensor_parallel_size={generation.tensor_parallel_size} = "
            f"{wanted} GPUs and {gpus - for_policy} are there for generation: write generation.num_engines=null to "
            f"fill them"
        )


def attention_backend(config: BroRLConfig) -> Iterator[str]:
    if config.policy.attention == "flex" and num_gpus(config) == 0:
        yield "policy.attention=flex needs GPUs (FlexAttention has no backward pass on CPU): on CPU write auto or sdpa"


def parallel_layout(config: BroRLConfig) -> Iterator[str]:
    policy = config.policy
    if policy.sequence_parallel and policy.tensor_model_parallel_size == 1:
        yield (
            "policy.sequence_parallel=true splits activations over tensor-parallel ranks and "
            "policy.tensor_model_parallel_size is 1: "
            "write policy.sequence_parallel=false"
        )
    virtual = policy.virtual_pipeline_model_parallel_size
    if virtual is not None and policy.pipeline_model_parallel_size == 1:
        yield (
            f"policy.virtual_pipeline_model_parallel_size={virtual} needs policy.pipeline_model_parallel_size > 1: "
            f"write null, or "
            "raise policy.pipeline_model_parallel_size"
        )


def expert_parallel(config: BroRLConfig) -> Iterator[str]:
    policy, stage = config.policy, num_policy_ranks(config) // config.policy.pipeline_model_parallel_size
    if stage % policy.expert_model_parallel_size:
        yield (
            f"policy.expert_model_parallel_size={policy.expert_model_parallel_size} must divide the TP × CP × DP = "
            f"{stage} ranks of a "
            "pipeline stage, from which it takes its ranks: write a divisor, or raise policy.data_parallel_size"
        )
    if policy.moe.freeze_router and policy.moe.aux_loss_coefficient > 0:
        yield (
            f"policy.moe.aux_loss_coefficient={policy.moe.aux_loss_coefficient} trains the router and "
            f"policy.moe.freeze_router=true keeps "
            "it as it is: write policy.moe.aux_loss_coefficient=0 or policy.moe.freeze_router=false"
        )


def wandb_is_usable(config: BroRLConfig) -> Iterator[str]:
    if not config.exp_manager.create_wandb_logger:
        return
    if not {"name", "project"} <= config.exp_manager.wandb_logger_kwargs.keys():
        yield (
            "exp_manager.create_wandb_logger=true needs exp_manager.wandb_logger_kwargs.project and .name: write for "
            "example "
            "exp_manager.wandb_logger_kwargs.project=brorl exp_manager.wandb_logger_kwargs.name=first"
        )
    if importlib.util.find_spec("wandb") is None:
        yield (
            "exp_manager.create_wandb_logger=true needs the package wandb, which is not installed: pip install "
            "wandb, or write false"
        )


def block_size(config: BroRLConfig) -> Iterator[str]:
    size, unit = config.generation.block_size, 16 if num_gpus(config) else 32
    if size % unit:
        device = "GPU" if num_gpus(config) else "CPU"
        yield (
            f"generation.block_size={size} must be a multiple of {unit} on {device}: write "
            f"{max(unit, size // unit * unit)}"
        )


def lengths(config: BroRLConfig) -> Iterator[str]:
    prompt, response, limit = config.data.max_prompt_tokens, longest_response(config), config.generation.max_model_len
    if prompt + response > limit:
        yield (
            f"generation.max_model_len={limit} is less than data.max_prompt_tokens + the longest response = {prompt} "
            f"+ {response}: "
            f"write generation.max_model_len={prompt + response} or shorten rollouts.max_response_tokens"
        )
    trained = prompt + config.rollouts.max_response_tokens
    ranks = config.policy.context_parallel_size
    if trained > config.policy.tokens_per_micro_batch * ranks:
        on_ranks = f" on each of {ranks} context-parallel ranks" if ranks > 1 else ""
        yield (
            f"policy.tokens_per_micro_batch={config.policy.tokens_per_micro_batch}{on_ranks} cannot hold one prompt "
            f"and response of "
            f"{trained} tokens: write {-(-trained // ranks)} or more"
        )


def parity_bound(config: BroRLConfig) -> Iterator[str]:
    is_bf16 = "bf16" in (config.policy.precision, config.generation.precision)
    if config.parity.enabled and is_bf16 and config.parity.max_mean_abs_diff < BF16_PARITY_BOUND:
        yield (
            f"parity.max_mean_abs_diff={config.parity.max_mean_abs_diff} is tighter than bf16 can meet: write "
            "parity.max_mean_abs_diff=0.05, or fp32 for policy.precision and generation.precision"
        )


def sft_shape(config: BroRLConfig) -> Iterator[str]:
    sft = config.sft
    if sft.hidden_size % sft.num_attention_heads:
        yield f"sft.hidden_size={sft.hidden_size} is not divisible by sft.num_attention_heads={sft.num_attention_heads}"
    elif num_gpus(config) == 0 and sft.hidden_size // sft.num_attention_heads < MIN_CPU_HEAD_DIM:
        yield (
            f"sft.hidden_size={sft.hidden_size} over sft.num_attention_heads={sft.num_attention_heads} gives heads of"
            f" {sft.hidden_size // sft.num_attention_heads}, and vLLM's CPU build needs {MIN_CPU_HEAD_DIM}: write "
            f"fewer heads"
        )
    if sft.num_attention_heads % sft.num_key_value_heads:
        yield (
            f"sft.num_attention_heads={sft.num_attention_heads} is not divisible by "
            f"sft.num_key_value_heads={sft.num_key_value_heads}"
        )
    if not sft.min_pass_at_1 <= sft.target_pass_at_1 <= sft.max_pass_at_1:
        yield (
            f"sft.target_pass_at_1={sft.target_pass_at_1} is outside sft.min_pass_at_1={sft.min_pass_at_1} … "
            f"sft.max_pass_at_1={sft.max_pass_at_1}: write a target between them"
        )


SINGLE_SETTINGS: tuple[Rule, ...] = (out_of_range, unknown_choices, betas, time_limit_format)
CROSS_FIELD: tuple[Rule, ...] = (
    *ROLLOUT_RULES,
    stall_times,
    world_size,
    engines_fit,
    *GENERATION_RULES,
    attention_backend,
    parallel_layout,
    expert_parallel,
    wandb_is_usable,
    fp8_goes_together,
    block_size,
    lengths,
    *DATA_RULES,
    *REWARD_RULES,
    *EVALUATION_RULES,
    parity_bound,
    sft_shape,
    reference_resets,
    offload_frees_something,
    fp8_weights_have_no_reference,
)
