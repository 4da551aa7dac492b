"""Stands in for the driver: connects, says so, and waits to be ended; fails, as training does, when an actor of another
node is gone."""

from __future__ import annotations

import os

import ray


@ray.remote(num_cpus=1)
class Worker:
    def wait(self) -> None:
        """For ever."""
        import time

        while True:
            time.sleep(3600)


ray.init(log_to_driver=False, logging_level="ERROR")
workers = [Worker.options(scheduling_strategy="SPREAD").remote() for node in ray.nodes() if node["Alive"]]
os.write(1, b"idle driver: waiting\n")
ray.get([worker.wait.remote() for worker in workers])
