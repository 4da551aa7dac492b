"""The driver of training, which says thirty times a second where it is, so that it can be struck there. Takes the
arguments of `brorl train`."""

from __future__ import annotations

import sys

from nemo_brorl.__main__ import main
from nemo_brorl.core import stall_watch

stall_watch.WRITE_INTERVAL_S = 0.03
sys.argv.insert(1, "train")
sys.exit(main())
