"""`brorl watch RUN [RUN ...]` serves the page of `brorl report` on this machine, for runs that are still training.

The page also offers every response.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import signal
from collections.abc import Sequence
from pathlib import Path

from brorl_lab.page.runs import open_runs
from brorl_lab.page.server import HOST, Pages, make_server
from nemo_brorl.core.console import Console, setup_logging
from nemo_brorl.core.errors import ConfigError

TOKEN_BYTES = 18


def main(argv: Sequence[str]) -> int:
    """Serve the report page of runs that are still training. Exit code: 0 ended by Ctrl-C, 2 a mistake in the input."""
    parser = argparse.ArgumentParser(prog="brorl watch", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder; may be on a shared disk")
    parser.add_argument("--port", type=int, default=0, help="of this machine (default: a free one)")
    options = parser.parse_args(argv)
    setup_logging()
    pages = Pages(open_runs(options.runs))
    token = secrets.token_urlsafe(TOKEN_BYTES)
    try:
        server = make_server(pages, token, options.port)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--port {options.port}: {error}; pass a free port, or leave it out") from error
    # A shell's background job inherits a setting that ignores Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    console = Console()
    with server, contextlib.suppress(KeyboardInterrupt):
        console.line(f"http://{HOST}:{server.server_port}/?token={token}")
        console.line(f"read-only, this machine alone; from elsewhere: ssh -L {server.server_port}:{HOST}:"
                     f"{server.server_port} THIS-MACHINE. Ctrl-C ends it.")  # fmt: skip
        server.serve_forever()
    console.line()
    return 0
