"""List settings of earlier versions and of other trainers, which are refused with a message that names ours."""

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
    "algorithm.covariance.kind": "set algorithm.loss_params.covariance.kind",
    "algorithm.covariance.share": "set algorithm.loss_params.covariance.share",
    "algorithm.covariance.low": "set algorithm.loss_params.covariance.low",
    "algorithm.covariance.high": "set algorithm.loss_params.covariance.high",
    "algorithm.covariance.coefficient": "set algorithm.loss_params.covariance.coefficient",
    "algorithm.covariance": "set algorithm.loss_params.covariance",
    "algorithm.rare_success_exponent": "set algorithm.advantage_params.rare_success_exponent",
    "algorithm.train_rollouts": "set algorithm.advantage_params.train_rollouts",
    "convert.checkpoint": "run brorl convert --checkpoint FOLDER",
    "convert.output": "run brorl convert --output FOLDER",
    "convert.push_to_hub": "run brorl convert --push-to-hub USER/NAME",
    "convert.private": "run brorl convert --public",
    "convert.dry_run": "run brorl convert --dry-run",
    "convert": "run brorl convert with the options that its --help names",
    "data.tasks[].level_width": "leave it out, questions come from the level reached",
    "data.tasks[].level_window": "leave it out, it is WINDOW of prompts/levels.py",
    "dynamic_sampling.carry_over": "set dynamic_sampling.max_staleness=0 for false",
    "dynamic_sampling.in_flight": "set rollouts.unfinished",
    "dynamic_sampling.mean_over": "leave it out, means are over the sampled groups",
    "dynamic_sampling.order": "leave it out, groups keep the order of the prompts",
    "dynamic_sampling.oversample": "leave it out, it is always 1",
    "evaluation.compare_with": "run brorl compare BEFORE AFTER, once both models are evaluated",
    "generation.block_size": "leave it out, blocks of the cache have 32 tokens",
    "generation.keep_published": "leave it out, the policy sends a lost engine its weights again",
    "generation.max_residual_gib": "leave it out, metrics sleep/* say what engines hold",
    "generation.report_every": "leave it out, it is REPORT_EVERY of generation/session.py",
    "generation.report_s": "leave it out, it is REPORT_S of generation/session.py",
    "parity.max_response_tokens": "leave it out, it is RESPONSE_TOKENS of training/parity.py",
    "parity.num_prompts": "leave it out, it is NUM_PROMPTS of training/parity.py",
    "parity.responses_per_prompt": "leave it out, it is RESPONSES_PER_PROMPT of training/parity.py",
    "policy.least_shared_tokens": "set policy.min_shared_tokens",
    "rewards.second_opinion": "set data.verifier=composite with a judge (docs/howto/judges.md)",
    "rewards.stages": "leave it out, options of verifiers do not change in a run",
    "rewards.watch": "set trainer.observers=[{name: 'brorl_lab.observers.reward_watch:reward_watch'}]",
    "rollouts.allocation": "leave it out, every prompt gets rollouts.num_per_prompt",
    "rollouts.coverage": "set trainer.observers=[{name: 'brorl_lab.observers.coverage:coverage'}]",
    "rollouts.placement": "leave it out, the costs are those of generation/placement/costs.py",
    "rollouts.pool": "set rollouts.prompt_pool.name=brorl_lab.prompt_pool:retiring_pool",
    "rollouts.posterior": "set rollouts.prompt_pool.params",
    "rollouts.waves": "leave it out, every prompt gets rollouts.num_per_prompt",
    "timeline.opentelemetry": "leave it out, timeline/ of the run folder has the spans for Perfetto",
    **{f"sft.{name}": f"set sft.new.{name}" for name in _NEW_MODEL},
    **{f"sft.{name}": f"set sft.demonstrations.{name}" for name in _DEMONSTRATIONS},
}

# Names of settings in other trainers, each before ours.
ELSEWHERE = {
    "verl": """
algorithm.adv_estimator algorithm.advantage  algorithm.kl_ctrl.kl_coef algorithm.kl.coefficient
actor_rollout_ref.actor.clip_ratio_high algorithm.clip_high  actor_rollout_ref.actor.clip_ratio_low algorithm.clip_low
actor_rollout_ref.actor.kl_loss_coef algorithm.kl.coefficient  actor_rollout_ref.actor.optim.lr policy.optim.lr
actor_rollout_ref.model.path policy.model
actor_rollout_ref.rollout.gpu_memory_utilization generation.gpu_memory_utilization
actor_rollout_ref.rollout.n rollouts.num_per_prompt  actor_rollout_ref.rollout.temperature rollouts.temperature
actor_rollout_ref.rollout.tensor_model_parallel_size generation.tensor_parallel_size
custom_reward_function.name data.verifier  custom_reward_function.path data.verifier
data.max_prompt_length data.max_prompt_tokens  data.max_response_length rollouts.max_response_tokens
data.train_batch_size rollouts.prompts_per_step  data.train_files data.path  data.val_files data.held_out_path
rollouts.n rollouts.num_per_prompt  trainer.default_local_dir exp_manager.explicit_log_dir
trainer.n_gpus_per_node trainer.gpus_per_node  trainer.nnodes trainer.num_nodes
trainer.save_freq trainer.save_interval  trainer.test_freq trainer.val_interval
trainer.total_epochs trainer.max_steps  trainer.total_training_steps trainer.max_steps
""",
    "TRL": """
beta algorithm.kl.coefficient  dataset_name data.path  epsilon algorithm.clip_low  epsilon_high algorithm.clip_high
eval_steps trainer.val_interval  learning_rate policy.optim.lr  loss_type algorithm.loss
max_completion_length rollouts.max_response_tokens  max_prompt_length data.max_prompt_tokens
model_name_or_path policy.model  num_generations rollouts.num_per_prompt  num_train_epochs trainer.max_steps
output_dir exp_manager.explicit_log_dir  per_device_train_batch_size rollouts.prompts_per_step
reward_funcs data.verifier  save_steps trainer.save_interval
""",
    "NeMo RL": """
checkpointing.checkpoint_dir exp_manager.explicit_log_dir  checkpointing.save_period trainer.save_interval
grpo.max_num_steps trainer.max_steps  grpo.num_generations_per_prompt rollouts.num_per_prompt
grpo.num_prompts_per_step rollouts.prompts_per_step  grpo.val_period trainer.val_interval
loss_fn.ratio_clip_max algorithm.clip_high  loss_fn.ratio_clip_min algorithm.clip_low
loss_fn.reference_policy_kl_penalty algorithm.kl.coefficient
policy.max_total_sequence_length generation.max_model_len  policy.model_name policy.model
""",
    "OpenRLHF": """
actor_learning_rate policy.optim.lr  generate_max_len rollouts.max_response_tokens
init_kl_coef algorithm.kl.coefficient  n_samples_per_prompt rollouts.num_per_prompt  pretrain policy.model
prompt_data data.path  remote_rm_url data.verifier  rollout_batch_size rollouts.prompts_per_step
save_path exp_manager.explicit_log_dir
""",
}


def instead_of(setting: str) -> str | None:
    """Return the replacement of a setting, or section, of an earlier version; None if there was no such setting."""
    while setting:
        if setting in INSTEAD:
            return INSTEAD[setting]
        setting = setting.rpartition(".")[0]
    return None


def name_elsewhere(key: str) -> str | None:
    """Return whose name a key is, and our name, in words, or None. Such a key may stand below our section `trainer`."""
    for trainer, names in ELSEWHERE.items():
        words = names.split()
        ours = dict(zip(words[::2], words[1::2], strict=True))
        known = ours.get(key) or ours.get(key.removeprefix("trainer."))
        if known is not None:
            return f"which is a name of {trainer}: set {known}"
    return None
