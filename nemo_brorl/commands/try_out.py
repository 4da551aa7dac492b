"""`brorl try [--config-name NAME] [KEY=VALUE ...]` shows what a model answers before you train it.

It samples responses to a few questions, shows their rewards with the reasons, and estimates informative groups and step
time. No policy is started.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from nemo_brorl.commands.check_inputs import check_inputs
from nemo_brorl.commands.run import run_command, sized
from nemo_brorl.config.load import CommandLine
from nemo_brorl.config.named_code import check_names
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console
from nemo_brorl.core.model_shape import model_family
from nemo_brorl.core.quick_imports import quick_imports
from nemo_brorl.core.start_report import StartReport


def main(argv: Sequence[str]) -> int:
    """Run `brorl try` and return its exit code: 0 done, 2 a mistake in the input, 1 a bug."""
    return run_command("try", __doc__, argv, try_out)


def try_out(config: BroRLConfig, line: CommandLine) -> int:
    """Start engines and verifiers, print sampled responses with their rewards, and return exit code 0."""
    check_names(config)
    check_inputs(config, line)
    console, start = Console(), time.monotonic()
    with contextlib.ExitStack() as stack:
        report = stack.enter_context(StartReport(console))
        config, model_folder = sized(config, console, with_policy=False)
        console.line(f"model family: {model_family(model_folder)}")
        with report.measure("imports"), quick_imports():
            from nemo_brorl.commands import rehearse, wiring  # imports Ray, so only for valid settings
        with report.measure("inputs"):
            inputs = wiring.read_inputs(config, model_folder)
            rehearse.print_instructions(inputs, console)
        starting = wiring.ready_actors(config, model_folder, inputs.verifiers, with_policy=False, watch=report)
        actors = stack.enter_context(starting)
        report.close()
        console.line(f"ready after {time.monotonic() - start:.0f} s ({report.summary()})")
        rehearse.rehearse(config, inputs, actors, wiring.make_sampler(config, actors, console), console)
    return 0
