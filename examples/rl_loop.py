"""A training loop to fork: sample N rollouts of each prompt, score them, train, sync the weights to the engines.

    make train ARGS="trainer.max_steps=1"                                   # once: installs, makes the small base model
    .venv/bin/python examples/rl_loop.py trainer.max_steps=3 rollouts.num_per_prompt=32

It uses the parts of `brorl train`: a Megatron policy, vLLM engines and verifier processes, all on Ray. The trainer
(`nemo_brorl/training/trainer.py`) adds carried-over groups, deadlines, overlap of sampling and training, validation,
checkpoints and resume, and metrics on disk.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from nemo_brorl.algorithm.packing import Sharing, plan_update
from nemo_brorl.algorithm.train_batch import make_train_batch
from nemo_brorl.commands import wiring
from nemo_brorl.commands.run import sized
from nemo_brorl.config.load import load_config, parse_command_line
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.clock import Stopwatch
from nemo_brorl.core.console import Console
from nemo_brorl.prompts.stream import PromptStream
from nemo_brorl.rollouts.dynamic_sampling import judge
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.training.device_handover import DeviceHandover
from nemo_brorl.types import Sampling, ScoredGroup, UpdatePlan


def main(argv: Sequence[str]) -> list[float]:
    """Train for `trainer.max_steps` steps. Return the mean raw reward of each."""
    line = parse_command_line(argv, "train", (__doc__ or "").strip())
    console = Console()
    watch = Stopwatch()

    # Choose the sizes that are not set, and read tokenizer and prompts, before anything expensive starts.
    config, model_folder = sized(load_config(*line), console)
    inputs = wiring.read_inputs(config, model_folder)
    rewards = []
    with wiring.start_actors(config, inputs.model_folder, inputs.verifiers, watch) as actors:
        wiring.wait_ready(actors, watch, engines_sleep=True)
        policy = actors.trained_policy()
        sampler = wiring.make_sampler(config, actors, console)
        # Policy and engines may share devices: only one of them uses them at a time.
        handover = DeviceHandover(policy, actors.generator)
        # The first weight sync needs no work of the policy before it.
        with handover.first_phase(version=0):
            pass
        for step in range(1, config.trainer.max_steps + 1):
            groups = sample_batch(config, inputs.prompts, sampler)
            rewards.append(float(np.mean([group.rewards.mean() for group in groups])))
            plan = plan_step(config, groups, step, policy.data_parallel_size)
            if plan is None:
                console.line(f"step {step}: every prompt was all right or all wrong, nothing to learn from")
                continue
            with handover.policy_phase(watch) as phase:
                update = policy.update(plan)
                phase.set_version(update.version)  # weight sync to the engines happens at the end of this block
            loss = update.metrics["policy/loss"]
            console.line(f"step {step}: reward {rewards[-1]:.3f}, {len(plan.groups)} groups, loss {loss:.4f}")
    return rewards


def sample_batch(config: BroRLConfig, prompts: PromptStream, sampler: Sampler) -> list[ScoredGroup]:
    """Sample N rollouts of each of the next prompts, and return them as scored groups."""
    rollouts = config.rollouts
    sampling = Sampling(rollouts.temperature, rollouts.top_p, rollouts.max_response_tokens)
    drawn = prompts.take_prompts(rollouts.prompts_per_step)
    return sampler.sample(drawn, rollouts.num_per_prompt, sampling, "generate")


def plan_step(config: BroRLConfig, groups: Sequence[ScoredGroup], step: int, num_ranks: int) -> UpdatePlan | None:
    """Return the update plan of the informative groups for the policy's ranks, or None without such a group."""
    informative = [group for group in groups if judge(group, config.dynamic_sampling).keep]
    if not informative:
        return None
    return plan_update(
        make_train_batch(
            informative,
            step,
            config.algorithm,
            config.rewards.shaping,
            config.rollouts.max_response_tokens,
            min_reward_range=config.dynamic_sampling.least_range,
        ),
        num_mini_batches=config.algorithm.num_mini_batches,
        data_parallel_size=num_ranks,
        token_budget=RunSizes.from_config(config).row_tokens,
        sharing=Sharing(config.policy.shared_prompt),
        version=step,
        learning_rate=config.policy.optim.lr,
        objective=config.algorithm.loss,
        seed=config.trainer.seed + step,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
