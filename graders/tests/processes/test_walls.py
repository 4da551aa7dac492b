"""What an isolated scoring process may do, whom it serves, and which of its replies the owner accepts."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from brorl_graders.base.payload import Deadlines
from brorl_graders.processes.channel import ChildReplyError
from brorl_graders.processes.child import KernelIsolation, read_reply
from brorl_graders.processes.child_process import Isolation, ScoringTask
from brorl_graders.processes.process_pool import ProcessPool
from brorl_graders.sandbox import linux
from brorl_graders.verifiers.registry import Template, templates

from graders.tests.support.bad_verifiers import MISBEHAVE
from graders.tests.support.names import allow_also

pytestmark = pytest.mark.slow

# Tries each of these behind walls and says what came of it.
TRIES = """
import json, os, socket, subprocess, sys, threading
from brorl_graders.processes import child

def write():
    open(sys.argv[1] + "/new", "w")

def outcome(attempt):
    try:
        attempt()
    except Exception as error:
        return type(error).__name__
    return "done"

child.isolate_process(child.measure_isolation())
thread = threading.Thread(target=int)
tries = {
    "connect": lambda: socket.socket().connect(("127.0.0.1", 6379)),
    "local socket": lambda: socket.socket(socket.AF_UNIX),
    "file in flight": lambda: socket.send_fds(socket.socketpair()[0], [b"x"], [0]),
    "fork": os.fork,
    "program": lambda: subprocess.run(["true"]),
    "signal": lambda: os.kill(os.getppid(), 0),
    "read": lambda: open(sys.argv[1] + "/secret").read(),
    "read of a process": lambda: open(f"/proc/{os.getppid()}/environ").read(),
    "write": write,
    "chmod": lambda: os.chmod(sys.argv[1] + "/secret", 0o777),
    "key": lambda: os.environ["SECRET_KEY"],
    "thread": lambda: (thread.start(), thread.join()),
    "import": lambda: __import__("this"),
    "sum": lambda: sum(range(9)),
}
print(json.dumps({name: outcome(attempt) for name, attempt in tries.items()}))
"""
ALLOWED = {"thread", "import", "sum"}


@pytest.fixture
def pool() -> Iterator[ProcessPool]:
    allow_also(verifiers=[MISBEHAVE])
    made = ProcessPool(Deadlines(60.0))
    yield made
    made.close()


def gcd(answer: str) -> dict[str, Any]:
    entry = {"question": "?", "answer": answer, "metadata": {}}
    return {"dataset": "gcd", "config": {}, **entry}


def status_of(process: int) -> dict[str, str]:
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


@pytest.mark.skipif(not linux.landlock_version(), reason="this kernel has no Landlock")
def test_behind_walls_nothing_but_libraries_can_be_reached(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x", encoding="utf-8")
    environment = {**os.environ, "SECRET_KEY": "x"}
    command = [sys.executable, "-c", TRIES, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert {name for name, outcome in outcomes.items() if outcome == "done"} == ALLOWED
    assert not (tmp_path / "new").exists()


def test_what_the_kernel_lacks_is_said() -> None:
    assert KernelIsolation(rules=3, can_filter=True).gaps() == []
    files, network = KernelIsolation(rules=None, can_filter=False).gaps()
    assert "Landlock" in files
    assert "seccomp" in network


def test_a_librarys_scorer_has_a_new_process_for_each_prompt(pool: ProcessPool) -> None:
    texts = [f"<answer>{number}</answer>" for number in range(3)]
    processes = []
    for payload in (gcd("1"), gcd("1"), gcd("2"), gcd("1")):
        assert pool.score("reasoning_gym", payload, texts) == [float(str(n) == payload["answer"]) for n in range(3)]
        processes.append(pool.child_pids())
    first, same, second, third = processes
    assert first == same
    assert len({*first, *second, *third}) == 3  # and one that was ended serves nobody again


def test_verifiers_of_our_own_keep_their_process(pool: ProcessPool) -> None:
    boxed = {"answer": "5"}
    assert pool.score("exact_match", boxed, ["<answer>5</answer>"]) == [1.0]
    (shared,) = pool.child_pids()
    pool.load("reasoning_gym")
    pool.score("exact_match", boxed, ["<answer>5</answer>"])
    (shared,) = pool.child_pids()  # another one: it has the library, too
    pool.score("reasoning_gym", gcd("1"), ["<answer>1</answer>"])
    assert shared in pool.child_pids()
    assert pool.score("exact_match", boxed, ["<answer>6</answer>"]) == [0.0]
    assert pool.child_pids() == [shared]


def test_only_a_users_own_verifier_and_programs_have_the_machine(pool: ProcessPool, tmp_path: Path) -> None:
    pool.score("exact_match", {"answer": "5"}, ["5"])
    (closed,) = pool.child_pids()
    assert status_of(closed)["Seccomp"] == "2"
    pool.score(MISBEHAVE, {"log": str(tmp_path / "log")}, ["fine"])
    (own,) = set(pool.child_pids()) - {closed}
    assert status_of(own)["Seccomp"] == "0"
    assert ScoringTask("code", {}, (), 1.0).isolation == Isolation(is_closed=False)
    assert ScoringTask("math", {"answer": "1"}, (), 1.0).isolation == Isolation(is_closed=True)


def test_a_part_of_a_composition_decides_for_the_whole() -> None:
    parts = [{"verifier": "reasoning_gym"}, {"verifier": "format", "options": {"structure": "answer"}}]
    payload = {"parts": parts, **gcd("1")}
    isolation = ScoringTask("composite", payload, (), 1.0).isolation
    assert isolation.is_closed
    assert isolation.prompt is not None
    assert templates("composite", payload) == [Template("reasoning_gym", '["gcd", "{}"]'), Template("format")]
    with_own = {**payload, "parts": [*parts, {"verifier": MISBEHAVE}]}
    assert not ScoringTask("composite", with_own, (), 1.0).isolation.is_closed


class Bomb:
    """An object that raises when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('unpickled')",)


FORGED = [
    pickle.dumps(Bomb()),
    b"[1, 1.0]",
    b'[1, 1.0, ""]',
    b'[1, true, "", null]',
    b'[1, NaN, "", null]',
    b'[1, Infinity, "", null]',
    b'[1, "1", "", null]',
    b'[1, 1.0, "", 5]',
    b"[1, 1.0, null, null]",
    b'[1, 1.0, ["reason"], null]',
    b'[1, null, "", null]',
    b'{"number": 1, "score": 1.0, "reason": "", "error": null}',
    b"7",
    b"[" * 30_000,
]


@pytest.mark.parametrize("raw", FORGED)
def test_a_reply_that_is_no_score_is_refused(raw: bytes) -> None:
    with pytest.raises(ChildReplyError, match="no score"):
        read_reply(raw)
