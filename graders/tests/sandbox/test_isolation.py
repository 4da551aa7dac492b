"""Programs learn nothing of the programs before them, and reach no process beside them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from brorl_graders.base.payload import Deadlines
from brorl_graders.base.settings import CodeLimits
from brorl_graders.processes.process_pool import ProcessPool
from brorl_graders.sandbox import FAILED, FINISHED, Sandbox, SandboxLimits, SandboxProgram
from brorl_graders.sandbox.limits import NAMESPACES
from brorl_graders.verifiers.code import code

pytestmark = pytest.mark.slow

LIMITS = SandboxLimits(seconds=60, memory_mib=256)
# Repeats, as what it printed and reported itself, every text that it finds in the frames below it.
FRAME_SPY = """
import os, sys
frame = sys._getframe()
while frame is not None:
    for value in list(frame.f_locals.values()):
        if isinstance(value, (bytes, bytearray)) and value:
            os.write(1, value)
            os.write(3, value)
    frame = frame.f_back
os._exit(0)
"""
# Prints what its memory holds of the form KEY and twelve digits, of which there is none in its own source.
HEAP_SPY = """
import ctypes, gc, os, re
libc = ctypes.CDLL(None)
libc.sbrk.restype = ctypes.c_void_p
libc.write.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
reader, writer = os.pipe()
regions = {id(item) >> 20 for item in gc.get_objects()}
top = libc.sbrk(0) >> 20
regions |= set(range(top - 32, top + 1))
found = set()
for region in sorted(regions):
    memory = b''
    for page in range(region << 20, region + 1 << 20, 4096):
        if libc.write(writer, page, 4096) == 4096:
            memory += os.read(reader, 4096)
    found |= set(re.findall(rb'KEY[0-9]{12}', memory))
print(sorted(found))
"""
DOUBLE = "def double(n): return 2 * n"
SCRIPT = {"script": "def check(candidate):\n    assert candidate(4) == 8\n", "entry_point": "double"}
CALLS = {"inputs": [[4], [5]], "outputs": [8, 10], "fn_name": "double", "isolation": "program"}
SIGNAL_A_PROCESS = {
    "kill": "os.kill(pid, 9)",
    "rt_sigqueueinfo": "libc.syscall(129, pid, 9, ctypes.create_string_buffer(struct.pack('iiii', 9, 0, -1, 0), 128))",
    "rt_tgsigqueueinfo": (
        "libc.syscall(297, pid, pid, 9, ctypes.create_string_buffer(struct.pack('iiii', 9, 0, -1, 0), 128))"
    ),
    "owner of a pipe": (
        "r, w = os.pipe()\nfcntl.fcntl(r, 8, pid)\nfcntl.fcntl(r, 10, 9)\nfcntl.fcntl(r, 4, 0o20000)\nos.write(w, b'x')"
    ),
    "owner of a pipe, extended": (
        "r, w = os.pipe()\nfcntl.fcntl(r, 15, struct.pack('ii', 1, pid))\nfcntl.fcntl(r, 10, 9)\n"
        "fcntl.fcntl(r, 4, 0o20000)\nos.write(w, b'x')"
    ),
    "owner of a socket": (
        "import socket\na, b = socket.socketpair()\nfcntl.ioctl(a, 0x8901, struct.pack('i', pid))\n"
        "fcntl.fcntl(a, 4, 0o20000)\nb.send(b'x')"
    ),
}


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(code.VARIABLE, "")
        code.configure(CodeLimits(test_timeout_s=30), 60)
        pool = ProcessPool(Deadlines(60))
        yield pool
        pool.close()


@pytest.mark.parametrize(
    ("payload", "program"),
    [
        (SCRIPT, DOUBLE),
        ({"asserts": ["assert double(4) == 8"]}, DOUBLE),
        (CALLS, DOUBLE),
        ({"inputs": ["4"], "outputs": ["8"]}, "print(2 * int(input()))"),
    ],
    ids=["script", "assertion", "calls in one process", "standard input"],
)
def test_a_spy_behind_a_right_program_earns_nothing(
    pool: ProcessPool, payload: dict[str, object], program: str
) -> None:
    spy = f"```python\n{FRAME_SPY}\n```"
    right = f"```python\n{program}\n```"
    assert pool.score("code", payload, [spy, right, spy, spy, right, spy]) == [0, 1, 0, 0, 1, 0]


@pytest.mark.parametrize("without", [(), NAMESPACES])
def test_the_memory_of_a_program_holds_nothing_of_the_one_before(without: tuple[str, ...]) -> None:
    secret = "KEY" + "0123456789" + "42"
    with Sandbox(LIMITS, without=without) as sandbox:
        first = sandbox.run(
            SandboxProgram(f"key = '{secret}'\nopen(key, 'w').close()\nprint(key, input())", stdin=secret)
        )
        assert first.printed == f"{secret} {secret}\n"
        own = sandbox.run(SandboxProgram(f"key = '{secret}'\n{HEAP_SPY}"))
        assert own.printed == f"[b'{secret}']\n"  # it finds what is there
        spied = sandbox.run(SandboxProgram(HEAP_SPY))
    assert (spied.ending, spied.printed) == (FINISHED, "[]\n")


@pytest.mark.parametrize("way", SIGNAL_A_PROCESS)
def test_seccomp_alone_keeps_signals_from_other_processes(way: str) -> None:
    head = "import ctypes, fcntl, os, struct\nlibc = ctypes.CDLL(None)"
    without = (*NAMESPACES, "own_uid", "landlock")
    with (
        subprocess.Popen(["sleep", "600"]) as victim,
        Sandbox(LIMITS, without=without, is_bare_allowed=True) as sandbox,
    ):
        sandbox.run(SandboxProgram(f"{head}\npid = {victim.pid}\n{SIGNAL_A_PROCESS[way]}"))
        is_alive = victim.poll() is None
        victim.kill()
    assert is_alive


@pytest.mark.parametrize(
    "change",
    [
        "os.chmod(file, 0o777)",
        "os.chmod(os.path.dirname(file), 0)",
        "os.utime(file, (1, 1))",
        "os.chown(file, 1, 1)",
        "os.truncate(file, 0)",
        "os.setxattr(file, 'user.a', b'b')",
    ],
)
def test_files_of_the_programs_user_stay_as_they_are_without_namespaces(tmp_path: Path, change: str) -> None:
    file = tmp_path / "checkpoint"
    file.write_text("weights")
    before = [(path.stat(), os.listxattr(path)) for path in (file, tmp_path)]
    with Sandbox(LIMITS, without=(*NAMESPACES, "own_uid"), is_bare_allowed=True) as sandbox:
        run = sandbox.run(SandboxProgram(f"import os\nfile = {str(file)!r}\n{change}"))
    assert run.ending == FAILED
    assert [(path.stat(), os.listxattr(path)) for path in (file, tmp_path)] == before


@pytest.mark.parametrize("name", ["folder/link", "link"])
def test_programs_may_read_through_a_link(tmp_path: Path, name: str) -> None:
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "text").write_text("here")
    link = tmp_path / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path / "packages")
    with Sandbox(LIMITS, readable=[str(link)]) as sandbox:
        has_mount = sandbox.layers.mount
        run = sandbox.run(SandboxProgram(f"print(open('{link}/text').read())\nopen('own', 'w').close()"))
    with Sandbox(LIMITS) as plain:
        assert has_mount == plain.layers.mount
    assert run.printed == "here\n"
