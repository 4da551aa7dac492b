"""The real pool that scores responses, watched: why verifiers failed, and which processes there are.

The layout of an older revision (1971a0e) is known as well, so that this folder, with tests/support/hostile_host.py, can
be copied into a checkout of it and shown to find what was open there.
"""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import nemo_brorl

LAYOUTS = (
    {
        "settings": "nemo_brorl.config.rewards:RewardsConfig",
        "code": "brorl_graders.verifiers.code.code",
        "deadlines": "brorl_graders.verifiers.payload",
        "pool": "brorl_graders.processes.process_pool:ProcessPool",
        "check": "brorl_graders.verifiers.registry:check_payload",
        "children": "child_pids",
    },
    {
        "settings": "nemo_brorl.config.schema:RewardsConfig",
        "code": "nemo_brorl.rewards.code",
        "deadlines": "nemo_brorl.rewards.deadlines",
        "pool": "nemo_brorl.rewards.crew:Crew",
        "check": "nemo_brorl.rewards:check_payload",
        "children": "children",
    },
)
TEXT_SECONDS = 5.0
CODE_SECONDS = 20.0
TEST_SECONDS = 2.0
OVERDUE = "has not ended after"  # how the pool begins to say that a deadline has come


def _is_there(layout: Mapping[str, str]) -> bool:
    """Whether the package in use has the layout; an editable install would find modules of another beside it."""
    root = Path(nemo_brorl.__file__ or "").parents[1]
    module = layout["code"].replace(".", "/") + ".py"
    return any((house / module).exists() for house in (root, root / "graders"))


LAYOUT = next(filter(_is_there, LAYOUTS))


def _named(key: str) -> Any:
    module, _, name = LAYOUT[key].partition(":")
    imported = importlib.import_module(module)
    return getattr(imported, name) if name else imported


RewardsConfig: Any = _named("settings")
code: Any = _named("code")
deadlines: Any = _named("deadlines")
check_payload: Callable[[str, Mapping[str, Any]], None] = _named("check")
Pool: Any = _named("pool")


class WatchedPool(Pool):  # type: ignore[misc]
    """The pool, and the reason of each failure."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        rewards = RewardsConfig(timeout_s=TEXT_SECONDS, timeouts={"code": CODE_SECONDS})
        rewards.code.test_timeout_s = TEST_SECONDS
        rewards.code.preload = ["numpy"]
        code.configure(rewards)
        super().__init__(deadlines.Deadlines.of(rewards))

    def _note_failure(self, job: Any, index: int, reason: str) -> None:
        self.reasons.append(reason)
        super()._note_failure(job, index, reason)

    def rewards(self, verifier: str, payload: Mapping[str, Any], texts: Sequence[str]) -> list[float | None]:
        """Reward of each text, None where the verifier failed."""
        scored: list[float | None] = self.score(verifier, payload, texts)
        return scored

    def replace_children(self) -> None:
        """Go on with a process that has scored nothing."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.score("exact_match", {"answer": "a"}, ["a"])  # may find that it has been killed
        self.reasons.clear()

    def processes(self) -> list[int]:
        """Process ids of those that score."""
        pids: list[int] = getattr(self, LAYOUT["children"])()
        return pids
