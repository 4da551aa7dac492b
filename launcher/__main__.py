"""`python -m launcher COMMAND …`: from a configuration to a job on a cluster, and what has become of it."""

from __future__ import annotations

import importlib
import os
import sys

from nemo_brorl.errors import USER_ERROR, BroRLError

INTERRUPTED = 130

COMMANDS = {
    "plan": "does a run fit its GPUs, how long does a step take, which layout would be better",
    "render": "write a job for Slurm: the script, and the settings and the code it runs with",
    "submit": "render a job and hand it to Slurm, alone or as a chain",
    "status": "what a run is doing, how far it is, and how long it will take",
    "attach": "follow a run's log, or open a shell on one of its nodes",
}


def main() -> int:
    """Exit code: the command's; 2 for a mistake in the input, with one message."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(usage())
        return 0 if arguments else USER_ERROR
    command, *rest = arguments
    if command not in COMMANDS:
        sys.stderr.write(f"error: there is no command '{command}'\n\n{usage()}")
        return USER_ERROR
    module = importlib.import_module(f"launcher.{command}")  # the others are not waited for
    try:
        code = int(module.main(rest))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `… | head` has read enough; what is left is not to fail once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except BroRLError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED


def usage() -> str:
    """What `python -m launcher --help` prints."""
    lines = [f"  {name:<8} {summary}" for name, summary in COMMANDS.items()]
    return (
        "usage: python -m launcher COMMAND [options]\n\n"
        + "\n".join(lines)
        + "\n\nEvery command answers --help. Start at docs/cluster.md.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
