"""`brorl convert [--config-name NAME] [KEY=VALUE ...]` writes the weights of a training checkpoint as a Hugging Face
folder, and uploads it where `convert.push_to_hub` says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from nemo_brorl.cluster.fit.memory import check_memory, check_model_rules
from nemo_brorl.commands.hub import files_to_push, push
from nemo_brorl.commands.run import run_command
from nemo_brorl.config.convert import ConvertConfig
from nemo_brorl.config.load import CommandLine
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console
from nemo_brorl.training.export import convert_into, empty, is_converted, newest_checkpoint


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 done, 2 a mistake in the input, 1 a bug."""
    return run_command("convert", __doc__, argv, convert)


def convert(config: BroRLConfig, line: CommandLine) -> int:
    """Write the weights. Raises CheckpointError when the checkpoint is not there, or when the output is."""
    check_model_rules(config)
    check_memory(config)
    start = time.monotonic()
    run_folder = Path(config.exp_manager.explicit_log_dir)
    given = Path(config.convert.checkpoint or run_folder / "checkpoints")
    checkpoint = newest_checkpoint(given, "convert.checkpoint")
    output = Path(config.convert.output or run_folder / f"hf_{checkpoint.name}")
    console = Console()
    if config.convert.push_to_hub is None or not is_converted(checkpoint, output):
        empty(output, "convert.output")
        write_converted(config, checkpoint, output)
        console.line(f"{checkpoint} written to {output} in {time.monotonic() - start:.0f} s")
    if config.convert.push_to_hub is not None:
        push_converted(config.convert, output, console)
    return 0


def push_converted(settings: ConvertConfig, folder: Path, console: Console) -> None:
    """Upload the folder, or say what would be. Raises CheckpointError."""
    repository = settings.push_to_hub
    assert repository is not None, "there is nowhere to upload to"
    if not settings.dry_run:
        address = push(folder, repository, settings.private)
        console.line(f"{folder} is {address}")
        return
    kind = "private" if settings.private else "public"
    console.line(f"{repository} ({kind}) would get of {folder}:")
    for name in files_to_push(folder):
        size = (folder / name).stat().st_size
        console.line(f"{size:15,} bytes  {name}")


def write_converted(config: BroRLConfig, checkpoint: Path, output: Path) -> None:
    """Write a checkpoint's weights as a Hugging Face folder, through the policy's ranks."""
    from nemo_brorl.commands.wiring import policy_alone

    with policy_alone(config) as policy:
        policy.load(checkpoint / "policy")
        convert_into(checkpoint, output, policy.export)
