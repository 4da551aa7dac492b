"""`brorl report RUN [RUN ...]` writes one HTML file about runs, to open in a browser.

It shows curves, prompts, responses, timeline, settings and a comparison.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from brorl_lab.page.page import MIB, render_report
from brorl_lab.page.runs import open_runs
from nemo_brorl.config.load import load_config
from nemo_brorl.core.console import Console, setup_logging
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.core.files import write_atomically
from nemo_brorl.core.start_report import StageReport

NAME = "report.html"
MAX_MIB = 5.0


def main(argv: Sequence[str]) -> int:
    """Write an HTML report about training runs. Exit code: 0 done, 2 a mistake in the input."""
    parser = argparse.ArgumentParser(prog="brorl report", description=__doc__)
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="run folder; with --config-name KEY=VALUE, as for `brorl train`",
    )
    parser.add_argument("--config-name", "-cn", help="report on the run of these settings")
    parser.add_argument("--output", type=Path, help=f"file (default: {NAME} in the first run folder)")
    parser.add_argument(
        "--max-mib",
        type=float,
        default=MAX_MIB,
        help=f"responses are added up to this size of the file (default: {MAX_MIB:g})",
    )
    options = parser.parse_args(argv)
    setup_logging()
    folders = chosen_folders(options.runs, options.config_name)
    runs = open_runs(folders)
    output = options.output or folders[0] / NAME
    console = Console()
    with StageReport(console) as watch:
        text = render_report(runs, options.max_mib, watch)
    try:
        write_atomically(output, text)
    except OSError as error:
        raise ConfigError(f"--output {output}: {error.strerror}; pass a file in a folder that is there") from error
    console.line(f"report of {', '.join(run.name for run in runs)}: {output} ({len(text) / MIB:.1f} MiB)")
    return 0


def chosen_folders(given: Sequence[str], config_name: str | None) -> list[Path]:
    """Return the run folders that a command line gives, or the one that the settings `config_name` name.

    Raises ConfigError when the command line gives neither.
    """
    if config_name is not None:
        config = load_config(config_name, given)
        return [Path(config.exp_manager.explicit_log_dir)]
    if not given:
        raise ConfigError("no run is given: pass the folder of a run, or --config-name NAME")
    return [Path(name) for name in given]
