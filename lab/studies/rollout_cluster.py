"""Placement on clusters that are not here: makespan, idle engines and prefill of several ways to hand out rollouts,
from a model.

    python -m lab.studies.rollout_cluster [--engines 1 4 16 64] [--curve FILE] [--lengths RUN] [--output runs/cluster]

First 64 engines with 128 prompts × 512 rollouts, under two laws of lengths and all curves; then the number of engines
grows with two prompts for each (weak) and with the prompts as they are (strong, to 1,024). `--studies` picks some of
these. Engines are those of `ASSUMED_H100` (derived, not measured), and of a file that lab/studies/engine_curve.py
wrote. Lengths are drawn, or resampled from a run's metrics.jsonl. Writes cluster.csv, row by row, and figures.

Ways to hand out single rollouts stop at `--max-scattered` engines: they send as many messages as there are rollouts.
"lengths known" is no way but a reference: it starts the longest rollouts first, which nobody knows before they end.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.studies.cluster_model.cluster import Cluster, ClusterResult, Dispatcher
from lab.studies.cluster_model.curve import ASSUMED_H100, EngineCurve, read_curve
from lab.studies.cluster_model.dispatch import BASELINES, Planned, warm_history
from lab.studies.cluster_model.load import ClusterShape, Load
from lab.studies.cluster_model.workload import HEAVY, LengthDistribution, draw_load, recorded_distribution
from lab.studies.figures.cluster import draw_scaling
from nemo_brorl.core.console import format_table
from nemo_brorl.rollouts.ledger import fitting_chunk_size
from nemo_brorl.training.records import read_metrics

OURS = "ours"
NUM_PER_PROMPT = 512
STUDIES = ("64", "weak", "strong")
FIELDS = ("study", "law", "curve", "way", "engines", "prompts", "makespan_s", "over_bound", "over_unmoved",
          "idle_share", "prefill_ratio",
          "messages_per_1000", "stolen", "cpu_s")  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One load on one cluster."""

    study: str
    law: str
    curve: str
    shape: ClusterShape
    load: Load
    before: Load  # of the step before, which ours has learnt from
    max_tokens: int


def planner_of_the_pool(case: Case) -> Dispatcher:
    """The planner of the real pool."""
    num = sum(map(len, case.load.lengths))
    return Planned(
        case.load,
        case.shape,
        warm_history(case.before),
        case.max_tokens,
        fitting_chunk_size(num, case.shape.num_engines, 64),
    )


def run(case: Case, way: str) -> tuple[ClusterResult, dict[str, Any]]:
    """One simulation, and its row of the CSV."""
    start = time.process_time()
    dispatcher = planner_of_the_pool(case) if way == OURS else BASELINES[way](case.load, case.shape)
    result = Cluster(case.shape, dispatcher).run(case.load)
    num = sum(map(len, case.load.lengths))
    values = (case.study, case.law, case.curve, way, case.shape.num_engines, len(case.load.lengths),
              round(result.makespan_s, 2),
              round(result.over_bound, 4), round(result.over_unmoved, 4), round(result.idle_share, 4),
              round(result.prefill_ratio, 2),
              round(1000 * result.num_messages / num, 1), result.num_stolen, round(time.process_time() - start,
              1))  # fmt: skip
    return result, dict(zip(FIELDS, values, strict=True))


def compare(
    cases: Iterable[Case], ways: Sequence[str], max_scattered: int, table: Table
) -> dict[str, list[tuple[int, ClusterResult]]]:
    """Run all cases and ways; curves over engines. Ways that handle single rollouts stop at `max_scattered` engines."""
    curves: dict[str, list[tuple[int, ClusterResult]]] = {way: [] for way in ways}
    for case in cases:
        for way in ways:
            if case.shape.num_engines > max_scattered and way != OURS and "group" not in way:
                continue
            result, row = run(case, way)
            curves[way].append((case.shape.num_engines, result))
            table.add(row)
    return curves


class Table:
    """Rows of the CSV, written as they come."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.rows = path, list[dict[str, Any]]()

    def add(self, row: dict[str, Any]) -> None:
        """Another simulation is done."""
        self.rows.append(row)
        print(" ".join(f"{value}" for value in row.values()), flush=True)
        with self.path.open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(self.rows)


def case_maker(options: argparse.Namespace, laws: dict[str, LengthDistribution]) -> Callable[..., Case]:
    """Cases with the options' batch and prompts."""

    def make(study: str, law: str, curve: tuple[str, EngineCurve], num_engines: int, num_prompts: int) -> Case:
        shape = ClusterShape(num_engines, curve[1], options.max_batch)
        load = draw_load(laws[law], num_prompts, NUM_PER_PROMPT, options.prompt_tokens, options.seed)
        before = draw_load(laws[law], 64, 128, options.prompt_tokens, options.seed + 1)
        return Case(study, law, curve[0], shape, load, before, laws[law].max_tokens)

    return make


def parse_arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", nargs="+", choices=STUDIES, default=list(STUDIES))
    parser.add_argument(
        "--engines", type=int, nargs="*", default=[1, 4, 16, 64, 256, 1024, 4096], help="of the scaling studies"
    )
    parser.add_argument("--curve", type=Path, help="engine curve, written by lab/studies/engine_curve.py")
    parser.add_argument(
        "--lengths", type=Path, help="metrics.jsonl of a run, whose lengths are taken for a law of their own"
    )
    parser.add_argument("--max-batch", type=int, default=256, help="rollouts an engine decodes at a time")
    parser.add_argument("--prompt-tokens", type=int, default=1000)
    parser.add_argument(
        "--max-scattered", type=int, default=256, help="engines up to which single rollouts are handed out"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("runs/cluster"))
    return parser.parse_args()


def main() -> None:
    """Run, print, write."""
    options = parse_arguments()
    laws = {"8k": LengthDistribution(), "heavy 16k": HEAVY}
    if options.lengths:
        laws["recorded"] = recorded_distribution(read_metrics(options.lengths))
    curves = {"H100, assumed": ASSUMED_H100} | (
        {options.curve.stem: read_curve(options.curve)} if options.curve else {}
    )
    make = case_maker(options, laws)
    ways, table = [*BASELINES, OURS], Table(options.output / "cluster.csv")
    if "64" in options.studies:
        compare((make("64 engines", law, curve, 64, 128) for law in laws for curve in curves.items()), ways, 64, table)
    first = next(iter(curves.items()))
    for study, prompts in (("weak", lambda num: 2 * num), ("strong", lambda num: 128)):
        engines = [num for num in options.engines if study == "weak" or num <= 1024]
        if study in options.studies:
            lines = compare(
                (make(study, "8k", first, num, prompts(num)) for num in engines), ways, options.max_scattered, table
            )
            draw_scaling(lines, options.output / f"cluster_{study}.png")
    print("\n".join(format_table(list(FIELDS), [[str(row[name]) for name in FIELDS] for row in table.rows])))


if __name__ == "__main__":
    main()
