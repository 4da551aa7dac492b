"""Options that name a metric refuse its old name."""

from __future__ import annotations

from pathlib import Path

import pytest
from brorl_lab.commands import diff, plateau
from brorl_lab.metric_registry import declared_names
from brorl_lab.renamed_metrics import RENAMED

from nemo_brorl.core.errors import DataError


def test_diff_and_plateau_refuse_an_old_name_and_give_the_new_one(tmp_path: Path) -> None:
    rows = tmp_path / "metrics.jsonl"
    rows.write_text('{"step": 1}\n', encoding="utf-8")
    with pytest.raises(DataError, match="Pass --metric dynamic_sampling/postponed"):
        diff.main([str(tmp_path), str(tmp_path), "--metric", "dynamic_sampling/held"])
    with pytest.raises(DataError, match="Pass --metric dynamic_sampling/postponed"):
        plateau.main([str(rows), "--metric", "dynamic_sampling/held"])


def test_new_names_are_declared_and_old_ones_are_not() -> None:
    declared = declared_names()
    assert set(RENAMED.values()) <= set(declared)
    assert not RENAMED.keys() & set(declared)
