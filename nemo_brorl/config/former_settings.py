"""List the settings of earlier versions, which are refused with a message that names their replacement."""

from __future__ import annotations

_NEW_MODEL = (
    "output",
    "hidden_size",
    "num_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "precision",
    "probe_interval",
    "target_pass_at_1",
    "min_pass_at_1",
    "max_pass_at_1",
    "time_limit_s",
)
_DEMONSTRATIONS = ("tagged_fraction", "worked_sums", "dropped_carry_rate", "slip_rate", "calling_rate")

# Former settings and sections, each with the end of the message "… there is no setting '…' any more: …".
INSTEAD = {
    "algorithm.covariance.kind": "algorithm.loss_params.covariance.kind",
    "algorithm.covariance.share": "algorithm.loss_params.covariance.share",
    "algorithm.covariance.low": "algorithm.loss_params.covariance.low",
    "algorithm.covariance.high": "algorithm.loss_params.covariance.high",
    "algorithm.covariance.coefficient": "algorithm.loss_params.covariance.coefficient",
    "algorithm.covariance": "algorithm.loss_params.covariance",
    "algorithm.rare_success_exponent": "algorithm.advantage_params.rare_success_exponent",
    "algorithm.train_rollouts": "algorithm.advantage_params.train_rollouts",
    "convert.checkpoint": "brorl convert --checkpoint FOLDER",
    "convert.output": "brorl convert --output FOLDER",
    "convert.push_to_hub": "brorl convert --push-to-hub USER/NAME",
    "convert.private": "brorl convert --public",
    "convert.dry_run": "brorl convert --dry-run",
    "convert": "brorl convert with the options that its --help names",
    "data.tasks[].level_width": "nothing, questions are of the level reached",
    "data.tasks[].level_window": "nothing, it is WINDOW of prompts/levels.py",
    "dynamic_sampling.carry_over": "dynamic_sampling.max_staleness=0 for false",
    "dynamic_sampling.in_flight": "rollouts.unfinished",
    "dynamic_sampling.mean_over": "nothing, it is over the groups sampled",
    "dynamic_sampling.order": "nothing, it is that of the prompts",
    "dynamic_sampling.oversample": "nothing, it is 1",
    "evaluation.compare_with": "brorl compare BEFORE AFTER, once both models are evaluated",
    "generation.block_size": "nothing, blocks of the cache are of 32 tokens",
    "generation.max_residual_gib": "nothing, metrics sleep/* say what engines hold",
    "generation.report_every": "nothing, it is REPORT_EVERY of generation/session.py",
    "generation.report_s": "nothing, it is REPORT_S of generation/session.py",
    "parity.max_response_tokens": "nothing, it is RESPONSE_TOKENS of training/parity.py",
    "parity.num_prompts": "nothing, it is NUM_PROMPTS of training/parity.py",
    "parity.responses_per_prompt": "nothing, it is RESPONSES_PER_PROMPT of training/parity.py",
    "policy.least_shared_tokens": "policy.min_shared_tokens",
    "rewards.second_opinion": "data.verifier=composite with a judge (docs/verifiers.md)",
    "rewards.stages": "nothing, options of verifiers are the same in the whole run",
    "rewards.watch": "trainer.observers=[{name: 'brorl_lab.observers.reward_watch:reward_watch'}]",
    "rollouts.allocation": "nothing, every prompt gets rollouts.num_per_prompt",
    "rollouts.coverage": "trainer.observers=[{name: 'brorl_lab.observers.coverage:coverage'}]",
    "rollouts.placement": "nothing, the costs are those of generation/placement/costs.py",
    "rollouts.pool": "rollouts.prompt_pool.name=brorl_lab.prompt_pool:retiring_pool",
    "rollouts.posterior": "rollouts.prompt_pool.params",
    "rollouts.waves": "nothing, every prompt gets rollouts.num_per_prompt",
    "timeline.opentelemetry": "nothing, timeline/ of the run folder has the spans for Perfetto",
    **{f"sft.{name}": f"sft.new.{name}" for name in _NEW_MODEL},
    **{f"sft.{name}": f"sft.demonstrations.{name}" for name in _DEMONSTRATIONS},
}


def instead_of(setting: str) -> str | None:
    """Return the replacement of a setting, or section, of an earlier version; None if there was no such setting."""
    while setting:
        if setting in INSTEAD:
            return INSTEAD[setting]
        setting = setting.rpartition(".")[0]
    return None
