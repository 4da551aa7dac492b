"""Map old names of metrics to new ones. Options that name a metric refuse the old name."""

from __future__ import annotations

from nemo_brorl.core.errors import DataError

RENAMED = {
    "dynamic_sampling/held": "dynamic_sampling/postponed",
    "policy/held_tokens": "policy/covariance_tokens",
    "sft/learnt_tokens": "sft/trained_tokens",
}


def check_metric_name(name: str) -> None:
    """Raise DataError when `name` is the old name of a metric. The message gives the new name."""
    if name in RENAMED:
        raise DataError(f"--metric {name}: this metric has another name now. Pass --metric {RENAMED[name]}.")
