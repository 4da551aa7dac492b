"""The sandbox serves honest programs, reports its layers, refuses to run unisolated, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from brorl_graders.sandbox.cleanup import PREFIX, HeldFolder, remove_left
from brorl_graders.sandbox.limits import (
    FAILED,
    FINISHED,
    GAPS,
    KILLED,
    LOST,
    TIMED_OUT,
    TOO_MUCH_OUTPUT,
    Layers,
    SandboxLimits,
)
from brorl_graders.sandbox.sandbox import Sandbox, SandboxError, SandboxProgram, SandboxResult
from brorl_graders.sandbox.values import decode

from graders.tests.support.hostile_host import descendants, kill_with_descendants

pytestmark = pytest.mark.slow

LIMITS = SandboxLimits(seconds=30, memory_mib=128, scratch_mib=2, file_mib=1, output_kib=16)
NAMESPACES = ("user", "mount", "pid", "net", "ipc", "uts")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox(LIMITS)
    yield sandbox
    sandbox.close()


def run(sandbox: Sandbox, source: str, stdin: str = "", seconds: float | None = None) -> SandboxResult:
    return sandbox.run(SandboxProgram(source, stdin=stdin), seconds)


def test_a_program_reads_and_prints(sandbox: Sandbox) -> None:
    result = run(sandbox, "import sys\nprint(sum(map(int, sys.stdin)), input is not None, __name__)", "1\n2\n3\n")
    assert (result.ending, result.printed) == (FINISHED, "6 True __main__\n")


def test_a_function_is_called_with_each_list_of_arguments(sandbox: Sandbox) -> None:
    program = SandboxProgram("def f(a, b=0): return (a, {b}, {a: None}, 1.5)", "call", name="f", tests=[[1, 2], ["x"]])
    values = [decode(value) for what, value, _ in sandbox.run(program).reports if what == "value"]
    assert values == [(1, {2}, {1: None}, 1.5), ("x", {0}, {"x": None}, 1.5)]


def test_a_call_that_raises_leaves_the_others_alone(sandbox: Sandbox) -> None:
    reports = sandbox.run(SandboxProgram("def f(a): return 1 // a", "call", name="f", tests=[[1], [0], [-1]])).reports
    assert reports == [
        ["value", 1, 0],
        ["error", "ZeroDivisionError: integer division or modulo by zero", 1],
        ["value", -1, 2],
    ]


def test_each_part_has_its_time_and_all_of_them_together_theirs() -> None:
    sandbox = Sandbox(SandboxLimits(seconds=2))
    program = SandboxProgram("import time\ndef f(s): time.sleep(s)", "call", name="f", tests=[[0.01], [60]])
    first = sandbox.run(program)
    assert (first.ending, first.reports) == (TIMED_OUT, [["value", None, 0]]) and first.seconds < 20
    many = SandboxProgram("import time\ndef f(s): time.sleep(s)", "call", name="f", tests=[[0.1]] * 100)
    assert sandbox.run(many, 0.5).ending == TIMED_OUT
    sandbox.close()


def test_every_run_starts_fresh(sandbox: Sandbox) -> None:
    run(
        sandbox,
        "import builtins, math, os, sys\nbuiltins.mark = math.mark = sys.mark = 1\nopen('mark', "
        "'w')\nos.environ['MARK'] = '1'",
    )
    result = run(
        sandbox,
        "import builtins, math, os, sys\nprint([hasattr(m, 'mark') for m in (builtins, math, sys)], os.listdir(), "
        "'MARK' in os.environ)",
    )
    assert result.printed == "[False, False, False] [] False\n"


@pytest.mark.parametrize(
    ("source", "ending"),
    [
        ("print(1)", FINISHED),
        ("import sys\nsys.exit()", FINISHED),
        ("import os\nos._exit(0)", FINISHED),
        ("import threading\nthreading.Thread(target=print, args=('late',)).start()", FINISHED),
        ("import sys\nsys.exit('wrong')", FAILED),
        ("1 / 0", FAILED),
        ("def", FAILED),
        ("while True: pass", TIMED_OUT),
        ("print('x' * 20000)", TOO_MUCH_OUTPUT),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", KILLED),
        ("import ctypes\nctypes.string_at(0)", KILLED),
    ],
)
def test_the_ending_says_what_happened(sandbox: Sandbox, source: str, ending: str) -> None:
    assert run(sandbox, source, seconds=0.3 if ending == TIMED_OUT else None).ending == ending


def test_the_process_limit_acts(sandbox: Sandbox) -> None:
    result = run(
        sandbox,
        "import os\nn = 0\nfor _ in range(20):\n    try: n += os.fork() > 0 or os._exit(0)\n    except OSError: "
        "break\nprint(n < 20)",
    )
    assert result.printed == "True\n"


def test_a_fork_server_that_is_lost_is_replaced() -> None:
    sandbox = Sandbox(LIMITS)
    kill_with_descendants(sandbox.process_id)
    assert run(sandbox, "print(1)").ending == LOST
    assert run(sandbox, "print(1)").ending == FINISHED and sandbox.num_lost == 1
    sandbox.close()


@pytest.mark.parametrize("error", [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "told to"), KeyboardInterrupt()])
def test_a_run_that_an_error_breaks_off_is_not_in_the_way_of_the_next(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise error

    with Sandbox(LIMITS) as sandbox:
        with monkeypatch.context() as patch:
            patch.setattr(sandbox, "follow", broken)
            with pytest.raises(type(error)):
                run(sandbox, "import time\ntime.sleep(600)")
        assert run(sandbox, "print(7)").printed == "7\n"


def test_the_sandbox_ends_with_the_process_that_made_it() -> None:
    code = (
        "from brorl_graders.sandbox.sandbox import Sandbox, SandboxProgram\nsandbox = Sandbox()\n"
        "print(sandbox.process_id, flush=True)\n"
        "sandbox.run(SandboxProgram('import os, time\\nos.fork()\\ntime.sleep(60)'), 60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        fork_server = int(owner.stdout.readline())
        inside = [fork_server, *descendants(fork_server)]
        owner.kill()
    for _ in range(200):
        if not any(os.path.exists(f"/proc/{process}") for process in inside):
            return
        time.sleep(0.05)
    pytest.fail(f"some of {inside} are alive")


@pytest.mark.parametrize("without", [("user",), ("pid",), ("mount", "pid")])
def test_fewer_layers_hold_what_others_held(without: tuple[str, ...]) -> None:
    sandbox = Sandbox(LIMITS, without=without)
    assert sandbox.layers.gaps() == [] and not any(getattr(sandbox.layers, name) for name in without)
    assert run(sandbox, "open('f', 'w').write('x')\nprint(open('f').read())").printed == "x\n"
    assert run(sandbox, "import os\nprint(os.listdir())").printed == "[]\n"
    assert run(sandbox, f"open({__file__!r}).read()").ending == FAILED
    assert run(sandbox, "import socket\nsocket.create_connection(('127.0.0.1', 22), 0.1)").ending == FAILED
    run(sandbox, "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(60)")
    assert descendants(sandbox.process_id)[1 if sandbox.layers.pid else 0 :] == []
    sandbox.close()


def test_without_seccomp_memory_is_not_limited_and_that_is_refused() -> None:
    with pytest.raises(SandboxError, match="use memory without end, .*needs seccomp"):
        Sandbox(LIMITS, without=("seccomp",))
    sandbox = Sandbox(LIMITS, without=("seccomp",), is_bare_allowed=True)
    assert len(sandbox.layers.gaps()) == 1
    assert run(sandbox, f"open({__file__!r}).read()").ending == FAILED
    assert run(sandbox, "import socket\nsocket.create_connection(('127.0.0.1', 22), 0.1)").ending == FAILED
    sandbox.close()


def test_no_open_file_is_put_in_flight_whose_number_all_processes_of_a_user_share(sandbox: Sandbox) -> None:
    pair = "import socket\na, b = socket.socketpair()\na.send(b'x')\nprint(b.recv(1))\n"
    result = run(sandbox, pair + "try: socket.send_fds(a, [b'x'], [0])\nexcept PermissionError: print('refused')")
    assert result.printed == "b'x'\nrefused\n"


@pytest.mark.parametrize(
    "fill",
    [
        "for i in range(400): open(f'f{i}', 'wb').write(bytes(1 << 20))",
        "for i in range(10**7): open(f'f{i}', 'w').close()",
    ],
)
def test_without_a_mount_namespace_files_are_counted_together(fill: str) -> None:
    sandbox = Sandbox(SandboxLimits(seconds=30, scratch_mib=2, file_mib=1), without=(*NAMESPACES, "bubblewrap"))
    assert not sandbox.layers.mount
    filled = run(sandbox, f"{fill}\nprint('filled')")
    assert (filled.ending, filled.printed) == (KILLED, "")
    assert (
        run(sandbox, "import os\nprint(os.listdir(), open('f', 'wb').write(bytes(1 << 20)))").printed == "[] 1048576\n"
    )
    sandbox.close()


@pytest.mark.parametrize("entry", ["os.mkdir('d')", "os.symlink('a', 'b')", "os.mkfifo('p')"])
def test_without_a_mount_namespace_programs_make_files_and_nothing_else(entry: str) -> None:
    with Sandbox(LIMITS, without=(*NAMESPACES, "bubblewrap")) as sandbox:
        assert run(sandbox, f"import os\n{entry}").ending == FAILED
        assert run(sandbox, "open('f', 'w').close()").ending == FINISHED


def test_folders_that_killed_owners_have_left_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    held = HeldFolder()
    left = tmp_path / f"{PREFIX}left"
    closed = left / "scratch" / "closed"
    closed.mkdir(parents=True)
    (closed / "file").touch()
    closed.chmod(0)
    new = tmp_path / f"{PREFIX}new"
    new.mkdir()
    for path in (held.path, left):
        os.utime(path, (1, 1))
    remove_left()
    assert sorted(os.listdir(tmp_path)) == sorted([os.path.basename(held.path), new.name])
    held.remove()
    assert os.listdir(tmp_path) == [new.name]


@pytest.mark.parametrize(
    ("without", "names"),
    [
        ((), set()),
        (("seccomp",), {"memory"}),
        ((*NAMESPACES, "landlock"), {"files"}),
        ((*NAMESPACES, "seccomp"), {"memory", "network"}),
        ((*NAMESPACES, "own_uid", "landlock", "seccomp"), {"files", "network", "signals", "memory"}),
    ],
)
def test_what_is_open_is_found_by_trying(without: tuple[str, ...], names: set[str]) -> None:
    with Sandbox(LIMITS, without=(*without, "bubblewrap"), is_bare_allowed=True) as sandbox:
        found = set(sandbox.layers.reached)
        assert (
            found - {"processes", "attributes", "look"} == names
        )  # which depend on the user and the kernel's settings
        assert sandbox.layers.gaps() == [meaning for name, meaning in GAPS.items() if name in found]


def test_no_sandbox_is_refused_and_says_what_it_would_let_through() -> None:
    with pytest.raises(
        SandboxError,
        match=r"no sandbox on this machine: programs could read and write this machine's files .*; use the network",
    ):
        Sandbox(LIMITS, without=(*NAMESPACES, "own_uid", "landlock", "seccomp", "bubblewrap"))


def test_no_sandbox_works_when_it_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    sandbox = Sandbox(LIMITS, without=(*NAMESPACES, "landlock", "seccomp", "bubblewrap"), is_bare_allowed=True)
    assert run(sandbox, "print(2)").printed == "2\n"
    assert "running without a sandbox, as is allowed here" in caplog.text
    sandbox.close()


def test_layers_are_named() -> None:
    layers = Layers(user=True, mount=True, pid=True, net=True, no_new_privs=True, seccomp=True)
    assert str(layers) == "sandbox: user+mount+pid+net namespaces, no_new_privs, seccomp, rlimits"
    assert layers.gaps() == []
    assert Layers(reached=("files",)).gaps() == [GAPS["files"]]
