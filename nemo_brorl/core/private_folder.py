"""Create folders on a node's own disk that no other user can enter.

They hold Ray's sockets and logs, compiled kernels, and home folders of child processes. Their names can be guessed and
every user can write to /tmp, so a folder that another user created first is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from brorl_graders.base.private_folder import make_private, private_folder

# Environment variables with the folders of compiled kernels, and the name that each folder gets.
KERNEL_CACHES = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor", "VLLM_CACHE_ROOT": "vllm"}
# By default, Inductor compiles into a folder of /tmp with a guessable name, Triton and vLLM into the home folder.
INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"


def kernel_caches(names: Iterable[str] = tuple(KERNEL_CACHES)) -> dict[str, str]:
    """Return environment variables that keep compiled kernels in a private folder.

    The folder is $BRORL_CACHE, or `cache` below `private_folder`. Variables among `names` that the environment already
    sets are left out, and their folders are not checked. Raises ResourceError.
    """
    missing = [name for name in names if name not in os.environ]
    if not missing:
        return {}
    named = os.environ.get("BRORL_CACHE")
    folder = Path(named).absolute() if named else private_folder() / "cache"
    make_private(folder, "BRORL_CACHE")
    return {name: str(folder / KERNEL_CACHES[name]) for name in missing}
