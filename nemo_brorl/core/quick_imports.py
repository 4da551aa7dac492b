"""Import libraries in less CPU time: garbage collections would take a fifth."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports(*left_out: str) -> Iterator[None]:
    """Import inside this context without garbage collections, and exempt from later ones what is there at its end.

    Libraries `left_out` are missing inside, unless they are imported already: other libraries import them only because
    they are installed.
    """
    hidden = [name for name in left_out if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    is_outermost = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
        if is_outermost:
            gc.freeze()
            gc.enable()
