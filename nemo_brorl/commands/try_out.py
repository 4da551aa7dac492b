"""`brorl try [--config-name NAME] [KEY=VALUE ...]` shows what a model says to a few questions of a run, what each
response earns and why, and what that means for the run: without a policy and without training."""

from __future__ import annotations

import time
from collections.abc import Sequence

from nemo_brorl.commands.run import run_command, sized
from nemo_brorl.config.load import CommandLine
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 done, 2 a mistake in the input, 1 a bug."""
    return run_command("try", __doc__, argv, try_out)


def try_out(config: BroRLConfig, line: CommandLine) -> int:
    """Start engines and verifiers, and rehearse."""
    console, start = Console(), time.monotonic()
    config, model_folder = sized(config, console, with_policy=False)
    from nemo_brorl.commands import rehearse, wiring  # Ray, tokenizers: only for settings that hold

    inputs = wiring.read_inputs(config, model_folder)
    rehearse.say_instructions(inputs, console)
    with wiring.ready_actors(config, model_folder, inputs.verifiers, with_policy=False) as actors:
        console.line(f"ready after {time.monotonic() - start:.1f} s")
        rehearse.rehearse(config, inputs, actors, wiring.make_sampler(config, actors, console), console)
    return 0
