"""Common way into the commands that take the settings of a run: the command line is read and checked in about a second,
without torch; then the command loads what it needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from nemo_brorl.config.load import CommandLine, load_config, parse_command_line
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import BroRLError
from nemo_brorl.core.logs import setup_logging

INTERRUPTED = 130

Body = Callable[[BroRLConfig, CommandLine], int]  # a command, from its settings to its exit code


def run_command(
    command: str,
    description: str | None,
    argv: Sequence[str],
    body: Body,
) -> int:
    """Run `body` with the settings of a command line. Returns its exit code; a `BroRLError` is one message and its own
    code, anything else a traceback."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or every actor compiles every module it imports, each time
    line = parse_command_line(argv, command, (description or "").strip())
    setup_logging()
    try:
        return body(load_config(*line), line)
    except BroRLError as error:
        sys.stderr.write(f"\nerror: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; what the last checkpoint holds is kept\n")
        return INTERRUPTED
