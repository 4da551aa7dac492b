"""The process that verifier children are forked from: `python -m nemo_brorl.tasks.scoring.nursery FD`.

Libraries are imported here, once, when a verifier that needs them is first asked for; a child that takes a killed one's
place inherits them and scores after milliseconds. It runs no verifier itself, so nothing that a response does can hang
it. It serves one parent over the socket FD, one request at a time:

- `("load", verifier)` → None, or why it cannot be loaded;
- `("fork", None)`, followed by a file descriptor → process id of a new child, which serves that descriptor;
- `("end", process id)` → None, once the child and its process group are gone.

Before the first request it says READY. It ends, and its children with it, when the parent goes away.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle

from nemo_brorl.core.errors import BroRLError
from nemo_brorl.tasks.scoring.child import VERIFIER_ERRORS, die_with_parent, live
from nemo_brorl.tasks.verifiers.registry import find

READY = "ready"


def main(arguments: list[str]) -> None:
    """Serve until the parent closes its end."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    control = Connection(int(arguments[0]))
    control.send(READY)
    while True:
        try:
            request, argument = control.recv()
        except EOFError:
            return
        if request == "load":
            control.send(_load(argument))
        elif request == "fork":
            control.send(_fork(control))
        else:
            _end(argument)
            control.send(None)


def _load(verifier: str) -> str | None:
    try:
        find(verifier).load()
    except BroRLError as error:
        return str(error)
    except VERIFIER_ERRORS as error:
        return f"verifier {verifier!r} cannot be loaded: {type(error).__name__}: {error}"
    gc.collect()
    gc.freeze()  # what is loaded now is not touched by a child's garbage collector, and stays shared memory
    return None


def _fork(control: Connection) -> int:
    descriptor = recv_handle(control)
    os.set_inheritable(
        descriptor, False
    )  # not for programs that a verifier starts: the parent must notice when the child ends
    nursery = os.getpid()
    process = os.fork()
    if process:
        os.close(descriptor)
        return process
    status = 1
    try:
        control.close()
        live(Connection(descriptor), nursery)
        status = 0
    finally:  # a child never goes on as a second nursery, whatever it dies of
        if status:
            traceback.print_exc()
        os._exit(status)


def _end(process: int) -> None:
    try:
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # ended before: its number may be another process's by now
        return
    for kill in (os.killpg, os.kill):  # the group does not exist yet in a child's first moment
        try:
            kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
    os.waitpid(process, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
