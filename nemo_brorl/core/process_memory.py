"""Read and trim the memory of this process."""

from __future__ import annotations

import ctypes
from pathlib import Path


def private_bytes() -> int:
    """Return the bytes of memory that this process does not share; mapped object-store weights are not counted."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon: this kernel is older than 4.5")


def trim_heap() -> None:
    """Return freed memory to the operating system, if the C library supports it (malloc_trim)."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
