"""The driver of training, which says thirty times a second where it is, so that it can be struck there, and stays for
some seconds in stages that would be over too soon. Takes the arguments of `brorl train`."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from nemo_brorl.__main__ import main
from nemo_brorl.core import stall_watch
from nemo_brorl.core.stall_watch import Heartbeat, Stalled

SHORT = ("policy load", "policy export")  # stages, whose call is under way or done meanwhile
STAY_S = 3.0
enter = Heartbeat.stage


@contextlib.contextmanager
def stay(heartbeat: Heartbeat, name: str, *stalled: Stalled) -> Iterator[None]:
    """Inside, the run is at `name`, for some time."""
    with enter(heartbeat, name, *stalled):
        if name in SHORT:
            time.sleep(STAY_S)
        yield


stall_watch.WRITE_INTERVAL_S = 0.03
Heartbeat.stage = stay  # type: ignore[method-assign]
sys.argv.insert(1, "train")
sys.exit(main())
