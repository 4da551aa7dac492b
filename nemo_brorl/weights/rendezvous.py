"""Let the members of a broadcast group meet before the group is built.

Rank 0 serves a store, and the receivers sign in there. When all have signed in, rank 0 says so, and every member builds
the group. If some are late, rank 0 writes their names into the store. Then every member raises an error that names
them.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

from nemo_brorl.core.errors import ReceiverLostError, WeightSyncError
from nemo_brorl.types import WeightLink
from nemo_brorl.weights.broadcast_group import WeightGroup

_POLL_S = 0.01
# Extra seconds that receivers wait after rank 0's limit, to read which members are late.
_VERDICT_S = 5.0
_STORE_TIMEOUT = timedelta(minutes=5)
_COMPLETE = "complete"
_LATE = "late"


def open_store(
    host: str,
    world_size: int | None = None,
    timeout: timedelta = _STORE_TIMEOUT,
) -> dist.TCPStore:
    """Serve a TCP store in this process, at which ranks meet, on `host` alone and a free port (`store.port`).

    By default torch would listen on all interfaces, and a store has no authentication.
    """
    family = socket.getaddrinfo(host, None)[0][0]
    with socket.create_server((host, 0), family=family) as listener:
        return dist.TCPStore(
            host,
            listener.getsockname()[1],
            world_size,
            is_master=True,
            wait_for_workers=False,
            timeout=timeout,
            master_listen_fd=listener.detach(),
        )


def wait_for_receivers(link: WeightLink, store: dist.Store) -> WeightGroup:
    """Wait on policy rank 0 until all engines' workers have signed in, and return rank 0's end of the weight broadcast.

    Raises ReceiverLostError naming the workers that did not come in time.
    """
    names = sign_in_names(link)
    late = _late(store, names, link.timeout_s)
    if late:
        message = f"{', '.join(late)} did not join the weight group within {link.timeout_s:g} s"
        store.set(_LATE, message)
        raise ReceiverLostError(message)
    store.set(_COMPLETE, "")
    return WeightGroup(link, store, 0)


def join(
    link: WeightLink,
    receiver: int,
    worker: int,
) -> WeightGroup:
    """Sign in as one worker of an inference engine, and return the worker's end of the weight broadcast group.

    Raises ReceiverLostError when other members are late, WeightSyncError when policy rank 0 does not answer.
    """
    number = receiver * link.workers_per_receiver + worker
    silent = f"policy rank 0 did not open the weight group within {link.timeout_s:g} s"
    try:
        timeout = timedelta(seconds=link.timeout_s)
        store = dist.TCPStore(link.host, link.port, None, is_master=False, timeout=timeout)
        names = sign_in_names(link)
        store.set(names[number], "")
        deadline = time.monotonic() + link.timeout_s + _VERDICT_S
        while not store.check([_COMPLETE]):
            if store.check([_LATE]):
                raise ReceiverLostError(store.get(_LATE).decode())
            if time.monotonic() > deadline:
                raise WeightSyncError(silent)
            time.sleep(_POLL_S)
    except dist.DistError as cause:
        raise WeightSyncError(f"{silent}: {cause}") from cause
    return WeightGroup(link, store, number + 1)


def sign_in_names(link: WeightLink) -> list[str]:
    """Return the names with which the engines' workers sign in for a weight broadcast, in rank order."""
    if link.workers_per_receiver == 1:
        return list(link.receivers)
    names = []
    for receiver in link.receivers:
        for worker in range(link.workers_per_receiver):
            names.append(f"{receiver} worker {worker}")
    return names


def _late(
    store: dist.Store,
    names: Sequence[str],
    timeout_s: float,
) -> list[str]:
    """Return the names of workers that have not signed in for the weight broadcast when the time is over."""
    deadline = time.monotonic() + timeout_s
    missing = list(names)
    while True:
        missing = [name for name in missing if not store.check([name])]
        if not missing or time.monotonic() > deadline:
            return missing
        time.sleep(_POLL_S)
