"""The console script: `brorl COMMAND …`, which is `python -m nemo_brorl COMMAND …`."""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import sys
import traceback
from pathlib import Path
from types import TracebackType

from nemo_brorl import __version__
from nemo_brorl.core.clock import INTERRUPTED, StartCut, cut_by_signals
from nemo_brorl.core.console import write_error, write_out, write_words
from nemo_brorl.core.errors import USER_ERROR, BroRLError, ConfigError
from nemo_brorl.core.files import cannot_write, is_refused
from nemo_brorl.core.quick_imports import quick_imports

STACK = "run scripts/install.sh cpu, or gpu, in a checkout of nemo_brorl"

# libraries that an installation without the stack lacks: how to install them
LIBRARIES = {
    "matplotlib": "pip install 'nemo_brorl[figures]'",
    "reasoning_gym": STACK,
    **dict.fromkeys(("torch", "ray", "vllm", "megatron", "transformers", "huggingface_hub", "nemo"), STACK),
}

# command: (module with `main(argv) -> exit code`, what it does). A module is imported when its command is called.
COMMANDS = {
    "train": ("nemo_brorl.commands.train", "train a model: sample, score, update, validate, save"),
    "try": (
        "nemo_brorl.commands.try_out",
        "show a model's responses to a few questions, with their rewards and reasons",
    ),
    "evaluate": (
        "nemo_brorl.commands.evaluate",
        "measure pass@1, pass@k and majority@k on held-out questions or benchmarks",
    ),
    "compare": (
        "brorl_lab.commands.compare",
        "compare two evaluations prompt by prompt, with p-values",
    ),
    "sft": ("nemo_brorl.commands.sft", "fine-tune a model on conversations"),
    "base": ("brorl_lab.bases.command", "make a small base model from generated demonstrations"),
    "convert": ("nemo_brorl.commands.convert", "write a checkpoint's weights as a Hugging Face folder"),
    "report": (
        "brorl_lab.commands.report",
        "write one HTML page about runs: curves, prompts, responses, timeline, settings",
    ),
    "watch": ("brorl_lab.commands.watch", "serve the report page of a run while it trains"),
    "replay": ("brorl_lab.commands.replay", "train again on stored rollouts, with the same or other settings"),
    "rescore": ("brorl_lab.commands.rescore", "score stored responses again, with another verifier"),
    "export-sft": ("brorl_lab.commands.export_sft", "write the best stored responses as chat JSONL, for `brorl sft`"),
    "plan": ("brorl_launcher.planner.command", "plan a run: does it fit, how long is a step, which layout is faster"),
    "doctor": (
        "brorl_launcher.doctor.command",
        "check that this machine, or every node of a job, has what a run needs",
    ),
    "render": (
        "brorl_launcher.render",
        "write a Slurm job: the script, and copies of settings and code",
    ),
    "submit": ("brorl_launcher.submit", "write a Slurm job and submit it, alone or as a chain"),
    "status": ("brorl_launcher.status", "show what a run is doing, its progress, and the time it still needs"),
    "attach": ("brorl_launcher.attach", "follow a run's log, or open a shell on one of its nodes"),
    "simulate": ("brorl_lab.commands.simulate", "run BroRL's simulator (Figure 3) and draw its tables and figures"),
    "advise": (
        "brorl_lab.commands.advise",
        "estimate what another N, or another way to fill batches, would do for a run",
    ),
    "runs": ("brorl_launcher.runs", "list run folders: state, step, pass@1, throughput, cost"),
    "diff": ("brorl_lab.commands.diff", "show which settings of two runs differ, and their metrics side by side"),
    "sweep": ("brorl_lab.commands.sweep", "run a grid of settings from one file, and compare the results"),
    "plateau": ("brorl_lab.commands.plateau", "show where the plateau detector would have raised a run's N"),
}


def main() -> int:
    """Run the command that `sys.argv` names and return its exit code.

    A mistake in the user's input is reported as one message on stderr, with exit code 2.
    """
    _open_closed_streams()
    sys.excepthook = show_bug
    try:
        with cut_by_signals():
            return _run(sys.argv[1:])
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe: the command may not be over.
        _discard_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if not is_refused(error):
            raise
        _discard_output()
        write_error(f"error: {cannot_write(Path(error.filename or 'a file'), error)}\n")
        return USER_ERROR
    except BroRLError as error:
        write_error(f"error: {error}\n")
        return error.exit_code
    except StartCut as cut:
        write_error(f"\n{cut}\n")
        return cut.exit_code
    except KeyboardInterrupt:
        write_error("\ninterrupted; the last checkpoint is kept\n")
        return INTERRUPTED


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:2], "--help", *arguments[2:]]
    if not arguments or arguments[0] in ("-h", "--help"):
        write_words(usage())
        return 0 if arguments else USER_ERROR
    command, *rest = arguments
    if command in ("-V", "--version"):
        write_out(f"nemo_brorl {__version__}\n")
        return 0
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, 1)
        hint = f". Did you mean {near[0]}?" if near else ""
        write_error(f"error: there is no command '{command}'{hint}\n\n{usage()}")
        return USER_ERROR
    module_name, _ = COMMANDS[command]
    sys.argv = [f"brorl {command}", *rest]
    try:
        # Other commands' modules are not imported: some take seconds.
        with quick_imports():
            module = importlib.import_module(module_name)
        return int(module.main(rest))
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in LIBRARIES:
            raise
        raise ConfigError(
            f"`brorl {command}` needs {library}, which is not installed here: {LIBRARIES[library]}"
        ) from error


def _open_closed_streams() -> None:
    """Give standard streams that the caller has closed to /dev/null: files of ours would get their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # open until the end


def _discard_output() -> None:
    """Send what is left for standard output nowhere: the flush at exit would fail as the write before it did."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Write the traceback of an exception that nobody expected, inert, to standard error."""
    write_error("".join(traceback.format_exception(kind, error, trace)))


def usage() -> str:
    """Return what `brorl --help` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return (
        "usage: brorl COMMAND [options]\n\n"
        + "\n".join(lines)
        + "\n\nbrorl help COMMAND shows its options, brorl --version the version.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
