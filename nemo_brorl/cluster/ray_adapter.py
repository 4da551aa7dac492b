"""Hold everything that this package uses of Ray's internals, written against Ray 2.60.0.

Names with a leading underscore and the words of an error may change in the next release. Each one here has the reason
why the public interface is not enough. `tests/unit/cluster/test_ray_adapter.py` compares them with the installed
version.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VERSION = "2.60.0"

# Actor calls that Ray's control store remembers for its own tools, some KiB each (Ray's default: 100,000), and whether
# Ray starts a process for each core before it answers, which took 48 s for 24 cores on two busy ones.
_SYSTEM_CONFIG = {"task_events_max_num_task_in_gcs": 1000, "prestart_worker_first_driver": False}
# Words of the errors that Ray raises when its raylet takes longer than its fixed 30 seconds, or one of its processes
# ends. These errors have no class of their own.
_LOST_AT_START = ("node timed out during startup", "Failed to start GCS")


def system_options(sessions: Path | None) -> dict[str, Any]:
    """Return arguments of `ray.init` for a Ray cluster that this process starts.

    They limit how much Ray's control store (GCS) remembers and which processes Ray starts, and set the folder of Ray's
    sessions. With None, Ray uses
    its default folder, which every user may enter. `ray start` has options for both, but `ray.init` knows them only
    under these private names.
    """
    # Ray adds entries to the dict that it gets, so it gets a copy.
    options: dict[str, Any] = {"_system_config": dict(_SYSTEM_CONFIG)}
    if sessions is not None:
        options["_temp_dir"] = str(sessions)
    return options


@contextlib.contextmanager
def without_monitor() -> Iterator[None]:
    """Let Ray start without its autoscaler's monitor, which nothing here uses.

    The monitor answers requests for metrics to anybody, on all interfaces and without Ray's token. `ray start` has the
    option --no-monitor, and `ray.init` none.
    """
    from ray._private.node import Node

    start = Node.start_monitor
    Node.start_monitor = lambda node: None
    try:
        yield
    finally:
        Node.start_monitor = start


def is_lost_at_start(error: Exception) -> bool:
    """Return True if another try to start Ray may succeed, because this error is one such as a lost Ray process."""
    said = str(error)
    return any(words in said for words in _LOST_AT_START)


def start_stream(method: Any, num_ahead: int | None = None) -> Any:
    """Call an actor's generator method without arguments, and return references to the items that it yields.

    Ray's generator of object references is returned.

    With `num_ahead` the actor yields at most that many items before the caller has taken them. Ray has this option only
    under its private name.
    """
    options: dict[str, Any] = {"num_returns": "streaming"}
    if num_ahead is not None:
        options["_generator_backpressure_num_objects"] = num_ahead
    return method.options(**options).remote()


def end_in_order(actor: Any) -> Any:
    """Let an actor's process end after the calls that it has already received.

    Returns a reference that resolves when the process ends. `ray.kill` does not wait for these calls, and dropping the
    last actor handle gives nothing to wait for.
    """
    return actor.__ray_terminate__.remote()
