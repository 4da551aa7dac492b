"""A clone of this checkout that has been used: uncommitted changes, files that git does not track, finished runs.

It has a `.venv` of its own, which finds the clone's packages first and takes everything else from the environment
that runs the tests.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
from pathlib import Path
from typing import NamedTuple

import pyarrow
import pyarrow.parquet
from filelock import FileLock

from tests.documented_commands.table import Row
from tests.support.fake_slurm import FakeSlurm
from tests.support.run_folders import put_run
from tests.support.source_tree import PACKAGES, ROOT

# In continuous integration other tests share the two cores, and a minute of a command becomes five.
TIMEOUT_S = 900.0
KEPT = ("HOME", "USER", "LANG", "TMPDIR", "PATH", "OMP_NUM_THREADS", "RAY_worker_niceness")  # variables of a user
SCRIPT = """
set -a
[[ ! -e {state} ]] || source {state}
set +e
{text}
code=$?
export -p > {state}
exit $code
"""
BRORL = """#!{python}
import sys
from nemo_brorl.__main__ import main
sys.exit(main())
"""
MY_CODE = """
from dataclasses import dataclass

@dataclass
class Params:
    tolerance: float = 0.0

def score(payload, response, params: Params):
    return float(payload["answer"] in response)
"""


class Outcome(NamedTuple):
    """What a command has left."""

    code: int
    output: str


class UsedClone:
    """A clone, and the state of a shell for each page: variables that its commands have set."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.folder = scratch / "nemo_brorl"
        with self.lock("clone"):
            if not (scratch / "COMPLETE").exists():
                _clone(self.folder)
                _install(self.folder)
                _use(self.folder)
                (scratch / "COMPLETE").touch()

    def lock(self, name: str) -> FileLock:
        """Let one process of pytest-xdist after the other do something."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        return FileLock(self.scratch / f"{name}.lock")

    def run(self, row: Row, text: str, page: str) -> Outcome:
        """Run a command as its row says."""
        if row.once:
            return self._run_once(text, page)
        if row.until:
            return self._run_until(text, page, row.until)
        return self._run(text, page)

    def _run_once(self, text: str, page: str) -> Outcome:
        """Run a command, unless it has run in this clone before."""
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        kept = self.scratch / f"{name}.json"
        with self.lock(name):
            if not kept.exists():
                kept.write_text(json.dumps(self._run(text, page)))
            return Outcome(*json.loads(kept.read_text()))

    def _run(self, text: str, page: str) -> Outcome:
        process = self._start(text, page)
        try:
            output, _ = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            output += f"\nhas not ended within {TIMEOUT_S:g} s"
        return Outcome(process.returncode, output)

    def _run_until(self, text: str, page: str, words: str) -> Outcome:
        """Run a command until its output has these words, fetch what it serves, and end it as Ctrl-C does."""
        process = self._start(text, page)
        assert process.stdout is not None
        output = ""
        for line in process.stdout:
            output += line
            if words in line:
                output += _fetch(line)
                os.killpg(process.pid, signal.SIGINT)
                break
        rest, _ = process.communicate(timeout=30)
        was_ended = words in output and process.returncode in (130, -signal.SIGINT)
        return Outcome(0 if was_ended else process.returncode, output + rest)

    def _start(self, text: str, page: str) -> subprocess.Popen[str]:
        shell = self.scratch / "shells" / page
        if not shell.exists():
            FakeSlurm(shell)
        variables = {name: os.environ[name] for name in KEPT if name in os.environ}
        here = [str(shell / "commands"), str(self.folder / ".venv" / "bin")]
        variables["PATH"] = os.pathsep.join([*here, variables["PATH"]])
        return subprocess.Popen(
            ["bash", "-c", SCRIPT.format(state=shell / "variables.sh", text=text)],
            cwd=self.folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def _fetch(line: str) -> str:
    """Get the page that a line of output names, if it names one, and say what came."""
    address = re.search(r"http://\S+", line)
    if address is None:
        return ""
    with urllib.request.urlopen(address.group(), timeout=30) as answer:
        return f"served {len(answer.read())} bytes\n"


def _clone(folder: Path) -> None:
    """Clone the last commit, and take over what has changed since, new files included."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    listing = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    for name in filter(None, subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split("\0")):
        source, target = ROOT / name, folder / name
        if not source.exists():
            target.unlink(missing_ok=True)
        elif not target.exists() or source.read_bytes() != target.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _install(folder: Path) -> None:
    """Make `.venv` without an index: `make env` finds it complete."""
    venv = folder / ".venv"
    interpreter = Path(sys.executable).resolve()  # not the one of the tests' environment
    subprocess.run([str(interpreter), "-m", "venv", "--without-pip", str(venv)], check=True)
    packages = sysconfig.get_paths()["purelib"]
    (site,) = venv.glob("lib/python3*/site-packages")
    places = [str(folder / package.parent.relative_to(ROOT)) for package in PACKAGES]
    (site / "clone.pth").write_text("\n".join([*places, f"import site; site.addsitedir({packages!r})"]) + "\n")
    program = venv / "bin" / "brorl"
    program.write_text(BRORL.format(python=venv / "bin" / "python"))
    program.chmod(0o755)
    stamp = """kind=cpu; eval "$(grep '^wanted=' scripts/install.sh)"; printf '%s' "$wanted" > .venv/.brorl-installed"""
    subprocess.run(["bash", "-c", stamp], cwd=folder, check=True)


def _use(folder: Path) -> None:
    """Leave what somebody leaves who has worked here: notes, data, runs, code of their own."""
    (folder / "notes.txt").write_text("N = 512 next\n")
    put_run(folder / "runs" / "n64", size=16)
    put_run(folder / "runs" / "n512", size=32, seed=1)
    (folder / "my_code.py").write_text(MY_CODE)
    sums = [{"question": f"What is 2 + {number}?", "answer": str(2 + number)} for number in range(32)]
    _write_lines(folder / "questions.jsonl", [{"prompt": row["question"], "answer": row["answer"]} for row in sums])
    for name in ("aime24", "math500"):
        rows = [{"problem": row["question"], "answer": row["answer"]} for row in sums[:4]]
        _write_lines(folder / "DATA" / "benchmarks" / f"{name}.jsonl", rows)
    _write_lines(folder / "DATA" / "deepscaler.json", sums)
    chats = [{"messages": [_said("user", row["question"]), _said("assistant", row["answer"])]} for row in sums]
    _write_lines(folder / "chat.jsonl", chats)
    for name, rows in (
        ("chat", chats[8:]),
        ("val", chats[:8]),
        ("DATA/gsm8k/data/train-00000-of-00001", sums[8:]),
        ("DATA/gsm8k/test/data-00000-of-00001", sums[:8]),
        ("DATA/ifeval-0", sums),
    ):
        path = folder / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _write_lines(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
