"""`brorl plateau RUN_FOLDER [--window K] [--patience K]` says where the plateau detector would have broadened a run."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from brorl_lab.renamed_metrics import check_metric_name
from nemo_brorl.config.rollouts import PlateauConfig
from nemo_brorl.core.console import Console, write_error
from nemo_brorl.core.errors import USER_ERROR, DataError
from nemo_brorl.core.run_folders import metrics_file
from nemo_brorl.rollouts.plateau import PlateauDetector, trend
from nemo_brorl.training.records import read_metrics

SCORE = "validation/pass_at_1"


def main(argv: Sequence[str]) -> int:
    """Print at which validations of a run the score has stopped rising, and return the exit code.

    0: done, 2: an option or a file cannot be used.
    """
    defaults = PlateauConfig()
    parser = argparse.ArgumentParser(prog="brorl plateau", description=__doc__)
    parser.add_argument("run", type=Path, help="run folder or metrics.jsonl")
    parser.add_argument("--metric", default=SCORE)
    parser.add_argument("--window", type=int, default=defaults.window)
    parser.add_argument("--patience", type=int, default=defaults.patience)
    parser.add_argument("--confidence", type=float, default=defaults.confidence)
    parser.add_argument("--min-gain", type=float, default=defaults.min_gain)
    options = parser.parse_args(argv)
    if options.window < 3 or options.patience < 1 or not 0.5 <= options.confidence < 1:
        write_error(
            "\nerror: pass --window of at least 3, --patience of at least 1, --confidence from 0.5 to below 1\n"
        )
        return USER_ERROR
    config = PlateauConfig(options.window, options.patience, options.confidence, options.min_gain)
    check_metric_name(options.metric)
    table = plateau_rows(read_metrics(metrics_file(options.run)), config, options.metric)
    Console().table(["step", options.metric, "slope per validation (bounds)", "verdict"], table)
    return 0


def plateau_rows(
    rows: Iterable[Mapping[str, Any]],
    config: PlateauConfig,
    metric: str = SCORE,
) -> list[list[str]]:
    """Return a table row for each validation in a metrics file: step, score, slope with its bounds, verdict.

    After each plateau the detector starts over, as it does in a run that then changes its rollout size. Raises
    DataError when no row of the file has the metric.
    """
    detector = PlateauDetector(config)
    table = []
    for row in rows:
        score = row.get(metric)
        if score is None:
            continue
        alarm = detector.observe(score)
        recent = detector.scores[-config.window :]
        slope, verdict = "", ""
        if len(recent) == config.window:
            line = trend(recent, config)
            slope = f"{line.slope:+.4f} ({line.low:+.4f} … {line.high:+.4f})"
            verdict = f"stalled {detector.num_stalled}" if line.has_stalled else "rising"
            if config.min_gain > 0 and not line.has_stalled:
                verdict = "not stalled"
        if alarm:
            verdict = "PLATEAU"
            detector.reset()
        step = str(int(row["step"]))
        table.append([step, f"{score:.4f}", slope, verdict])
    if not table:
        raise DataError(f"no row has {metric!r}: give the metrics.jsonl of a run with validations, or another --metric")
    return table
