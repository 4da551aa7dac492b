"""Probes that hang or fail, and rows of a report."""

from __future__ import annotations

import time

from brorl_launcher.doctor.probe import Probe, call_within
from brorl_launcher.doctor.report import FAIL, OK, Check, NodeReport, advice_lines, table_header, table_rows


def test_a_question_that_hangs_ends_at_its_deadline() -> None:
    hanging = Probe(
        "collective",
        "rank",
        {"rank": 1, "size": 2, "address": "127.0.0.1", "port": 1, "backend": "gloo", "seconds": 600},
    )
    answer = hanging.wait(0.5)
    assert (answer.data, answer.reason) == (None, "no answer within 0.5 s")
    assert call_within(0.05, lambda: time.sleep(5), "late") == "late"


def test_a_probe_that_fails_says_why() -> None:
    answer = Probe("data_files", "nothing of the kind", {}).wait(60)
    assert answer.data is None
    assert answer.reason.startswith("exit code 1: KeyError")


def test_nodes_that_say_the_same_share_a_row_and_the_worst_stands_first() -> None:
    reports = [NodeReport(f"n{index}", [Check("disk", OK, f"{index} GiB")]) for index in range(8)]
    reports[5] = NodeReport("n5", [Check("disk", FAIL, "0 GiB", "empty it")])
    assert table_header(reports) == ("check", "status", "nodes", "found")
    assert table_rows(reports) == [
        ["disk", "fail", "n5", "0 GiB"],
        ["disk", "ok", "n0, n1, n2, n3, n4, n6 and 1 more", "0 GiB (n0; the others alike)"],
    ]
    assert table_rows(reports[:1]) == [["disk", "ok", "0 GiB"]]
    assert advice_lines(reports) == ["disk: empty it"]
