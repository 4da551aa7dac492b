"""Declare every metric that metrics.jsonl may hold, once, with its unit, aggregation and meaning.

`scripts/metrics_page.py` writes docs/metrics.md from this list. A stage that computes a metric writes its name as a
literal. Tests compare every literal of the package, and every row of a real run, with this list. `{…}` is a placeholder
for what a run fills in: a task, a domain, a number. Metrics that a user's own loss adds need no entry.
"""

from __future__ import annotations

from collections.abc import Iterable

from brorl_lab.metric import Metric, pattern_of

_PROMPT_STEP = "sampled groups of the step"
_ROLLOUTS = "mean over sampled rollouts"
_TOKENS = "mean over trained tokens"
_VALIDATION = "mean over held-out prompts"
_COUNT = "sum of the step"
SHARES = ("share", "probability")  # units of numbers from 0 to 1

GROUPS: dict[str, tuple[str, tuple[Metric, ...]]] = {
    "reward": (
        "Raw rewards, before shaping, of all groups sampled in a step, informative or not.",
        (
            Metric("mean", "", _ROLLOUTS, "Raw reward"),
            Metric("{task}", "", _ROLLOUTS, "Raw reward of one task's prompts"),
            Metric("num_failed", "responses", _COUNT, "Responses on which a verifier failed"),
            Metric("late_s", "s", _COUNT, "Time that processes lost to verifiers ended at their deadline"),
        ),
    ),
    "reward_watch": (
        "Signs of reward hacking, by the observer `reward_watch` of the shipped recipes (docs/howto/look_at_a_run.md).",
        (
            Metric("alarms", "alarms", _COUNT, "Signs beyond their limits"),
            Metric(
                "without_answer", "responses", _COUNT, "Responses that earned though their verifier reads no answer"
            ),
            Metric(
                "same_answer_prompts",
                "prompts",
                "maximum over answers",
                "Prompts of a task that one answer earned on and is not the answer of",
            ),
            Metric(
                "highest_rise", "standard deviations", "maximum over verifiers", "Robust z-score of the mean reward"
            ),
            Metric("failing_prompts", "prompts", _COUNT, "Prompts on which a verifier failed"),
            Metric("late", "responses", _COUNT, "Responses whose verifier was ended at its deadline"),
        ),
    ),
    "service": (
        "Verifiers behind a network, since the last row; nothing where there are none.",
        (
            Metric("responses", "responses", _COUNT, "Rollouts to be scored by a service"),
            Metric("asked", "questions", _COUNT, "Distinct texts sent to it: the other scores were cached"),
            Metric("requests", "requests", _COUNT, "Requests sent, repeated ones too"),
            Metric("retries", "requests", _COUNT, "Requests that were repeated"),
            Metric("failed", "questions", _COUNT, "Questions left without an answer"),
            Metric("prompt_tokens", "tokens", _COUNT, "Tokens that a judge read"),
            Metric("completion_tokens", "tokens", _COUNT, "Tokens that a judge wrote"),
            Metric("request_s", "s", "mean over requests", "Time of a request"),
        ),
    ),
    "rollouts": (
        "What was sampled and what it was spent on.",
        (
            Metric("prompt_tokens", "tokens", f"mean over {_PROMPT_STEP}", "Length of a prompt"),
            Metric("response_tokens", "tokens", _ROLLOUTS, "Length of a response"),
            Metric("response_tokens_max", "tokens", "maximum of the step", "Length of the longest response"),
            Metric("truncated", "share", _ROLLOUTS, "Responses that ended at the limit of tokens"),
            Metric("successes_0", "share", _PROMPT_STEP, "Groups without a correct rollout"),
            Metric("successes_1", "share", _PROMPT_STEP, "Groups with one correct rollout"),
            Metric("successes_2_to_5", "share", _PROMPT_STEP, "Groups with two to five correct rollouts"),
            Metric("successes_more", "share", _PROMPT_STEP, "Groups with more than five correct rollouts, but not all"),
            Metric("successes_all", "share", _PROMPT_STEP, "Groups whose rollouts are all correct"),
            Metric(
                "pass_at_{k}",
                "probability",
                f"mean over {_PROMPT_STEP}",
                "Chance that one of k rollouts is correct, unbiased; k = 1, 2, 4, … up to N",
            ),
            Metric("prompts_retired", "prompts", _COUNT, "Prompts left out by `rollouts.prompt_pool`"),
            Metric("prompts_rechecked", "prompts", _COUNT, "Retired prompts that were sampled again"),
            Metric("pass_at_1_change", "probability", "difference of means over steps", "Since the run's first steps"),
            Metric("pass_at_n_change", "probability", "difference of means over steps", "Of the largest k, likewise"),
            Metric("num_per_prompt", "rollouts", "setting of the step", "N of the stage of the schedule"),
            Metric("prompts_per_step", "prompts", "setting of the step", "Prompts of a batch at this stage"),
            Metric("group_size", "rollouts", f"mean over {_PROMPT_STEP}", "Rollouts that a group got"),
            Metric("full", "share", _PROMPT_STEP, "Groups that got all N rollouts"),
            Metric("generated_tokens", "tokens", "sum of the run", "Response tokens sampled so far, unused ones too"),
            Metric(
                "informative_per_million_tokens",
                "groups / M tokens",
                "ratio over the run",
                "Informative groups per million response tokens sampled",
            ),
            Metric("pass_at_groups_left_out", "groups", _COUNT, "Groups with rollouts cut, which pass@k leaves out"),
            Metric("late_groups", "groups", _COUNT, "Tails of groups cut in an earlier step, trained on now"),
            Metric("salvaged", "rollouts", _COUNT, "Rollouts taken from the step before, which had been cut"),
            Metric("cut_share", "share", "over rollouts of cut groups", "Rollouts that were started and not finished"),
            Metric("cut_response_tokens", "tokens", "mean over cut rollouts", "Length that a cut rollout had reached"),
            Metric(
                "length_bias",
                "tokens",
                "difference of means over cut groups",
                "Length of finished rollouts less that of all started ones: how much the cut favours short responses",
            ),
            Metric(
                "straggler_reward_bias",
                "",
                "mean over cut groups",
                "Reward of finished rollouts less that of all, the missing ones taken as the longest finished ones",
            ),
            Metric(
                "straggler_weight_ratio",
                "ratio",
                "over cut groups",
                "What cutting multiplies the weight p (1 - p) of their prompts by, under the same assumption",
            ),
        ),
    ),
    "domain": (
        "Groups of each domain of a mixture; nothing without one.",
        (
            Metric("{domain}/groups", "groups", _COUNT, "Groups sampled"),
            Metric("{domain}/reward", "", _ROLLOUTS, "Raw reward"),
            Metric("{domain}/informative", "share", "over the domain's groups", "Groups with different rewards"),
            Metric("{domain}/response_tokens", "tokens", _ROLLOUTS, "Length of a response"),
            Metric("{domain}/truncated", "share", _ROLLOUTS, "Responses that ended at the limit of tokens"),
        ),
    ),
    "dynamic_sampling": (
        "What happened to the groups of a step (docs/explanation/rollouts.md).",
        (
            Metric("keep_rate", "share", "over judged groups", "Groups that were informative"),
            Metric("num_groups", "groups", _COUNT, "Groups judged"),
            Metric("sampled_rollouts", "rollouts", _COUNT, "Rollouts of judged groups"),
            Metric("informative_rollouts", "rollouts", _COUNT, "Rollouts of those that were informative"),
            Metric(
                "loss_scale",
                "",
                "of the step",
                "Batch over the groups that a step samples, which scales its loss; 1 with `dynamic_sampling.fill=full`",
            ),
            Metric("trained_rollouts", "rollouts", _COUNT, "Rollouts that the update trained on"),
            Metric("num_carried_in", "groups", _COUNT, "Informative groups left over from the step before"),
            Metric("num_carried_out", "groups", _COUNT, "Informative groups left for the next step"),
            Metric("wasted_rollouts", "rollouts", _COUNT, "Rollouts of groups that were not used"),
            Metric("all_correct", "groups", _COUNT, "Dropped: every rollout was right"),
            Metric("all_wrong", "groups", _COUNT, "Dropped: every rollout was wrong"),
            Metric("all_equal", "groups", _COUNT, "Dropped: all rewards were (nearly) the same, between 0 and 1"),
            Metric("stale", "groups", _COUNT, "Dropped: sampled by weights that are too old"),
            Metric("surplus", "groups", _COUNT, "Dropped: the batch was full"),
            Metric("timed_out", "groups", _COUNT, "Withdrawn: too few rollouts had ended at a deadline"),
            Metric("failed", "groups", _COUNT, "Withdrawn: their verifier failed on all rollouts, or all but one"),
            Metric("dropped", "groups", _COUNT, "Withdrawn: under way when the batch was full"),
            Metric("postponed", "groups", _COUNT, "Cut off when the batch was full; the next step resumes them"),
        ),
    ),
    "trajectories": (
        "Groups with an environment; absent in a step without any.",
        (
            Metric("turns", "turns", _ROLLOUTS, "Turns of a trajectory"),
            Metric("turns_max", "turns", "maximum of the step", "Turns of the longest trajectory"),
            Metric("tool_errors", "share", "mean over turns", "Turns that called a tool wrongly"),
            Metric("observation_tokens", "tokens", _ROLLOUTS, "Tokens of a response that the environment wrote"),
        ),
    ),
    "generation": (
        "What the engines did while the batch was filled.",
        (
            Metric("samples_per_s", "rollouts / s", "over all engines", "Finished rollouts per second of sampling"),
            Metric("tokens_per_s", "tokens / s", "over all engines", "Response tokens per second of sampling"),
            Metric("num_samples", "rollouts", _COUNT, "Finished rollouts"),
            Metric("prefix_cache_hit_rate", "share", "over prompt tokens", "Prompt tokens found in the prefix cache"),
            Metric(
                "resumed_hit_rate",
                "share",
                "over tokens of resumed sequences",
                "Prefix cache hits of later turns and resumed rollouts; absent without any",
            ),
            Metric("num_preemptions", "sequences", _COUNT, "Sequences that vLLM put off for lack of KV cache"),
            Metric("num_restarts", "engines", _COUNT, "Engines that were lost and replaced"),
            Metric("num_garbage", "engines", _COUNT, "Those of them that were replaced because they answered garbage"),
            Metric("num_resampled", "rollouts", _COUNT, "Rollouts sampled again after a loss"),
        ),
    ),
    "prompts": (
        "The stream of prompts; by domain where there is a mixture.",
        (
            Metric("too_long", "prompts", "sum of the run", "Prompts left out for their length"),
            Metric("too_long/{domain}", "prompts", "sum of the run", "Those of one domain"),
            Metric("epochs", "passes", "of the run", "Times that all rows of the files have been gone through"),
            Metric("epochs/{domain}", "passes", "of the run", "Times for one domain"),
            Metric("level/{task}", "", "after the step", "Level that a task with `levels` has reached, from 0"),
            Metric("level/{domain}/{task}", "", "after the step", "The same in a mixture"),
        ),
    ),
    "sft": (
        "Supervised fine-tuning (`brorl sft`), beside loss, gradient norm and learning rate of the policy.",
        (
            Metric("val_loss", "nats", "mean over trained tokens", "Loss on held-out conversations"),
            Metric("epoch", "", "up to the step", "Times that every conversation was trained on"),
            Metric("tokens", "tokens", _COUNT, "Tokens of the batch"),
            Metric("trained_tokens", "tokens", _COUNT, "Of these the assistant's, which the loss counts"),
        ),
    ),
    "policy": (
        "The update.",
        (
            Metric("loss", "", _TOKENS, "Loss that was minimised, all terms; NaN where every mini-batch was skipped"),
            Metric("grad_norm", "", "mean over mini-batches", "Norm of the gradient before clipping"),
            Metric("learning_rate", "", "setting of the step", "Learning rate of the step"),
            Metric("num_updates", "mini-batches", _COUNT, "Optimizer steps taken"),
            Metric("num_skipped", "mini-batches", "sum of the run", "Steps skipped for a non-finite loss or gradient"),
            Metric("clip_fraction", "share", _TOKENS, "Tokens (gspo: responses, by token) whose ratio was clipped"),
            Metric("approximate_kl", "nats", _TOKENS, "KL to the policy before the update, by k2, without exp"),
            Metric("kl_to_reference", "nats", _TOKENS, "KL to the reference by the estimator of `algorithm.kl`"),
            Metric("kl_to_teacher", "nats", "mean over tokens with a teacher", "The same of a run with teachers"),
            Metric("kl_to_teacher/{task}", "nats", "mean over trained tokens", "The same of one task's prompts"),
            Metric("importance_weight", "", _TOKENS, "Weight that corrects for the sampler's probabilities; 1: none"),
            Metric("importance_masked", "share", _TOKENS, "Tokens whose weight is 0 (icepop, sequence_mask)"),
            Metric("covariance_tokens", "share", _TOKENS, "Tokens that `algorithm.loss_params.covariance` selects"),
            Metric("entropy", "nats", _TOKENS, "Entropy of the policy before the update"),
            Metric("collision_probability", "", _TOKENS, "Σ p² of the policy before the update: 1 is certainty"),
            Metric(
                "log_prob_mismatch",
                "nats",
                "mean over fresh tokens",
                "|log p of vLLM − log p of Megatron| under the same weights; unknown where no rollout is fresh",
            ),
            Metric("log_prob_mismatch_max", "nats", "maximum over fresh tokens", "Largest such difference"),
            Metric("log_prob_drift_of_carried", "nats", "mean over carried tokens", "The same under older weights"),
            Metric(
                "router_replayed",
                "share",
                "mean over tokens of rows and layers",
                "Tokens that went to the experts of their engine, with `policy.moe.router_replay`; padding counts too",
            ),
            Metric(
                "router_changed",
                "share",
                "mean over those",
                "Of them, those that the router would have sent to another set of experts",
            ),
            Metric("fp8_mismatch", "nats", "mean over the tokens of one row", "|log p in FP8 − log p in bf16|"),
            Metric("fp8_mismatch_max", "nats", "maximum over the tokens of one row", "Largest such difference"),
        ),
    ),
    "mass_balance": (
        "The terms of BroRL's Theorem 1, a whole response taken as one token (docs/explanation/theory.md).",
        (
            Metric("unsampled_mass", "probability", _PROMPT_STEP, "1 − probability of the responses drawn"),
            Metric(
                "unsampled_mass_good_turing",
                "probability",
                _PROMPT_STEP,
                "The same from counts alone: share of rollouts whose response was drawn once",
            ),
            Metric("distinct_responses", "share", _PROMPT_STEP, "Different responses over rollouts"),
            Metric("sampled_gain", "", _PROMPT_STEP, "First two terms of Theorem 1, never negative"),
            Metric("unsampled_coupling_bound", "", _PROMPT_STEP, "Upper bound of the third term"),
            Metric(
                "measured_gain",
                "",
                "mean over responses of the last mini-batch",
                "Change of the expected advantage by the updates before it, of groups whose other rollouts disagree",
            ),
            Metric("measured_gain_error", "", "standard error over responses", "Error of the measured gain"),
            Metric("signal_to_noise", "", "ratio", "Measured gain over its error"),
        ),
    ),
    "sync": (
        "The last weight sync to the engines.",
        (
            Metric("seconds", "s", "last weight sync", "Time from the first byte to the last engine's confirmation"),
            Metric("gib", "GiB", "last weight sync", "Size of the weights"),
            Metric("gib_per_s", "GiB / s", "last weight sync", "Size over time"),
            Metric("peak_extra_gib", "GiB", "maximum over engines", "Memory taken for it beside the weights"),
            Metric("num_attempts", "", "last weight sync", "2 where an engine was lost on the way and replaced"),
        ),
    ),
    "sleep": (
        "Engines that sleep while the policy trains; nothing with `generation.sleep=off`.",
        (
            Metric("residual_gib_mean", "GiB", "mean over engines", "Memory that a sleeping engine keeps"),
            Metric("residual_gib_max", "GiB", "maximum over engines", "The same, of the engine that keeps most"),
            Metric("residual_growth_gib_max", "GiB", "maximum over engines", "Growth since an engine's first sleep"),
        ),
    ),
    "reference": (
        "Resets of the KL term's reference; nothing where none is configured.",
        (
            Metric("resets", "", "sum of the run", "Resets so far"),
            Metric("steps_since_reset", "steps", "last", "Age of the reference"),
        ),
    ),
    "validation": (
        "Held-out prompts, after the steps that `trainer.val_interval` names.",
        (
            Metric("pass_at_1", "share", _VALIDATION, "Chance that one response is right"),
            Metric("pass_at_1_standard_error", "share", "over prompts", "Standard error of it"),
            Metric("pass_at_1_low", "share", "over prompts", "Lower end of its 95 % interval"),
            Metric("pass_at_1_high", "share", "over prompts", "Upper end of that interval"),
            Metric("pass_at_{k}", "share", _VALIDATION, "Prompts with a right response among k, all that were sampled"),
            Metric("pass_at_1/{task}", "share", _VALIDATION, "Chance for one task's prompts"),
            Metric("reward", "", _VALIDATION, "Raw reward"),
            Metric("reward_standard_error", "", "over prompts", "Standard error of it"),
            Metric("response_tokens", "tokens", "mean over responses", "Length of a response"),
            Metric("truncated", "share", "over responses", "Responses that ended at the limit of tokens"),
            Metric("turns", "turns", "mean over responses", "Turns of an environment's trajectory"),
            Metric("tool_errors", "share", "mean over turns", "Turns that called a tool wrongly"),
            Metric("constant_answer", "share", _VALIDATION, "What the best constant answers, one a task, would earn"),
            Metric("constant_answer/{task}", "share", _VALIDATION, "What the best one earns for one task"),
        ),
    ),
    "time": (
        "Wall time of a step's stages.",
        (
            Metric("collect_s", "s", _COUNT, "Filling the batch, all of it"),
            Metric("generate_s", "s", _COUNT, "Waiting for engines"),
            Metric("reward_s", "s", _COUNT, "Waiting for verifiers after the last rollout had come"),
            Metric("offload_s", "s", _COUNT, "Engines to sleep and awake, the policy off and on its devices"),
            Metric("fetch_s", "s", _COUNT, "Tokens from the object store to the ranks"),
            Metric("log_prob_s", "s", _COUNT, "Old and reference log-probs"),
            Metric("update_s", "s", _COUNT, "Forward, backward and optimizer"),
            Metric("sync_s", "s", _COUNT, "Publishing weights"),
            Metric("validate_s", "s", _COUNT, "Validation"),
            Metric("save_s", "s", _COUNT, "Checkpoint, as far as training waited for it"),
            Metric("save_background_s", "s", _COUNT, "Checkpoint, from its start to its marker"),
        ),
    ),
}


def declared_names() -> list[str]:
    """Return the full names, `group/name`, of all declared metrics, with placeholders as `{…}`."""
    names = []
    for group, (_, metrics) in GROUPS.items():
        names += [f"{group}/{metric.name}" for metric in metrics]
    return names


def undeclared_names(names: Iterable[str]) -> list[str]:
    """Return those of the metric names that no declaration in the registry covers."""
    return [name for name in names if find_metric(name) is None]


def find_metric(name: str) -> Metric | None:
    """Return the declaration that covers a full metric name, or None.

    An exact name is preferred to one with `{…}`, which matches any text without a slash.
    """
    group, _, rest = name.partition("/")
    if group not in GROUPS:
        return None
    _, metrics = GROUPS[group]
    for metric in sorted(metrics, key=lambda metric: "{" in metric.name):
        if pattern_of(metric.name).fullmatch(rest):
            return metric
    return None
