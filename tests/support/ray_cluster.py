"""Ray in this test process, which stays up from file to file: a start takes seconds of every core."""

from __future__ import annotations

from typing import Any

import psutil
import ray

from nemo_brorl.cluster.ray_cluster import start_ray
from tests.support.forked_workers import use_forked_workers

_settings: dict[str, Any] = {}


def use_ray(**settings: Any) -> None:
    """Ray is up with these settings of `ray.init`: the one that is there, or a new one in its place."""
    if ray.is_initialized() and _settings == settings:
        return
    end_ray()
    use_forked_workers()
    before = psutil.Process().children(recursive=True)
    start_ray(lambda: ray.init(include_dashboard=False, logging_level="ERROR", **settings), before)
    _settings.update(settings)


def end_ray() -> None:
    """For tests that start Ray themselves, and at the end of all."""
    ray.shutdown()
    _settings.clear()
