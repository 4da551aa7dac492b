"""Print the results of the runs after a plateau, and what these decide."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from brorl_lab.paired_test import PairedTest, paired_test

from nemo_brorl.core.console import format_table

Line = dict[str, Any]
Runs = dict[tuple[str, int], list[Line]]  # lines by arm and seed

GROW = 8**0.5  # rate of a step with eight times the rollouts
EQUAL_SAMPLES = 500_000  # rollouts after the plateau
EQUAL_TIME = 735_000  # rollouts of N = 512 in the time of 500,000 of N = 16: the paper's 1.47
CONFIDENCE = 0.9706  # two looks with 5 % in all, by Pocock
LOOKS = (10, 16)  # seeds
LEAST = 0.03  # difference that pays
BEFORE = 2_000_000  # rollouts until the plateau at most
LARGE, SMALL, CONTROL = "512 x 32", "16 x 128", "16 x many"
TOO_SMALL = "No design of this size can see the paper's +0.8 points: that takes more than 80 seeds."


def read_runs(folder: Path, variant: str) -> Runs:
    """Return the lines of each arm and seed, of seed 0 those with the rate that was chosen."""
    rates = json.loads((folder / f"{variant}_rates.json").read_text(encoding="utf-8"))
    runs: Runs = {}
    for path in sorted(folder.glob(f"{variant}_seed_*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            if line["arm"] == "before" or line["rate"] == rates[line["arm"]]:
                runs.setdefault((line["arm"], line["seed"]), []).append(line)
    return runs


def value_at(lines: list[Line], name: str, sampled: float) -> float:
    """Return a number of a run at so many rollouts after the plateau, on a straight line between measurements."""
    with_it = [line for line in lines if name in line]
    return float(np.interp(sampled, [line["sampled"] for line in with_it], [line[name] for line in with_it]))


def differences(runs: Runs, arm: tuple[str, float], other: tuple[str, float], name: str) -> list[float]:
    """Return one arm minus another by seed, each at its rollouts. Seed 0 is left out."""
    seeds = sorted(seed for of_arm, seed in runs if of_arm == arm[0] and seed > 0 and (other[0], seed) in runs)
    found = []
    for seed in seeds:
        ends = [value_at(runs[of_arm, seed], name, sampled) for of_arm, sampled in (arm, other)]
        found.append(ends[0] - ends[1])
    return found


HYPOTHESES = {
    "H1, 512 x 32 - 16 x many, equal samples": ((LARGE, EQUAL_SAMPLES), (CONTROL, EQUAL_SAMPLES)),
    "H2, 512 x 32 - 16 x 128, equal time": ((LARGE, EQUAL_TIME), (SMALL, EQUAL_SAMPLES)),
}


def without_plateau(runs: Runs) -> set[int]:
    """Return the seeds whose first run reached its bound of rollouts without a plateau."""
    return {seed for (arm, seed), lines in runs.items() if arm == "before" and lines[-1]["sampled"] >= BEFORE}


def in_points(test: PairedTest) -> str:
    low, high = test.difference.interval
    return f"{100 * test.difference.value:+.1f} ({100 * low:+.1f} … {100 * high:+.1f})"


def tables(folder: Path, variant: str) -> list[str]:
    """Return tables of the plateau and of the arms, over all seeds but 0."""
    runs = read_runs(folder, variant)
    header = ["arm", "seeds", "rate", "keep rate", "updates", "rate × updates", "rollouts/s", "pass@1", "pass@16",
              "log10 of unsolved", "rare successes"]  # fmt: skip
    rows = []
    for arm in dict.fromkeys(arm for arm, _ in runs):
        of_seeds = [lines for (name, seed), lines in sorted(runs.items()) if name == arm and seed > 0]
        if not of_seeds:
            continue
        ends = [lines[-1] for lines in of_seeds]
        limit = EQUAL_SAMPLES if arm != "before" else np.inf
        rows.append(
            [
                arm,
                str(len(ends)),
                f"{ends[0]['rate']:.2g}",
                f"{np.mean([line['kept'] / line['groups'] for line in ends]):.2f}",
                f"{np.mean([1e5 * line['updates'] / line['sampled'] for line in ends]):.0f}",
                f"{np.mean([1e9 * line['rate'] * line['updates'] / line['sampled'] for line in ends]):.0f}",
                f"{np.mean([line['sampled'] / line['processor_s'] for line in ends]):,.0f}",
                _mean(of_seeds, "pass_at_1", limit, "{:.1%}"),
                _mean(of_seeds, "pass_at_16", limit, "{:.1%}"),
                _mean(of_seeds, "log_of_unsolved", limit, "{:.2f}"),
                _mean(of_seeds, "rare_successes", limit, "{:,.0f}"),
            ]
        )
    words = [f"At {EQUAL_SAMPLES:,} rollouts after the plateau. Updates, and rate × updates over 1e-4 of a rate, per"]
    words += ["100,000 rollouts."]
    return [*words, "", *format_table(header, rows)]


def _mean(of_seeds: list[list[Line]], name: str, limit: float, template: str) -> str:
    values = [value_at(lines, name, limit) for lines in of_seeds if name in lines[-1]]
    return template.format(np.mean(values)) if values else "–"


def decision(folder: Path, variant: str) -> list[str]:
    """Return the tests of H1 and H2 with Holm's p, and in variant A what H1 decides."""
    runs = read_runs(folder, variant)
    flat = {key: lines for key, lines in runs.items() if key[1] not in without_plateau(runs)}
    found = {claim: differences(runs, *arms, "pass_at_1") for claim, arms in HYPOTHESES.items()}
    if flat != runs:
        found |= {
            f"{claim}, with a plateau": differences(flat, *arms, "pass_at_1") for claim, arms in HYPOTHESES.items()
        }
    tests = {
        claim: paired_test([np.array(values)], CONFIDENCE, 100, 0) for claim, values in found.items() if len(values) > 1
    }
    if not set(HYPOTHESES) <= set(tests):
        return ["Two seeds with the three arms are needed at least.", TOO_SMALL]
    lower, higher = sorted(tests[claim].p_value for claim in HYPOTHESES)
    holm = {lower: min(1.0, 2 * lower), higher: min(1.0, max(2 * lower, higher))}
    rows = []
    for claim, test in tests.items():
        p_value = f"{holm[test.p_value]:.3f}" if variant == "A" and claim in HYPOTHESES else "exploratory"
        rows.append([claim, str(len(found[claim])), in_points(test), p_value])
    header = ["claim", "seeds", f"difference, points ({CONFIDENCE:.2%})", "Holm's p"]
    first = next(iter(HYPOTHESES))
    verdict = verdict_on(tests[first], len(found[first])) if variant == "A" else "Variant B decides nothing."
    return [*format_table(header, rows), "", verdict, TOO_SMALL]


def verdict_on(test: PairedTest, num_seeds: int) -> str:
    """Return what H1's test decides after so many seeds."""
    low, high = test.difference.interval
    if num_seeds not in LOOKS:
        later = [look for look in LOOKS if look > num_seeds]
        return f"Not looked at yet: {num_seeds} seeds of {later[0]}." if later else "More seeds than were planned."
    if low > 0 and test.difference.value >= LEAST:
        return f"N = 512 pays: {in_points(test)} points."
    if high < LEAST:
        return f"N = 512 pays less than 3 points: {in_points(test)}."
    if num_seeds == LOOKS[0]:
        return f"Not decided: {in_points(test)} points. Add six seeds, once."
    return f"Not decided: {in_points(test)} points after all seeds."
