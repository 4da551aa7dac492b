"""The page as a file, and the server of it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.client
import json
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from brorl_lab.page.page import MIB, render_report
from brorl_lab.page.runs import RunView, open_runs
from brorl_lab.page.server import Pages, make_server

from nemo_brorl.__main__ import main as brorl
from tests.support.run_folders import HOSTILE, put_run
from tests.support.source_tree import ROOT

TOKEN = "secret"
# SHA-256 of files of uPlot 1.6.32 (MIT) from npm: dist/uPlot.iife.min.js and dist/uPlot.min.css
UPLOT = {
    "uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
PART = re.compile(r'<script type="text/plain" id="part:([^"]*)">([^<]*)</script>')


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return put_run(tmp_path_factory.mktemp("runs") / "hostile", num_steps=2, responses=HOSTILE)


def parts_of(text: str) -> dict[str, Any]:
    found = {}
    for name, packed in PART.findall(text):
        found[name] = json.loads(gzip.decompress(base64.b64decode(packed)))
    return found


def test_a_report_holds_every_view_and_its_groups(run: Path) -> None:
    parts = parts_of(render_report(open_runs([run]), max_mib=5))
    assert {"overview", "settings", "comparison", "rates/0", "groups/0"} <= set(parts)
    group = parts["group/0/2/0"]
    pieces = [piece for response in group["responses"].values() for piece in response["pieces"]]
    assert "\u202e" in pieces


def test_responses_end_where_the_page_is_full(run: Path) -> None:
    whole = render_report(open_runs([run]), max_mib=5)
    limit = 0.5 * (len(whole) + len(render_report(open_runs([run]), max_mib=0)))
    some = render_report(open_runs([run]), limit / MIB)
    assert len(some) <= limit
    assert 0 < len([name for name in parts_of(some) if name.startswith("group/")]) < 16


def test_nothing_that_a_model_wrote_stands_in_the_file_as_it_is(run: Path) -> None:
    text = render_report(open_runs([run]), max_mib=5)
    for written in ("onerror", "alert(", "document.title='taken'", "example.org"):
        assert written not in text


def test_a_name_of_a_run_is_no_markup(run: Path) -> None:
    text = render_report([RunView(run, "<script>alert(1)</script>")], max_mib=0)
    assert "<title>BroRL: &lt;script&gt;alert(1)&lt;/script&gt;</title>" in text
    assert "<script>alert(1)" not in text
    assert "<title>BroRL: \\udcff</title>" in render_report([RunView(run, "\udcff")], max_mib=0)


def test_the_policy_allows_this_program_and_style_and_nothing_from_elsewhere(run: Path) -> None:
    text = render_report(open_runs([run]), max_mib=0)
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    [script] = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    [style] = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    for inner in (script, style):
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "connect-src 'none'" in policy
    assert "unsafe" not in policy


def test_the_page_calls_those_rewards_right_that_training_does() -> None:
    views = (resources.files("brorl_lab.page") / "assets" / "views.js").read_text(encoding="utf-8")
    compared = re.findall(r"reward (?:>=|<) ([\w.]+)", views)
    assert compared
    assert set(compared) == {"group.lowest_right"}


def test_the_chart_library_is_unchanged() -> None:
    assets = resources.files("brorl_lab.page") / "assets"
    assert {name: hashlib.sha256((assets / name).read_bytes()).hexdigest() for name in UPLOT} == UPLOT


def test_the_command_writes_the_file_into_the_run_folder(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["brorl", "report", str(run)])
    assert brorl() == 0
    assert f"report of hostile: {run / 'report.html'}" in capsys.readouterr().out
    assert (run / "report.html").read_text().startswith("<!doctype html>")


def test_only_what_the_first_view_shows_stands_before_the_program(run: Path) -> None:
    before, _, after = render_report(open_runs([run]), max_mib=5).partition("<script>")
    assert list(parts_of(before)) == ["overview"]
    assert {"settings", "comparison", "rates/0", "groups/0", "group/0/2/0"} <= set(parts_of(after))


def test_make_train_ends_with_the_report_of_its_run() -> None:
    command = ["make", "--no-print-directory", "--dry-run", "train"]  # which make would name when it runs the tests
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].split()[1:] == ["-m", "nemo_brorl", "report", "--config-name", "sums_cpu"]


@pytest.fixture(scope="module")
def port(run: Path) -> Iterator[int]:
    with make_server(Pages(open_runs([run])), TOKEN, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def ask(port: int, path: str, host: str = "127.0.0.1", method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request(method, path, headers={"Host": f"{host}:{port}"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    is_packed = answer.headers.get("Content-Encoding") == "gzip"
    return answer.status, gzip.decompress(body) if is_packed else body


def test_the_served_page_asks_its_server_and_nobody_else(port: int) -> None:
    status, body = ask(port, f"/?token={TOKEN}")
    assert status == 200
    assert b"connect-src 'self'" in body
    assert PART.findall(body.decode()) == []


@pytest.mark.parametrize("path", ["/", "/?token=", "/?token=secre", "/data/overview", "/data/overview?token=other"])
def test_nobody_is_answered_without_the_token(port: int, path: str) -> None:
    status, body = ask(port, path)
    assert status == 403
    assert b"hostile" not in body


def test_a_page_of_another_name_is_not_answered(port: int) -> None:
    """A name that resolves to this machine after its page has been loaded."""
    assert ask(port, f"/data/overview?token={TOKEN}", host="attacker.example")[0] == 403


def test_nothing_can_be_written(port: int) -> None:
    assert ask(port, f"/data/overview?token={TOKEN}", method="POST")[0] == 501


def test_parts_are_those_of_the_report_and_every_response(port: int, run: Path) -> None:
    def part(name: str) -> Any:
        status, body = ask(port, f"/data/{name}?token={TOKEN}")
        assert status == 200
        return json.loads(body)

    written = parts_of(render_report(open_runs([run]), max_mib=5))
    for name in ("settings", "comparison", "newest/0", "rates/0", "groups/0", "group/0/2/0"):
        assert part(name) == written[name]
    assert part("response/0/2/0/3")["pieces"]


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET",
        b"\x16\x03\x01",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1",
        b"GET http://[x/ HTTP/1.1",
        b"GET /\xff HTTP/1.1",
    ],
)
def test_a_request_that_cannot_be_read_prints_no_traceback(
    port: int, request_line: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request_line + b"\r\n\r\n")
        while connection.recv(65536):
            continue
    assert ask(port, f"/?token={TOKEN}")[0] == 200
    assert "Traceback" not in capsys.readouterr().err


def test_an_error_of_one_request_is_one_line_of_the_log(
    run: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with make_server(Pages(open_runs([run])), TOKEN, 0) as server:
        try:
            raise ConnectionResetError("reset by a stranger")
        except ConnectionResetError:
            server.handle_error(None, ("127.0.0.1", 1))
    assert capsys.readouterr().err == ""
    assert caplog.messages == ["a request to the page failed: reset by a stranger"]


@pytest.mark.parametrize("name", ["timeline/0/²", "group/0/" + "9" * 5000 + "/1", "timeline/0/٣"])
def test_numbers_that_are_none_are_not_found(port: int, name: str) -> None:
    assert ask(port, f"/data/{quote(name)}?token={TOKEN}")[0] == 404


@pytest.mark.parametrize("name", ["rates/1", "group/0/2", "../config.yaml", "group/0/2/-1"])
def test_what_has_no_such_name_is_not_found(port: int, name: str) -> None:
    assert ask(port, f"/data/{name}?token={TOKEN}")[0] == 404


@pytest.mark.parametrize("name", ["group/0/99/0", "group/0/2/999"])
def test_what_is_no_longer_there_is_said(port: int, name: str) -> None:
    status, body = ask(port, f"/data/{name}?token={TOKEN}")
    assert status == 410
    assert b"step" in body


def test_the_stamp_changes_with_the_files_of_a_run(run: Path) -> None:
    pages = Pages(open_runs([run]))
    before = pages.stamp()
    assert pages.stamp() == before
    (run / "events.jsonl").write_text('{"step": 1, "event": "start", "reason": "", "value": 1}\n')
    assert pages.stamp() != before


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2.1)."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1])
def test_every_text_stands_out_from_its_ground(theme: int) -> None:
    """4.5 : 1 at least, in light and in dark colours (WCAG 2.1, AA)."""
    style = (resources.files("brorl_lab.page") / "assets" / "page.css").read_text(encoding="utf-8")
    blocks = re.findall(r"{[^{}]*--back:[^}]*}", style)
    light, dark, chosen_dark = [dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in blocks]
    assert dark == chosen_dark
    colours = (light, dark)[theme]
    for text in ("text", "soft", "accent", "right", "wrong", "part"):
        for ground in ("back", "card"):
            values = sorted((luminance(colours[text]), luminance(colours[ground])))
            assert (values[1] + 0.05) / (values[0] + 0.05) >= 4.5, (text, ground)
