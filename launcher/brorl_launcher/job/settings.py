"""Write the settings that the job script needs, as a file that bash can source.

`python -m brorl_launcher.job.settings --output FILE -- COMMAND LINE` is the first step of a job, so a wrong setting
ends the job before anything else starts.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from nemo_brorl.config.load import load_config, parse_command_line
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import write_error
from nemo_brorl.core.errors import USER_ERROR, BroRLError


def main(argv: Sequence[str]) -> int:
    """Write the settings that a job script needs to a file, as shell variables.

    Returns exit code 0, or 2 for a mistake in the settings.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    split = argv.index("--") if "--" in argv else len(argv)
    options = parser.parse_args(argv[:split])
    try:
        config = load_config(*parse_command_line(argv[split + 1 :]))
    except BroRLError as error:
        write_error(f"\nerror: {error}\n")
        return USER_ERROR
    options.output.write_text(as_shell(config))
    return 0


def as_shell(config: BroRLConfig) -> str:
    """Return the settings that the job script needs, as quoted assignments of shell variables."""
    run_folder = Path(config.exp_manager.explicit_log_dir).absolute()
    return (
        f"num_nodes={config.trainer.num_nodes}\n"
        f"gpus_per_node={config.trainer.gpus_per_node}\n"
        f"run_folder={shlex.quote(str(run_folder))}\n"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
