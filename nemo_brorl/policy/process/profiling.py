"""Profile chosen ranks in chosen steps, and record what fills a GPU's memory when it runs out.

The files are in `profiles/` of the run folder. `profile.kind=torch` writes a trace of operators and kernels by torch's
profiler, which Perfetto opens. With `nsys` the rank runs under Nsight Systems, which records between cudaProfilerStart
and cudaProfilerStop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from nemo_brorl.config.records import ProfileConfig
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.files import replacing
from nemo_brorl.policy.adapters.torch_adapter import remember_allocations, write_allocations

MAX_EVENTS = 100_000  # allocations in a memory snapshot

_log = get_logger(__name__)


class Profiling:
    """Profiler of one policy rank, as the settings request it."""

    def __init__(
        self,
        settings: ProfileConfig,
        folder: Path,
        rank: int,
        cuda: Any = torch.cuda,
    ) -> None:
        """Take the profiler settings of one policy rank and the folder that profiles are written to.

        `cuda` is the module torch.cuda, or a fake in tests.
        """
        self.settings = settings
        self.folder = folder
        self.rank = rank
        self.cuda = cuda
        self.keeps_memory = settings.memory_snapshot and cuda.is_available()
        if self.keeps_memory:
            remember_allocations(cuda, MAX_EVENTS)

    @contextmanager
    def of_update(self, step: int) -> Iterator[None]:
        """Profile the policy update inside this context, if the settings choose this policy rank and training step."""
        is_chosen = step in self.settings.steps and self.rank in self.settings.ranks
        if not is_chosen or self.settings.kind == "off":
            yield
        elif self.settings.kind == "nsys":
            self.cuda.profiler.start()
            try:
                yield
            finally:
                self.cuda.profiler.stop()
        else:
            with self._torch_profile(step):
                yield

    @contextmanager
    def of_memory(self) -> Iterator[None]:
        """Write a snapshot of the GPU's allocations if the code inside this context runs out of memory."""
        try:
            yield
        except torch.OutOfMemoryError:
            if self.keeps_memory:
                path = self._path("out_of_memory", "pickle")
                write_allocations(self.cuda, path)
                _log.error("out of memory: %s says what held it (pytorch.org/memory_viz opens it)", path)
            raise

    @contextmanager
    def _torch_profile(self, step: int) -> Iterator[None]:
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if self.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities) as recorded:
            yield
        path = self._path(f"step_{step:06d}", "json.gz")
        with replacing(path) as aside:
            recorded.export_chrome_trace(str(aside))
        _log.info("profile of step %d: %s", step, path)

    def _path(self, name: str, suffix: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{name}_rank_{self.rank}.{suffix}"
