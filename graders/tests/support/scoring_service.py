"""A scoring service on this machine that answers, hangs, fails, lies, drips or closes, as a test says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HANG_S = 30.0  # or until the service is closed


class Compressed(bytes):
    """A reply that says it is packed twice."""


class LocalService:
    """A scoring service on this machine that answers requests with `replies`, one after another.

    The last reply is repeated. A reply is a JSON value, raw bytes, a status, a word (hang, drip, drip header, continue,
    close), or a function of the request's body.
    """

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.given: dict[str, str] = {}  # more headers of its replies
        self.is_closed = threading.Event()
        self.url = ""

    def next_reply(self, body: Any) -> Any:
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return reply(body) if callable(reply) else reply


def scores_by(score: Callable[[str], float]) -> Callable[[Any], Any]:
    """Return a reply function that scores each response by its text."""
    return lambda body: {"scores": [score(item["response"]) for item in body["items"]]}


def completion(text: str) -> dict[str, Any]:
    """Return a judge's chat completion with this text."""
    return {
        "choices": [{"message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 3},
    }


@contextmanager
def serving(*replies: Any) -> Iterator[LocalService]:  # noqa: C901  # long: a class of its own
    service = LocalService(*replies)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send(200, b"{}")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            service.requests.append(body)
            service.headers.append(dict(self.headers))
            reply = service.next_reply(body)
            if reply == "hang":
                service.is_closed.wait(HANG_S)
            elif reply == "close":
                self.close_connection = True
            elif reply == "drip":
                self.repeat(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b" ")
            elif reply == "drip header":
                self.repeat(b"HTTP/1.1 200 OK\r\nX: ", b"a")
            elif reply == "continue":
                self.repeat(b"", b"HTTP/1.1 100 Continue\r\n\r\n")
            elif isinstance(reply, int):
                self.send(reply, b"not now")
            else:
                self.send(200, reply if isinstance(reply, bytes) else json.dumps(reply).encode())

        def send(self, status: int, content: bytes) -> None:
            self.send_response(status)
            if isinstance(content, Compressed):
                self.send_header("Content-Encoding", "gzip, gzip")
            for name, value in service.given.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def repeat(self, first: bytes, others: bytes) -> None:
            self.wfile.write(first)
            end = time.monotonic() + HANG_S
            while time.monotonic() < end and not service.is_closed.wait(0.02):
                self.wfile.write(others)
                self.wfile.flush()

        def handle(self) -> None:
            try:
                super().handle()
            except (BrokenPipeError, ConnectionResetError):  # the client had enough
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    service.url = f"http://127.0.0.1:{server.server_address[1]}/score"
    try:
        yield service
    finally:
        service.is_closed.set()
        server.shutdown()
        server.server_close()
        thread.join()
