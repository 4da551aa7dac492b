"""The command line of bubblewrap, which may make namespaces where we may not: its program is set-uid, or has a profile
of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from nemo_brorl.tasks.sandbox.confine import DEVICES, SCRATCH


def wrapped(command: Sequence[str], readable: Sequence[str], scratch_bytes: int) -> list[str]:
    """`command` as process 1 of new namespaces, with the root that `confine.py` makes where it may. It dies with its
    parent."""
    options = [shutil.which("bwrap") or "bwrap", "--unshare-all", "--as-pid-1", "--die-with-parent", "--new-session"]
    for path in readable:
        options += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
    for device in DEVICES:
        options += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    return [
        *options,
        "--size",
        str(scratch_bytes),
        "--tmpfs",
        SCRATCH,
        "--remount-ro",
        "/",
        "--chdir",
        "/",
        "--",
        *command,
    ]
