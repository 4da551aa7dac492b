"""Memory of this process, as the kernel counts it."""

from __future__ import annotations

import ctypes
from pathlib import Path


def private_bytes() -> int:
    """Memory of this process that no other shares: weights that are read from the object store are not in it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon: this kernel is older than 4.5")


def trim_heap() -> None:
    """Give freed memory back to the system, as far as the C library can."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
