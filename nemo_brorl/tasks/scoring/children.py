"""Children of a process pool, by what they may do and whom they serve.

A child serves payloads of one `Isolation`. Those of verifiers that judge by themselves are shared by all prompts, and
rest while another kind is at the front: what they remember is worth keeping. One that runs a library's scorer serves
one prompt and is ended before the next one, so that nothing that a response does to it lasts.
"""

from __future__ import annotations

from multiprocessing.connection import Pipe

from nemo_brorl.tasks.scoring.child_process import ChildProcess, Isolation
from nemo_brorl.tasks.scoring.fork_server import ForkServer


class Children:
    """Owns the children. Not thread-safe, as the fork server is not. Methods raise ResourceError when that is gone."""

    def __init__(self, fork_server: ForkServer) -> None:
        self.fork_server = fork_server
        self.front: ChildProcess | None = None
        self.aside: list[ChildProcess] = []
        self.resting: dict[Isolation, ChildProcess] = {}

    def all(self) -> list[ChildProcess]:
        """The one at the front first."""
        front = [] if self.front is None else [self.front]
        return [*front, *self.aside, *self.resting.values()]

    def busy(self) -> list[ChildProcess]:
        """Those that are scoring."""
        return [child for child in self.all() if child.job is not None]

    def make_front(self, isolation: Isolation) -> ChildProcess:
        """Have an idle child at the front that may serve such payloads."""
        if self.front is not None and self.front.isolation != isolation:
            self._retire(self.front)
        if self.front is None:
            self.front = self.resting.pop(isolation, None)
        if self.front is not None and self.front.connection.poll():  # it has nothing to say unasked: it was killed
            self.end(self.front)
        if self.front is None:
            self.front = self._fork(isolation)
        return self.front

    def set_front_aside(self) -> None:
        """Let the child at the front go on with what it has."""
        assert self.front is not None, "only a child can be set aside"
        self.aside.append(self.front)
        self.front = None

    def end(self, child: ChildProcess) -> None:
        """Kill a child that has no texts."""
        if child is self.front:
            self.front = None
        elif child in self.aside:
            self.aside.remove(child)
        else:
            self.resting.pop(child.isolation)
        child.connection.close()
        self.fork_server.end(child.process)

    def end_idle(self) -> None:
        """Kill those that are scoring nothing."""
        for child in self.all():
            if child.job is None:
                self.end(child)

    def forget(self) -> None:
        """Let all of them go: the fork server takes them along."""
        for child in self.all():
            child.connection.close()
        self.front = None
        self.aside = []
        self.resting = {}

    def _retire(self, child: ChildProcess) -> None:
        if child.isolation.prompt is not None:
            self.end(child)
            return
        self.front = None
        self.resting[child.isolation] = child

    def _fork(self, isolation: Isolation) -> ChildProcess:
        connection, theirs = Pipe()
        with theirs:
            process = self.fork_server.fork(theirs.fileno(), isolation.is_closed)
        return ChildProcess(process, connection, isolation)
