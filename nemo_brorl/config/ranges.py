"""What each single setting may be: the range of every number, the names of every choice.

The names of algorithms repeat the keys of dicts in modules that import torch; unit tests assert that they are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nemo_brorl.config.schema import BroRLConfig


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included unless said otherwise."""

    low: float
    high: float = math.inf
    is_open: bool = False  # low itself is refused

    def holds(self, value: float) -> bool:
        above = value > self.low if self.is_open else value >= self.low
        return above and value <= self.high and math.isfinite(value)

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"above {self.low:g}" if self.is_open else f"of at least {self.low:g}"
        return f"above {self.low:g}, at most {self.high:g}" if self.is_open else f"from {self.low:g} to {self.high:g}"


AT_LEAST_0 = Range(0)
AT_LEAST_1 = Range(1)
POSITIVE = Range(0, is_open=True)
SHARE = Range(0, 1)

RANGES: dict[str, Range] = {
    "trainer.max_steps": AT_LEAST_0,
    "trainer.num_nodes": AT_LEAST_1,
    "trainer.gpus_per_node": AT_LEAST_0,
    "trainer.seed": Range(0, 2**31 - 1),
    "trainer.val_interval": AT_LEAST_0,
    "trainer.save_interval": AT_LEAST_0,
    "trainer.keep_checkpoints": AT_LEAST_1,
    "trainer.stall_warning_s": POSITIVE,
    "trainer.stall_timeout_s": POSITIVE,
    "trainer.max_skipped_updates": AT_LEAST_0,
    "policy.tensor_model_parallel_size": AT_LEAST_1,
    "policy.pipeline_model_parallel_size": AT_LEAST_1,
    "policy.virtual_pipeline_model_parallel_size": Range(2),
    "policy.context_parallel_size": AT_LEAST_1,
    "policy.expert_model_parallel_size": AT_LEAST_1,
    "policy.data_parallel_size": AT_LEAST_1,
    "policy.tokens_per_micro_batch": AT_LEAST_1,
    "policy.log_prob_chunk_tokens": AT_LEAST_1,
    "policy.num_threads": AT_LEAST_1,
    "policy.fp8_amax_history": AT_LEAST_1,
    "policy.fp8_bf16_first_layers": AT_LEAST_0,
    "policy.fp8_bf16_last_layers": AT_LEAST_0,
    "policy.moe.aux_loss_coefficient": AT_LEAST_0,
    "policy.optim.lr": POSITIVE,
    "policy.optim.eps": POSITIVE,
    "policy.optim.weight_decay": AT_LEAST_0,
    "policy.optim.clip_grad": AT_LEAST_0,
    "policy.optim.warmup_steps": AT_LEAST_0,
    "generation.num_engines": AT_LEAST_1,
    "generation.tensor_parallel_size": AT_LEAST_1,
    "generation.max_model_len": Range(2),
    "generation.max_num_seqs": AT_LEAST_1,
    "generation.gpu_memory_utilization": Range(0, 1, is_open=True),
    "generation.kv_cache_gib": POSITIVE,
    "generation.block_size": AT_LEAST_1,
    "generation.report_every": AT_LEAST_1,
    "generation.report_s": POSITIVE,
    "generation.timeout_s": POSITIVE,
    "generation.max_residual_gib": POSITIVE,
    "generation.weight_bucket_mib": POSITIVE,
    "generation.weight_timeout_s": POSITIVE,
    "generation.max_restarts": AT_LEAST_0,
    "rollouts.num_per_prompt": Range(2),
    "rollouts.prompts_per_step": AT_LEAST_1,
    "rollouts.chunk_size": AT_LEAST_1,
    "rollouts.temperature": POSITIVE,
    "rollouts.top_p": Range(0, 1, is_open=True),
    "rollouts.max_response_tokens": AT_LEAST_1,
    "rollouts.waves.first_wave": Range(2),
    "rollouts.waves.growth": Range(1.01, 64),
    "rollouts.waves.half_signal": POSITIVE,
    "rollouts.waves.reach": Range(0.01, 1),
    "rollouts.waves.min_probability": Range(0.001, 1),
    "rollouts.posterior.memory": Range(0, 1, is_open=True),
    "rollouts.posterior.prior_groups": POSITIVE,
    "rollouts.posterior.max_prompts": AT_LEAST_1,
    "rollouts.save_samples": AT_LEAST_0,
    "rollouts.placement.prefill_cost": AT_LEAST_0,
    "rollouts.placement.context_cost": AT_LEAST_0,
    "rollouts.placement.concentration_cost": SHARE,
    "rollouts.placement.cached_prompt_tokens": AT_LEAST_0,
    "rollouts.schedule.stages[].num_per_prompt": Range(2),
    "rollouts.schedule.stages[].num_steps": AT_LEAST_1,
    "rollouts.schedule.sample_budget": AT_LEAST_1,
    "rollouts.schedule.plateau.window": Range(3),
    "rollouts.schedule.plateau.patience": AT_LEAST_1,
    "rollouts.schedule.plateau.confidence": Range(0.5, 0.9999),
    "rollouts.schedule.plateau.min_gain": AT_LEAST_0,
    "rollouts.deadline_s": POSITIVE,
    "rollouts.step_deadline_s": POSITIVE,
    "rollouts.min_fraction": Range(0, 1, is_open=True),
    "dynamic_sampling.max_sampled": AT_LEAST_1,
    "dynamic_sampling.min_reward_range": Range(0, 1),
    "dynamic_sampling.oversample": AT_LEAST_1,
    "dynamic_sampling.max_staleness": AT_LEAST_0,
    "algorithm.clip_low": Range(0, 1, is_open=True),
    "algorithm.clip_high": POSITIVE,
    "algorithm.dual_clip": AT_LEAST_0,
    "algorithm.pass_at_k": AT_LEAST_1,
    "algorithm.train_rollouts": Range(2),
    "algorithm.rare_success_exponent": AT_LEAST_0,
    "algorithm.entropy_coefficient": AT_LEAST_0,
    "algorithm.num_mini_batches": AT_LEAST_1,
    "algorithm.kl.coefficient": AT_LEAST_0,
    "algorithm.kl.log_ratio_clamp": POSITIVE,
    "algorithm.reference_reset.interval": AT_LEAST_0,
    "algorithm.reference_reset.kl_above": POSITIVE,
    "algorithm.reference_reset.patience": AT_LEAST_0,
    "algorithm.importance_correction.cap": POSITIVE,
    "algorithm.importance_correction.low": Range(0, 1),
    "algorithm.importance_correction.high": Range(1),
    "data.max_prompt_tokens": AT_LEAST_1,
    "data.held_out_fraction": SHARE,
    "data.tasks[].weight": POSITIVE,
    "data.tasks[].stages[].from_question": AT_LEAST_1,
    "data.max_bad_rows": AT_LEAST_0,
    "data.domains[].tasks[].weight": POSITIVE,
    "data.domains[].tasks[].stages[].from_question": AT_LEAST_1,
    "data.domains[].max_bad_rows": AT_LEAST_0,
    "data.domains[].weight": AT_LEAST_0,
    "data.domains[].max_prompt_tokens": AT_LEAST_1,
    "rewards.num_workers": AT_LEAST_1,
    "rewards.timeout_s": POSITIVE,
    "rewards.code.test_timeout_s": Range(0.01, 3600),
    "rewards.code.memory_mib": Range(64),
    "rewards.code.scratch_mib": AT_LEAST_1,
    "rewards.code.output_kib": AT_LEAST_1,
    "rewards.code.max_processes": AT_LEAST_1,
    "rewards.code.max_open_files": Range(8, 4096),
    "rewards.shaping.truncated_factor": SHARE,
    "rewards.shaping.overlong_buffer": AT_LEAST_0,
    "rewards.shaping.overlong_penalty": AT_LEAST_0,
    "rewards.shaping.repetition_penalty": AT_LEAST_0,
    "rewards.shaping.repetition_ngram": AT_LEAST_1,
    **{
        f"rewards.shaping.cosine.{name}": Range(-10, 10)
        for name in ("correct_short", "correct_long", "wrong_short", "wrong_long")
    },
    "rewards.shaping.cosine.on_steps": AT_LEAST_1,
    "rewards.shaping.cosine.off_steps": AT_LEAST_0,
    "evaluation.num_prompts": AT_LEAST_1,
    "evaluation.samples_per_prompt": AT_LEAST_1,
    "evaluation.temperature": AT_LEAST_0,
    "evaluation.top_p": Range(0, 1, is_open=True),
    "evaluation.max_response_tokens": AT_LEAST_1,
    "evaluation.confidence": Range(0.5, 0.9999),
    "evaluation.bootstrap_samples": Range(100, 1_000_000),
    "evaluation.save_samples": AT_LEAST_0,
    "evaluation.benchmarks[].num_prompts": AT_LEAST_1,
    "evaluation.benchmarks[].samples_per_prompt": AT_LEAST_1,
    "evaluation.benchmarks[].max_response_tokens": AT_LEAST_1,
    "evaluation.benchmarks[].max_prompt_tokens": AT_LEAST_1,
    "evaluation.benchmarks[].max_bad_rows": AT_LEAST_0,
    "evaluation.benchmarks[].tasks[].weight": POSITIVE,
    "evaluation.benchmarks[].tasks[].stages[].from_question": AT_LEAST_1,
    "parity.num_prompts": AT_LEAST_1,
    "parity.responses_per_prompt": AT_LEAST_1,
    "parity.max_response_tokens": AT_LEAST_1,
    "parity.max_mean_abs_diff": POSITIVE,
    "parity.max_step_mismatch": POSITIVE,
    "parity.max_fp8_mismatch": POSITIVE,
    "sft.hidden_size": AT_LEAST_1,
    "sft.num_layers": AT_LEAST_1,
    "sft.num_attention_heads": AT_LEAST_1,
    "sft.num_key_value_heads": AT_LEAST_1,
    "sft.intermediate_size": AT_LEAST_1,
    "sft.vocab_size": AT_LEAST_1,
    "sft.max_position_embeddings": AT_LEAST_1,
    "sft.tagged_fraction": SHARE,
    "sft.batch_size": AT_LEAST_1,
    "sft.lr": POSITIVE,
    "sft.max_steps": AT_LEAST_1,
    "sft.probe_interval": AT_LEAST_1,
    "sft.target_pass_at_1": SHARE,
    "sft.min_pass_at_1": SHARE,
    "sft.max_pass_at_1": SHARE,
    "sft.time_limit_s": POSITIVE,
}

ADVANTAGES = ("reinforce_plus_plus_baseline", "reinforce_plus_plus", "grpo", "dr_grpo", "rloo", "maxrl", "pass_at_k")
REINFORCEMENT_LOSSES = ("ppo_clip", "gspo", "cispo")  # those of losses.LOSSES that learn from advantages
ADVANTAGES_BY_WAVE = ("reinforce_plus_plus_baseline", "dr_grpo", "rloo")  # those that rollouts.allocation=waves may use
KL_ESTIMATORS = ("k1", "k2", "k3")
SOURCES = ("reasoning_gym", "jsonl", "parquet", "dataset")
PRESETS = ("plain", "deepscaler", "eurus_2", "scp_116k", "ifeval")  # prompts.presets.PRESETS

CHOICES: dict[str, tuple[str | None, ...]] = {
    "rollouts.unfinished": ("drop", "resume"),
    "dynamic_sampling.order": ("prompt", "completion"),
    "dynamic_sampling.in_flight": ("finish", "resume", "restart", "drop"),
    "policy.precision": ("fp32", "bf16"),
    "sft.precision": ("auto", "fp32", "bf16"),
    "policy.fp8": (None, "hybrid", "e4m3"),
    "policy.fp8_recipe": ("delayed", "tensorwise", "blockwise"),
    "policy.recompute": (None, "selective", "full"),
    "policy.attention": ("auto", "sdpa", "flex"),
    "policy.offload": ("none", "optimizer", "all"),
    "rollouts.allocation": ("fixed", "waves"),
    "rollouts.schedule.kind": ("constant", "staged", "on_plateau"),
    "rollouts.schedule.learning_rate_scaling": ("sqrt", "linear", "constant"),
    "generation.precision": ("fp32", "bf16"),
    "generation.placement": ("colocated", "disaggregated"),
    "generation.sleep": ("off", "cache", "offload", "discard"),
    "generation.weight_transport": ("auto", "object_store", "collective", "cuda_ipc"),
    "algorithm.advantage": ADVANTAGES,
    "algorithm.loss": REINFORCEMENT_LOSSES,
    "algorithm.aggregation": ("token_mean", "sequence_mean", "constant"),
    "algorithm.kl.estimator": KL_ESTIMATORS,
    "algorithm.kl.placement": ("loss", "reward"),
    "algorithm.importance_correction.kind": ("tis", "icepop", "sequence_mask"),
    "data.source": (*SOURCES, "mixture"),
    "data.preset": PRESETS,
    "data.domains[].source": SOURCES,
    "data.domains[].preset": PRESETS,
    "evaluation.benchmarks[].source": SOURCES,
    "evaluation.benchmarks[].preset": PRESETS,
}


def out_of_range(config: BroRLConfig) -> Iterator[str]:
    """One message for every number outside its range."""
    for path, allowed in RANGES.items():
        for name, value in _values(config, path):
            if value is not None and not allowed.holds(value):
                yield f"{name}={value} is out of range: write a number {allowed}"


def unknown_choices(config: BroRLConfig) -> Iterator[str]:
    """One message for every name that is not a choice."""
    for path, names in CHOICES.items():
        for name, value in _values(config, path):
            if value not in names:
                written = ", ".join("null" if choice is None else choice for choice in names)
                yield f"{name}={value} is not known: write one of {written}"


def _values(node: Any, path: str, name: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of one setting below `node`, or of that setting in every element of lists on the way."""
    section, has_list, rest = path.partition("[].")
    value = node
    for word in section.split("."):
        value = getattr(value, word)
    if not has_list:
        yield f"{name}{path}", value
        return
    for index, element in enumerate(value):
        yield from _values(element, rest, f"{name}{section}.{index}.")
