"""How many examples a test of this folder draws, by which seed, and how long one may take."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, Phase, settings

EXAMPLES = "BRORL_FUZZ_EXAMPLES"  # of the environment: of all tests together
SEED = "BRORL_FUZZ_SEED"
FEW = 200
HANG_S = 60.0  # far beyond what the slowest example takes on a busy machine


def fuzz(share: float) -> Any:
    """Settings of a test that takes this share of all examples. Without a seed they are the same in every run."""
    num = round(share * int(os.environ.get(EXAMPLES, FEW)))
    return settings(
        max_examples=max(num, 2),
        derandomize=SEED not in os.environ,
        database=None,
        phases=[Phase.explicit, Phase.generate],  # an example as it was found: making it small takes minutes
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


@contextlib.contextmanager
def no_hang(what: str) -> Iterator[None]:
    """Inside, whatever takes longer than HANG_S fails."""

    def fail(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"{what} hangs")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
