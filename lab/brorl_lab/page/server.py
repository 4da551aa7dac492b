"""Serve the page on this machine, with its data read from the run folders on request.

The server only reads files. It refuses requests without the token, and pages of another origin.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
import logging
import re
import sys
import threading
from collections.abc import Sequence
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from brorl_lab.page import details
from brorl_lab.page.comparison import compare_runs
from brorl_lab.page.groups import StoreTables, group_table, newest_rates, success_rates
from brorl_lab.page.page import as_json, render_page, timeline, timelines
from brorl_lab.page.runs import RunView, overview, settings_table
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import DataError
from nemo_brorl.core.tokenizer import ChatTokenizer
from nemo_brorl.training.store.files import StoreFiles

NUMBER = re.compile(r"[0-9]{1,9}")
HOST = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost")  # hosts that a browser may name: another one is a foreign page
DATA = "/data/"
WATCHED = (
    "metrics.jsonl",
    "heartbeat.json",
    "events.jsonl",
    "evaluation.json",
)

Part = dict[str, Any]
log = get_logger(__name__)


class WatchedRun:
    """One run that the page server watches, and what it has read of the run so far."""

    def __init__(self, run: RunView) -> None:
        self.run = run
        self.store = StoreTables(run.folder)

    @cached_property
    def tokenizer(self) -> ChatTokenizer | None:
        return details.tokenizer_of_run(self.run.folder)

    def stamp(self) -> str:
        """Return a text that changes whenever a file of the run changes that the report page shows."""
        steps = StoreFiles(self.run.folder).steps()
        seen = [str(steps)]
        for name in WATCHED:
            path = self.run.folder / name
            seen.append(_written_at(path))
        return " ".join(seen)


def _written_at(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return ""
    return f"{found.st_mtime_ns}-{found.st_size}"


class Pages:
    """The page's data by name, safe to request from several threads."""

    def __init__(self, runs: Sequence[RunView]) -> None:
        self.runs = list(runs)
        self.watched = [WatchedRun(run) for run in runs]
        self._lock = threading.Lock()

    def read_part(self, name: str) -> Part | None:
        """Return a part of the report page's data by its name, or None for an unknown name.

        Raises DataError when the data cannot be read.
        """
        kind, *rest = name.split("/")
        numbers: list[int] = []
        for text in rest:
            if not NUMBER.fullmatch(text):
                return None
            numbers.append(int(text))
        with self._lock:
            return self._read_part(kind, numbers)

    def _read_part(self, kind: str, numbers: Sequence[int]) -> Part | None:
        whole = {
            "overview": overview,
            "settings": settings_table,
            "comparison": compare_runs,
        }
        if kind in whole and not numbers:
            return whole[kind](self.runs)
        if kind == "stamp" and not numbers:
            return {"stamp": self.stamp()}
        if not numbers or numbers[0] >= len(self.watched):
            return None
        number, *rest = numbers
        return _part_of_run(self.watched[number], kind, rest)

    def stamp(self) -> str:
        """Return a text that changes when anything changes that the report page shows."""
        stamps = [watched.stamp() for watched in self.watched]
        seen = "\n".join(stamps)
        return hashlib.sha256(seen.encode()).hexdigest()


def _part_of_run(
    watched: WatchedRun,
    kind: str,
    numbers: Sequence[int],
) -> Part | None:
    folder = watched.run.folder
    match kind, len(numbers):
        case "newest", 0:
            return newest_rates(watched.store.by_step())
        case "rates", 0:
            return success_rates(watched.store.by_step())
        case "groups", 0:
            table = group_table(watched.store.by_step())
            table["unreadable"] = watched.store.unreadable
            return table
        case "timelines", 0:
            return timelines(folder)
        case "timeline", 1:
            [step] = numbers
            return timeline(folder, step)
        case "group", 2:
            step, row = numbers
            return details.group_details(
                folder,
                step,
                row,
                watched.tokenizer,
            )
        case "response", 3:
            step, row, place = numbers
            return details.response_details(
                folder,
                step,
                row,
                place,
                watched.tokenizer,
            )
    return None


def make_server(pages: Pages, token: str, port: int) -> ThreadingHTTPServer:
    """Return an HTTP server for the report page on this machine, which is not running yet.

    Port 0 takes a free port. Raises OSError when the port is taken.
    """
    text = render_page("watch", pages.runs, {})

    class Handler(_Handler):
        pass

    Handler.pages = pages
    Handler.token = token
    Handler.html = text
    server = _Server((HOST, port), Handler)
    return server


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error of one request, and no traceback: anybody on this machine may cause one."""
        is_shown = log.isEnabledFor(logging.DEBUG)
        log.warning("a request to the page failed: %s", sys.exc_info()[1], exc_info=is_shown)


class _Handler(BaseHTTPRequestHandler):
    pages: Pages
    token: str
    html: str
    server_version = "brorl"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer an HTTP request with the report page, or with data as JSON."""
        try:
            address = urlsplit(self.path)
        except ValueError:
            self._answer(HTTPStatus.BAD_REQUEST, "this is no address")
            return
        if not self._may_ask(address.query):
            self._answer(HTTPStatus.FORBIDDEN, "open the address that `brorl watch` has printed")
        elif address.path == "/":
            self._answer(HTTPStatus.OK, self.html, "text/html")
        elif address.path.startswith(DATA):
            self._answer_part(address.path.removeprefix(DATA))
        else:
            self._answer(HTTPStatus.NOT_FOUND, "nothing is here")

    def _may_ask(self, query: str) -> bool:
        """Return whether an HTTP request names this machine as its host and has the access token."""
        host, _, _ = self.headers.get("Host", "").rpartition(":")
        [given] = parse_qs(query).get("token", [""])[:1]
        has_token = hmac.compare_digest(given.encode(), self.token.encode())
        return has_token and host in NAMES

    def _answer_part(self, name: str) -> None:
        try:
            part = self.pages.read_part(name)
        except DataError as error:
            self._answer(HTTPStatus.GONE, str(error))
            return
        if part is None:
            self._answer(HTTPStatus.NOT_FOUND, "nothing is here")
            return
        self._answer(HTTPStatus.OK, as_json(part), "application/json")

    def _answer(
        self,
        status: HTTPStatus,
        text: str,
        kind: str = "text/plain",
    ) -> None:
        packed = gzip.compress(text.encode(), compresslevel=1)
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(packed)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(packed)

    def log_message(self, format: str, *values: Any) -> None:
        """Log an HTTP request without its query, which holds the access token."""
        # A request that cannot be read has no path.
        path, _, _ = getattr(self, "path", "").partition("?")
        log.debug("%s %s", self.command, path)
