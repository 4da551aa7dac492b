"""Ask in a child process with a deadline what a library or a broken disk could hang on.

A probe is `python -m brorl_launcher.doctor.MODULE NAME JSON`: it prints its answer as the last line of its standard
output, one JSON object."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MAX_REASON = 300  # characters of what a failed probe said last

Question = Callable[[dict[str, Any]], dict[str, Any]]  # from arguments to an answer, both JSON objects


@dataclass(frozen=True)
class ProbeResult:
    """What a probe said, or why it said nothing."""

    data: dict[str, Any] | None
    reason: str = ""  # "" when there is data

    def __bool__(self) -> bool:
        return self.data is not None


class Probe:
    """A question that was put; `wait` for its answer. What it started is gone after `wait`."""

    def __init__(
        self,
        module: str,
        name: str,
        arguments: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        command = [sys.executable, "-m", f"brorl_launcher.doctor.{module}", name, json.dumps(arguments)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )

    def wait(self, seconds: float) -> ProbeResult:
        """The answer, or that there is none within `seconds`."""
        try:
            output, errors = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.end()
            return ProbeResult(None, f"no answer within {round(seconds, 1):g} s")
        finally:
            self.end()
        return _read(output, errors, self._process.returncode)

    def end(self) -> None:
        """Kill it and all it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def run_probe(
    module: str,
    name: str,
    arguments: Mapping[str, Any],
    seconds: float,
) -> ProbeResult:
    """Put a question and wait for the answer."""
    return Probe(module, name, arguments).wait(seconds)


def answer_probe(probes: Mapping[str, Question]) -> None:
    """Answer the command line's question, as the last thing on standard output: what a probe's process does."""
    name, arguments = sys.argv[1:]
    data = probes[name](json.loads(arguments))
    sys.stdout.write("\n" + json.dumps(data) + "\n")
    sys.stdout.flush()
    os._exit(0)  # what a library does at the end of a process is not asked for, and may hang


def call_within(seconds: float, question: Callable[[], Any], late: Any) -> Any:
    """Answer of `question`, or `late` after `seconds`: for a call into the kernel that a dead file server holds. The
    thread is left to it; it does not keep the process."""
    found: list[Any] = []

    def run() -> None:
        found.append(question())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else late


def _read(output: str, errors: str, code: int) -> ProbeResult:
    lines = output.strip().splitlines() or [""]
    try:
        data = json.loads(lines[-1])
    except ValueError:
        data = None
    if code == 0 and isinstance(data, dict):
        return ProbeResult(data)
    said = errors.strip() or output.strip() or "nothing said"
    last_line = said.splitlines()[-1]
    return ProbeResult(None, f"exit code {code}: {last_line[-MAX_REASON:]}")
