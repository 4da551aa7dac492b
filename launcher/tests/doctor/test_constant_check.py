"""The doctor names tasks that pay for a constant answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from brorl_launcher.doctor import data_files
from brorl_launcher.doctor.report import FAIL, OK, WARN

from nemo_brorl.config.data import DataConfig
from nemo_brorl.config.schema import BroRLConfig

pytestmark = pytest.mark.slow

ALWAYS = {"parts": [{"verifier": "exact_match", "options": {"answer": "24"}}]}


@pytest.mark.parametrize(
    ("verifier", "setting", "status"),
    [("composite", "warn", WARN), ("composite", "refuse", FAIL), ("exact_match", "refuse", OK)],
)
def test_the_doctor_tries_constants(tmp_path: Path, verifier: str, setting: str, status: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "2+2?", "answer": "4"}\n{"prompt": "1+2?", "answer": "3"}\n', encoding="utf-8")
    options = ALWAYS if verifier == "composite" else {}
    data = DataConfig(source="jsonl", path=str(path), verifier=verifier, verifier_options=options)
    config = BroRLConfig(data=data)
    config.rewards.constant_answers = setting
    (check,) = data_files.check_constants(config)
    assert check.status == status, check.found
    config.rewards.constant_answers = "off"
    assert list(data_files.check_constants(config)) == []
