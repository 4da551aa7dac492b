"""In place of Ray's `setup_worker.py`: has the worker forked (`forked_workers.py`) and stays until it ends."""

from __future__ import annotations

import argparse
import json
import os
import socket


def main() -> None:
    """Send the worker's arguments, environment and outputs to the process that has its libraries."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--serialized-runtime-env-context", default="{}")
    parser.add_argument("--language")
    setup, arguments = parser.parse_known_args()
    variables = json.loads(setup.serialized_runtime_env_context).get("env_vars") or {}
    is_rank = bool(variables)  # nobody else has a runtime environment
    environment = {**os.environ, **variables}
    asked = {
        "process_id": os.getpid(),
        "arguments": arguments,
        "environment": environment,
        "folder": os.getcwd(),
    }
    path = os.path.join(os.environ["BRORL_TESTS_FORKED_WORKERS"], "ranks" if is_rank else "engines")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(path)
        socket.send_fds(connection, [json.dumps(asked).encode()], [1, 2])
        while connection.recv(16):
            pass


if __name__ == "__main__":
    main()
