"""Preview questions and responses before a run starts: answer instructions, constant answers, and the rehearsal."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from nemo_brorl.commands import wiring
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.clock import Stopwatch
from nemo_brorl.core.console import Console
from nemo_brorl.evaluation import rehearsal
from nemo_brorl.evaluation.rehearsal import NUM_PROMPTS
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.training.run_observers import StepLine
from nemo_brorl.training.trainer import BroRLTrainer

AGAIN_S = 20.0  # a rehearsal that takes less time is made twice


def print_instructions(inputs: wiring.Inputs, console: Console) -> None:
    """Print the instruction that is added to questions so that the model knows where to write its answer."""
    inputs.prompts.peek(NUM_PROMPTS)
    for verifier, instruction in inputs.prompts.instructions.items():
        console.line(
            f"prompts for verifier {verifier}: none says where the answer goes, so this was added to each: "
            f"{instruction!r} (data.answer_instruction)"
        )


def look_at_questions(config: BroRLConfig, inputs: wiring.Inputs, console: Console) -> None:
    """Print the instructions added to questions, and warn of tasks that give rewards for a constant answer.

    Raises DataError if `rewards.constant_answers` refuses such tasks.
    """
    print_instructions(inputs, console)
    wiring.try_constants(config)


def rehearse(
    config: BroRLConfig,
    inputs: wiring.Inputs,
    actors: wiring.Actors,
    sampler: Sampler,
    console: Console,
    should_stop: Callable[[], bool] = lambda: False,
    policy_phase: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> float | None:
    """Sample responses to a few prompts, print them with their rewards, and return the expected seconds of a step.

    The policy is timed in a `policy_phase`, in which it has the devices. Prints nothing once `should_stop` returns
    True.
    """
    prompts = inputs.prompts.peek(NUM_PROMPTS)
    rehearsed = rehearsal.rehearse(config, prompts, sampler, should_stop)
    if rehearsed.groups and rehearsed.seconds + rehearsed.scoring_s < AGAIN_S and not should_stop():
        # Engines compile and load during the first requests, and few requests do not fill them: the second time counts.
        num_prompts, num_rollouts = rehearsal.sizes_that_fill(config, rehearsed)
        prompts = inputs.prompts.peek(num_prompts)
        rehearsed = rehearsal.rehearse(config, prompts, sampler, should_stop, num_rollouts)
    if should_stop():
        return None
    with policy_phase():
        return rehearsal.print_rehearsal(config, rehearsed, inputs.tokenizer.decode, console, actors.policy)


def rehearse_once(
    config: BroRLConfig,
    inputs: wiring.Inputs,
    actors: wiring.Actors,
    trainer: BroRLTrainer,
    console: Console,
) -> None:
    """Print sampled responses and their rewards before a run's first step, if `trainer.rehearsal` is on."""
    if config.trainer.rehearsal and trainer.step_number == 0 and config.trainer.max_steps:
        expected_s = rehearse(
            config,
            inputs,
            actors,
            trainer.parts.sampler,
            console,
            trainer.stop.should_stop,
            lambda: trainer.handover.policy_phase(Stopwatch()),
        )
        for observer in trainer.parts.observers:
            if isinstance(observer, StepLine):
                observer.expected_s = expected_s
