"""Everything that this package uses of Ray's inside, written against Ray 2.60.0.

What begins with an underscore, and the words of an error, may be another in the next release: they stand here, each
with the reason why the public interface does not do. `tests/unit/cluster/test_ray_adapter.py` holds them against the
installed version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

VERSION = "2.60.0"

# Calls of actors that Ray's control store keeps for its own tools: some KiB each, and 100,000 unless told otherwise.
_SYSTEM_CONFIG = {"task_events_max_num_task_in_gcs": 1000}
# Words of the exceptions that Ray raises when its raylet takes longer than its fixed 30 seconds, or a process of it
# ends. They are bare ones, of no class of their own.
_LOST_AT_START = ("node timed out during startup", "Failed to start GCS")


def system_options(sessions: Path | None) -> dict[str, Any]:
    """Return arguments of `ray.init` for a Ray that is started here: what its control store keeps, and the folder of
    its sessions (None: Ray's own, which everybody may enter). `ray start` has both as options, `ray.init` by these
    names alone."""
    # A copy: Ray adds to it.
    options: dict[str, Any] = {"_system_config": dict(_SYSTEM_CONFIG)}
    if sessions is not None:
        options["_temp_dir"] = str(sessions)
    return options


def is_lost_at_start(error: Exception) -> bool:
    """Say whether Ray's start failed in a way that another try may not."""
    said = str(error)
    return any(words in said for words in _LOST_AT_START)


def start_stream(method: Any, num_ahead: int | None = None) -> Any:
    """Call an actor's method without arguments; returns the generator of references to what it yields. With `num_ahead`
    the actor makes no more than that many beyond those that were taken, which Ray knows under this name only."""
    options: dict[str, Any] = {"num_returns": "streaming"}
    if num_ahead is not None:
        options["_generator_backpressure_num_objects"] = num_ahead
    return method.options(**options).remote()


def end_in_order(actor: Any) -> Any:
    """Let an actor's process end once it has done what it was asked before; returns a reference that resolves then.
    `ray.kill` does not wait for that, and to drop the last handle gives nothing to wait for."""
    return actor.__ray_terminate__.remote()
