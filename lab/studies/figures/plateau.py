"""Print the tables of `lab/studies/cipher_plateau.py`'s measurements."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from brorl_lab.commands.sweep import mean_and_interval

from lab.studies.figures.pool import column
from nemo_brorl.core.console import format_table

RATES = ("pass@1", "within reach", "beyond")


def print_plateau_tables(output: Path) -> None:
    """Print the last measurement of each part of training by seed, and means over seeds ± Student's 95 % interval.

    The parts are training up to the plateau, and each arm (combination of settings) that continues from it. Columns
    with `=s` are at the time when the seed's first arm ended.
    """
    parts: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for text in output.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        parts.setdefault(line["part"], {}).setdefault(line["seed"], []).append(line)
    ends: dict[int, float] = {}
    for part, by_seed in parts.items():
        for seed, lines in by_seed.items():
            if part != "before":
                ends[seed] = min(ends.get(seed, math.inf), lines[-1]["seconds"])
    rows, means = [], []
    for part, by_seed in sorted(parts.items()):
        rates = []
        for seed, lines in sorted(by_seed.items()):
            last = lines[-1]
            rates.append(rates_of(lines, ends.get(seed, 0.0)))
            numbers = [str(seed), f"{last['sampled']:,}", str(last["updates"]), f"{last['seconds']:.0f}"]
            rows.append([part, *numbers, *(f"{rate:.1f}" for rate in rates[-1])])
        means.append([part, *map(mean_and_interval, zip(*rates, strict=True))])
    heads = [*RATES, "pass@1 =s", "beyond =s"]
    print("\n".join(format_table(["part", "seed", "rollouts", "updates", "s", *heads], rows)), end="\n\n")
    print("\n".join(format_table(["part", *heads], means)))


def rates_of(lines: Sequence[Mapping[str, Any]], seconds: float) -> list[float]:
    """Return a run's success rates in %, at its last measurement and after `seconds`.

    After `seconds` they are pass@1 and the success rate on ciphers that the base model was not taught.
    """
    rates = [lines[-1][name] for name in RATES]
    for name in ("pass@1", "beyond"):
        rates.append(float(np.interp(seconds, column(lines, "seconds"), column(lines, name))))
    return [100 * rate for rate in rates]
