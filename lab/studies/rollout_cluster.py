"""Simulate placement on large clusters: makespan, idle engines and prefill of several ways to dispatch rollouts.

    python -m lab.studies.rollout_cluster [--engines 1 4 16 64] [--curve FILE] [--lengths RUN] [--output runs/cluster]

The first study has 64 engines with 128 prompts × 512 rollouts, under two length distributions and all curves. Then the
number of engines grows, with two prompts for each (weak scaling) or with a fixed number of prompts (strong scaling, to
1,024 engines). `--studies` selects some of these. Engines are those of `ASSUMED_H100` (derived, not measured), and of a
file that lab/studies/engine_curve.py wrote. Lengths are drawn, or follow a run's metrics.jsonl. Writes cluster.csv, row
by row, and figures.

Ways to dispatch single rollouts stop at `--max-scattered` engines, because they send one message for each rollout.
"lengths known" is only a reference: it starts the longest rollouts first, and lengths are unknown before rollouts end.
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
    """One load of rollouts on one simulated cluster."""

    study: str
    law: str
    curve: str
    shape: ClusterShape
    load: Load
    before: Load  # load of the step before, from which the planner has learned lengths
    max_tokens: int


def planner_of_the_pool(case: Case) -> Dispatcher:
    """Return a dispatcher of simulated rollouts to engines that plans as the real vLLM pool does."""
    num = sum(map(len, case.load.lengths))
    return Planned(
        case.load,
        case.shape,
        warm_history(case.before),
        case.max_tokens,
        fitting_chunk_size(num, case.shape.num_engines, 64),
    )


def run(case: Case, way: str) -> tuple[ClusterResult, dict[str, Any]]:
    """Simulate one way to dispatch rollouts to engines, and return the result and its row of the CSV file."""
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
    """Simulate all ways to dispatch the rollouts of each case, and return each way's results by number of engines.

    Ways that dispatch single rollouts stop at `max_scattered` engines.
    """
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
    """The CSV file of simulation results, with one row for each."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.rows = path, list[dict[str, Any]]()

    def add(self, row: dict[str, Any]) -> None:
        """Print the row of one simulation, and write the CSV file again with this row."""
        self.rows.append(row)
        print(" ".join(f"{value}" for value in row.values()), flush=True)
        with self.path.open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(self.rows)


def case_maker(options: argparse.Namespace, laws: dict[str, LengthDistribution]) -> Callable[..., Case]:
    """Return a function that makes a simulation case with the largest batch and the prompt length of the options."""

    def make(study: str, law: str, curve: tuple[str, EngineCurve], num_engines: int, num_prompts: int) -> Case:
        shape = ClusterShape(num_engines, curve[1], options.max_batch)
        load = draw_load(laws[law], num_prompts, NUM_PER_PROMPT, options.prompt_tokens, options.seed)
        before = draw_load(laws[law], 64, 128, options.prompt_tokens, options.seed + 1)
        return Case(study, law, curve[0], shape, load, before, laws[law].max_tokens)

    return make


def parse_arguments() -> argparse.Namespace:
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
    """Simulate the chosen studies of dispatching rollouts to engines, print a table, and write CSV and figures."""
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
