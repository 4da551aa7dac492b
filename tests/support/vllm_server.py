"""vLLM's OpenAI-compatible server on this machine, started as docs/howto/judges.md says: a judge that is a model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.ports import reserved_port

START_S = 540.0  # on a machine that does much else
# One thread, no C++ compile, no plugins: as engines of a run are started (`generation/device.py`).
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",
}
# One process beside the server's, a small cache, no compilation.
SMALL = [
    "--distributed-executor-backend", "uni", "--kv-cache-memory-bytes", str(2**26), "--max-num-seqs", "32",
    "--enforce-eager", "--dtype", "float32",
]  # fmt: skip


class VllmServer:
    """A running server of one model."""

    def __init__(self, url: str, process: subprocess.Popen[bytes]) -> None:
        self.url = url  # of the API, with /v1
        self._process = process

    def counted(self, metric: str) -> int:
        """Sum of one of the engine's own counters, over its labels."""
        page = httpx.get(self.url.removesuffix("v1") + "metrics", trust_env=False)
        total = 0.0
        for line in page.text.splitlines():
            if line.startswith(metric + "{"):
                total += float(line.rpartition(" ")[2])
        return int(total)

    def wait_ready(self, log: Path) -> None:
        """Until it answers."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self._process.poll() is None, log.read_text()[-3000:]
            try:
                httpx.get(f"{self.url}/models", trust_env=False).raise_for_status()
                return
            except httpx.HTTPError:
                time.sleep(0.2)
        raise AssertionError(f"not ready after {START_S:g} s: {log.read_text()[-3000:]}")

    def kill(self) -> None:
        """End it and its engine at once. May be called twice."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@contextmanager
def serving_model(model: Path, log: Path) -> Iterator[VllmServer]:
    """`model` served under the name `judge`."""
    with reserved_port() as port:
        process = _start(model, log, port)
        server = VllmServer(f"http://127.0.0.1:{port}/v1", process)
        try:
            server.wait_ready(log)
            yield server
        finally:
            server.kill()


def _start(model: Path, log: Path, port: int) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
        "--served-model-name", "judge", "--host", "127.0.0.1", "--port", str(port), *SMALL,
    ]  # fmt: skip
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            env={**os.environ, **ENVIRONMENT, "TMPDIR": str(log.parent)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
