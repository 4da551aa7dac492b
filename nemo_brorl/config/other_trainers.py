"""List names of settings in other trainers, which a message answers with ours."""

from __future__ import annotations

# Trainer | its names and ours.
NAMES = {
    "verl": """
algorithm.adv_estimator algorithm.advantage
algorithm.kl_ctrl.kl_coef algorithm.kl.coefficient
actor_rollout_ref.actor.clip_ratio_high algorithm.clip_high
actor_rollout_ref.actor.clip_ratio_low algorithm.clip_low
actor_rollout_ref.actor.kl_loss_coef algorithm.kl.coefficient
actor_rollout_ref.actor.optim.lr policy.optim.lr
actor_rollout_ref.model.path policy.model
actor_rollout_ref.rollout.gpu_memory_utilization generation.gpu_memory_utilization
actor_rollout_ref.rollout.n rollouts.num_per_prompt
actor_rollout_ref.rollout.temperature rollouts.temperature
actor_rollout_ref.rollout.tensor_model_parallel_size generation.tensor_parallel_size
custom_reward_function.name data.verifier
custom_reward_function.path data.verifier
data.max_prompt_length data.max_prompt_tokens
data.max_response_length rollouts.max_response_tokens
data.train_batch_size rollouts.prompts_per_step
data.train_files data.path
data.val_files data.held_out_path
rollouts.n rollouts.num_per_prompt
trainer.default_local_dir exp_manager.explicit_log_dir
trainer.n_gpus_per_node trainer.gpus_per_node
trainer.nnodes trainer.num_nodes
trainer.save_freq trainer.save_interval
trainer.test_freq trainer.val_interval
trainer.total_epochs trainer.max_steps
trainer.total_training_steps trainer.max_steps
""",
    "TRL": """
beta algorithm.kl.coefficient
dataset_name data.path
epsilon algorithm.clip_low
epsilon_high algorithm.clip_high
eval_steps trainer.val_interval
learning_rate policy.optim.lr
loss_type algorithm.loss
max_completion_length rollouts.max_response_tokens
max_prompt_length data.max_prompt_tokens
model_name_or_path policy.model
num_generations rollouts.num_per_prompt
num_train_epochs trainer.max_steps
output_dir exp_manager.explicit_log_dir
per_device_train_batch_size rollouts.prompts_per_step
reward_funcs data.verifier
save_steps trainer.save_interval
""",
    "NeMo RL": """
checkpointing.checkpoint_dir exp_manager.explicit_log_dir
checkpointing.save_period trainer.save_interval
grpo.max_num_steps trainer.max_steps
grpo.num_generations_per_prompt rollouts.num_per_prompt
grpo.num_prompts_per_step rollouts.prompts_per_step
grpo.val_period trainer.val_interval
loss_fn.ratio_clip_max algorithm.clip_high
loss_fn.ratio_clip_min algorithm.clip_low
loss_fn.reference_policy_kl_penalty algorithm.kl.coefficient
policy.max_total_sequence_length generation.max_model_len
policy.model_name policy.model
""",
    "OpenRLHF": """
actor_learning_rate policy.optim.lr
generate_max_len rollouts.max_response_tokens
init_kl_coef algorithm.kl.coefficient
n_samples_per_prompt rollouts.num_per_prompt
pretrain policy.model
prompt_data data.path
remote_rm_url data.verifier
rollout_batch_size rollouts.prompts_per_step
save_path exp_manager.explicit_log_dir
""",
}


def name_elsewhere(key: str) -> str | None:
    """Return whose name a key is, and our name, in words, or None. Such a key may stand below our section `trainer`."""
    for trainer, names in NAMES.items():
        words = names.split()
        ours = dict(zip(words[::2], words[1::2], strict=True))
        known = ours.get(key) or ours.get(key.removeprefix("trainer."))
        if known is not None:
            return f"which is a name of {trainer}: set {known}"
    return None
