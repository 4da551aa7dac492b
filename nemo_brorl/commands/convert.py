"""`brorl convert [OPTIONS] [--config-name NAME] [KEY=VALUE ...]` exports a checkpoint as a Hugging Face folder.

Options of this command:
  --checkpoint FOLDER      a step_K folder (default: the newest complete one of the run folder)
  --output FOLDER          folder of the model (default: hf_step_K in the run folder)
  --push-to-hub USER/NAME  upload the folder to the Hugging Face hub
  --public                 make a new repository public (default: private)
  --dry-run                list the files to upload, without using the network
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from nemo_brorl.commands.hub import files_to_push, push
from nemo_brorl.commands.run import run_command
from nemo_brorl.config.load import CommandLine
from nemo_brorl.config.memory import check_memory
from nemo_brorl.config.model_rules import check_model_rules
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console
from nemo_brorl.training.export import convert_into, empty, is_converted, newest_checkpoint


def main(argv: Sequence[str]) -> int:
    """Run `brorl convert` and return its exit code: 0 done, 2 a mistake in the input, 1 a bug."""
    options, rest = parse(argv)
    return run_command("convert", __doc__, rest, partial(convert, options))


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options of `brorl convert`, and the remaining arguments, which all commands share."""
    parser = argparse.ArgumentParser(prog="brorl convert", add_help=False, allow_abbrev=False)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--push-to-hub")
    parser.add_argument("--public", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_known_args(argv)


def convert(options: argparse.Namespace, config: BroRLConfig, line: CommandLine) -> int:
    """Export a checkpoint's weights to a Hugging Face folder, upload them if requested, and return the exit code.

    Raises CheckpointError when the checkpoint is missing, or the output exists already.
    """
    check_model_rules(config, has_engines=False)
    check_memory(config)
    start = time.monotonic()
    run_folder = Path(config.exp_manager.explicit_log_dir)
    checkpoint = newest_checkpoint(options.checkpoint or run_folder / "checkpoints", "--checkpoint")
    output = options.output or run_folder / f"hf_{checkpoint.name}"
    console = Console()
    if options.push_to_hub is None or not is_converted(checkpoint, output):
        empty(output, "--output")
        write_converted(config, checkpoint, output)
        console.line(f"{checkpoint} written to {output} in {time.monotonic() - start:.0f} s")
    if options.push_to_hub is not None and options.dry_run:
        list_upload(output, options.push_to_hub, options.public, console)
    elif options.push_to_hub is not None:
        address = push(output, options.push_to_hub, not options.public)
        console.line(f"{output} is {address}")
    return 0


def list_upload(folder: Path, repository: str, is_public: bool, console: Console) -> None:
    """Print the files of a folder that would be uploaded to a repository, with their sizes."""
    kind = "public" if is_public else "private"
    console.line(f"{repository} ({kind}) would get of {folder}:")
    for name in files_to_push(folder):
        size = (folder / name).stat().st_size
        console.line(f"{size:15,} bytes  {name}")


def write_converted(config: BroRLConfig, checkpoint: Path, output: Path) -> None:
    """Write a checkpoint's weights as a Hugging Face folder, after loading them into the Megatron policy's ranks."""
    from nemo_brorl.commands.wiring import policy_alone

    with policy_alone(config) as policy:
        policy.load(checkpoint / "policy")
        convert_into(checkpoint, output, policy.export)
