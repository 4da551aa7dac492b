"""The console script: `brorl COMMAND …`, which is `python -m nemo_brorl COMMAND …`."""

from __future__ import annotations

import importlib
import os
import sys

from nemo_brorl.core.errors import USER_ERROR, BroRLError

INTERRUPTED = 130

# command: (module with `main(argv) -> exit code`, what it does). Modules are imported by name: this
# package imports none of the others.
COMMANDS = {
    "train": ("nemo_brorl.commands.train", "a whole BroRL run"),
    "try": ("nemo_brorl.commands.try_out", "what a model says to a few questions of a run, what it earns and why"),
    "evaluate": ("nemo_brorl.commands.evaluate", "pass@1, pass@k, majority@k on benchmarks"),
    "compare": (
        "brorl_lab.commands.compare",
        "two evaluations, prompt by prompt: which model is better, how surely",
    ),
    "sft": ("nemo_brorl.commands.sft", "supervised fine-tuning on conversations"),
    "base": ("brorl_lab.bases.command", "a small base model, made on generated demonstrations"),
    "convert": ("nemo_brorl.commands.convert", "the weights of a training checkpoint as a Hugging Face folder"),
    "report": (
        "brorl_lab.commands.report",
        "one HTML file about runs: curves, prompts, responses, timeline, settings",
    ),
    "watch": ("brorl_lab.commands.watch", "the same page, live, on this machine"),
    "replay": ("brorl_lab.commands.replay", "learn again from stored rollouts, with other settings or none"),
    "rescore": ("brorl_lab.commands.rescore", "score stored responses again, by another verifier"),
    "export-sft": ("brorl_lab.commands.export_sft", "the best stored responses as chat JSONL"),
    "plan": ("brorl_launcher.planner.command", "does a run fit, how long does a step take, what would be better"),
    "doctor": ("brorl_launcher.doctor.command", "is everything there that a run needs?"),
    "render": (
        "brorl_launcher.render",
        "write a job for Slurm: the script, and the settings and the code it runs with",
    ),
    "submit": ("brorl_launcher.submit", "render a job and hand it to Slurm, alone or as a chain"),
    "status": ("brorl_launcher.status", "what a run is doing, how far it is, and how long it will take"),
    "attach": ("brorl_launcher.attach", "follow a run's log, or open a shell on one of its nodes"),
    "simulate": ("brorl_lab.commands.simulate", "BroRL's simulator (Figure 3), tables and figures"),
    "advise": ("brorl_lab.commands.advise", "what another N, or fill of batches, would make of a run"),
    "runs": ("brorl_launcher.runs", "run folders: state, step, pass@1, throughput, cost"),
    "diff": ("brorl_lab.commands.diff", "two runs: settings that differ, metrics side by side"),
    "sweep": ("brorl_lab.commands.sweep", "a grid of runs from one file, and what came out of it"),
    "plateau": ("brorl_lab.commands.plateau", "where the plateau detector would have broadened a run"),
}


def main() -> int:
    """Run the command. Returns its exit code; 2 for a mistake in the input, with one message."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(usage())
        return 0 if arguments else USER_ERROR
    command, *rest = arguments
    if command not in COMMANDS:
        sys.stderr.write(f"error: there is no command '{command}'\n\n{usage()}")
        return USER_ERROR
    module_name, _ = COMMANDS[command]
    sys.argv = [f"brorl {command}", *rest]
    try:
        module = importlib.import_module(module_name)  # the others are not waited for
        code = int(module.main(rest))
        sys.stdout.flush()
    except BrokenPipeError:  # `… | head` has read enough; what is left is not to fail once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except BroRLError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def usage() -> str:
    """What `brorl --help` prints."""
    lines = [f"  {name:<10} {summary}" for name, (_, summary) in COMMANDS.items()]
    return "usage: brorl COMMAND [options]\n\n" + "\n".join(lines) + "\n\nEvery command answers --help.\n"


if __name__ == "__main__":
    sys.exit(main())
