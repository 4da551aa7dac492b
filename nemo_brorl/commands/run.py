"""The way every command goes: read the command line, check the settings (in about a second, without torch), then load
the rest."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from nemo_brorl.config.evaluation_rules import with_model_of_checkpoint
from nemo_brorl.config.load import load_config, parse_command_line
from nemo_brorl.config.memory import check_memory
from nemo_brorl.config.model_rules import check_model_rules
from nemo_brorl.config.rules import check_sft_rules
from nemo_brorl.core.errors import BroRLError
from nemo_brorl.core.logs import setup_logging

INTERRUPTED = 130


def run_command(command: str, description: str | None, argv: Sequence[str]) -> int:
    """Run `train`, `evaluate`, `convert` or `sft`. Returns the exit code, which is what the command returns (None: 0);
    a `BroRLError` is one message and its own code, anything else a traceback."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or every actor compiles every module it imports, each time
    line = parse_command_line(argv, command, (description or "").strip())
    setup_logging()
    try:
        config = load_config(*line)
        if command == "evaluate":
            config = with_model_of_checkpoint(config)
        if command == "sft":
            check_sft_rules(config)
        else:
            check_model_rules(config)
            check_memory(config, with_policy=command != "evaluate" or config.evaluation.checkpoint is not None)
        runs = importlib.import_module("nemo_brorl.commands.runs")  # Ray, tokenizers, …: only for settings that hold
        code: int | None = getattr(runs, command)(config, line)
    except BroRLError as error:
        sys.stderr.write(f"\nerror: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; what the last checkpoint holds is kept\n")
        return INTERRUPTED
    return code or 0
