"""Command line of bubblewrap, the first choice where it is installed: its program is set-uid, or has a profile of its
own, and so may make namespaces where we may not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from nemo_brorl.tasks.sandbox.confine import DEVICES, SHARED
from nemo_brorl.tasks.sandbox.limits import NAMESPACES

PROGRAM = "bwrap"
NAMESPACE_OPTIONS = ("--unshare-all", "--as-pid-1", "--die-with-parent", "--new-session")


def is_usable(without: Sequence[str]) -> bool:
    """Whether bubblewrap is installed and may be tried: not as root, for whom it has no second user, so that the limit
    of processes would not act; nor where layers that it always makes are to be left out."""
    if os.getuid() == 0 or shutil.which(PROGRAM) is None:
        return False
    return not any(layer in without for layer in ("bubblewrap", *NAMESPACES))


def wrapped(
    command: Sequence[str],
    readable: Sequence[str],
    scratch: str,
    scratch_bytes: int,
) -> list[str]:
    """`command` as process 1 of new namespaces, with the root that `confine.py` makes where it may. It dies with its
    parent."""
    options = [shutil.which(PROGRAM) or PROGRAM, *NAMESPACE_OPTIONS]
    for path in readable:
        if os.path.islink(path):
            options += ["--symlink", os.readlink(path), path]
        else:
            options += ["--ro-bind", path, path]
    for device in DEVICES:
        options += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    options += ["--symlink", scratch, SHARED]
    options += ["--size", str(scratch_bytes), "--tmpfs", scratch, "--remount-ro", "/", "--chdir", "/"]
    return [*options, "--", *command]
