"""Logging for driver and actors: one format, one place that decides verbosity. Standard library only."""

import logging
import os
import sys


def get_logger(name: str) -> logging.Logger:
    """The logger of one module; `name` is its `__name__`."""
    return logging.getLogger(name)


def setup_logging(role: str = "driver", level: str | None = None) -> None:
    """Send this process's `nemo_brorl` records to stderr, stamped with the time and the role (`driver`, `policy 0`,
    `engine 1`).

    `level` falls back to the environment variable BRORL_LOG_LEVEL, then to INFO. Calling it again replaces the handler.
    """
    root = logging.getLogger("nemo_brorl")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s {role} %(levelname).1s %(message)s", datefmt="%H:%M:%S"))
    root.handlers[:] = [handler]
    root.setLevel(level or os.environ.get("BRORL_LOG_LEVEL", "INFO"))
    root.propagate = False
