"""Hold everything that this package uses of Ray's internals, written against Ray 2.60.0.

Names with a leading underscore and the words of an error may change in the next release. Each one here has the reason
why the public interface is not enough. `tests/unit/cluster/test_ray_adapter.py` compares them with the installed
version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

VERSION = "2.60.0"

# Actor calls that Ray's control store remembers for its own tools, some KiB each. Ray's default is 100,000.
_SYSTEM_CONFIG = {"task_events_max_num_task_in_gcs": 1000}
# Words of the errors that Ray raises when its raylet takes longer than its fixed 30 seconds, or one of its processes
# ends. These errors have no class of their own.
_LOST_AT_START = ("node timed out during startup", "Failed to start GCS")


def system_options(sessions: Path | None) -> dict[str, Any]:
    """Return arguments of `ray.init` for a Ray that is started here.

    They limit what its control store remembers, and set the folder of its sessions. None is Ray's default folder, which
    every user may enter. `ray start` has options for both, but `ray.init` knows them only under these private names.
    """
    # Ray adds entries to the dict that it gets, so it gets a copy.
    options: dict[str, Any] = {"_system_config": dict(_SYSTEM_CONFIG)}
    if sessions is not None:
        options["_temp_dir"] = str(sessions)
    return options


def is_lost_at_start(error: Exception) -> bool:
    """Return whether Ray's start failed in a way that another try may not."""
    said = str(error)
    return any(words in said for words in _LOST_AT_START)


def start_stream(method: Any, num_ahead: int | None = None) -> Any:
    """Call an actor's generator method without arguments, and return the generator of references to what it yields.

    With `num_ahead` the actor makes at most that many items before they are taken. Ray has this option only under its
    private name.
    """
    options: dict[str, Any] = {"num_returns": "streaming"}
    if num_ahead is not None:
        options["_generator_backpressure_num_objects"] = num_ahead
    return method.options(**options).remote()


def end_in_order(actor: Any) -> Any:
    """Let an actor's process end after the calls that it has already received. Return a reference that resolves then.

    `ray.kill` does not wait for these calls, and dropping the last handle gives nothing to wait for.
    """
    return actor.__ray_terminate__.remote()
