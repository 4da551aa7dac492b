"""Run a check in a child process with a deadline, because a library or a broken disk may hang.

A probe is `python -m brorl_launcher.doctor.MODULE NAME JSON`. It prints its result as the last line of its standard
output, one JSON object.
"""

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

from brorl_graders.base.foreign import LARGE, read_json

MAX_REASON = 300  # characters of a failed probe's last line

Question = Callable[[dict[str, Any]], dict[str, Any]]  # function from arguments to a result, both JSON objects


@dataclass(frozen=True)
class ProbeResult:
    """The result of a probe, or the reason why there is none."""

    data: dict[str, Any] | None
    reason: str = ""  # empty when there is data

    def __bool__(self) -> bool:
        return self.data is not None


class Probe:
    """A check that runs in a child process. `wait` returns its result and ends every process that it started."""

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
        """Return the result of a check in another process, or the reason why there is none within `seconds`."""
        try:
            output, errors = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.end()
            return ProbeResult(None, f"no answer within {round(seconds, 1):g} s")
        finally:
            self.end()
        return _read(output, errors, self._process.returncode)

    def end(self) -> None:
        """Kill the process in which a check runs, and all processes that it started."""
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
    """Run a check in a process of its own, and return the result.

    If there is no result within `seconds`, the reason is returned.
    """
    return Probe(module, name, arguments).wait(seconds)


def answer_probe(probes: Mapping[str, Question]) -> None:
    """Run the check that the command line names, and print the result as the last line of standard output.

    This is the main function of the process in which a check runs, and ends this process.
    """
    name, arguments = sys.argv[1:]
    data = probes[name](read_json(arguments, most_bytes=LARGE))
    sys.stdout.write("\n" + json.dumps(data) + "\n")
    sys.stdout.flush()
    os._exit(0)  # skip exit handlers of libraries, which may hang


def call_within(seconds: float, question: Callable[[], Any], late: Any) -> Any:
    """Return the result of calling `question`, or `late` when the call takes longer than `seconds`.

    Use it for a call into the kernel that a dead file server may block. The blocked thread remains, but it does not
    keep the process alive.
    """
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
        data = read_json(lines[-1], most_bytes=LARGE)
    except ValueError:
        data = None
    if code == 0 and isinstance(data, dict):
        return ProbeResult(data)
    said = errors.strip() or output.strip() or "nothing said"
    last_line = said.splitlines()[-1]
    return ProbeResult(None, f"exit code {code}: {last_line[-MAX_REASON:]}")
