"""`rollouts.allocation` fixed, waves, and fixed at the waves' mean size, at equal generated tokens: informative groups
per million tokens, and held-out pass@1.

    python lab/studies/waves.py --base runs/base_cpu --output runs/waves [--seeds 1 2 3] [--tokens 3e6] [KEY=VALUE ...]
    python lab/studies/waves.py --simulate [--seeds 1 2 3] [--tokens 2e8] [rollouts.waves.KEY=VALUE ...]

Every seed trains once with each allocation, from the same base, until it has generated `--tokens` response tokens; what
a run is worth is read off its curve at the most tokens that all runs reached. `fixed_mean` comes last: its N, the same
for all seeds, is the mean size of the groups of all waves runs, which no run knows beforehand; it stays in
`mean_size.json`. Runs that have reached their tokens are not run again, so an interrupted comparison goes on. Settings
behind the options hold for all.

`--simulate` has no model: prompts are success rates drawn from a Beta distribution, and a rollout's score function has
one component along its prompt's gradient, r − p, and noise of variance `NOISE` across it, so a group's gradient is p (1
− p) and known. Both allocations, as the product has them, spend the same tokens; the signal-to-noise is that of the
mean of all groups' estimates. `unweighted` makes the decisions of `waves` and takes the plain mean over each group.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemo_brorl.config.load import load_config
from nemo_brorl.config.rollouts import PosteriorConfig, WavesConfig
from nemo_brorl.core.console import format_table
from nemo_brorl.rollouts.group_size.success_posterior import SuccessPosterior
from nemo_brorl.rollouts.group_size.wave_weights import Draw
from nemo_brorl.rollouts.group_size.waves import Allocation, FixedAllocation, WaveAllocation
from nemo_brorl.rollouts.ledger import MIN_CHUNK
from nemo_brorl.training.records import read_metrics
from nemo_brorl.types import Prompt

FIXED, WAVES, FIXED_MEAN = "fixed", "waves", "fixed_mean"
TOKENS, PASS_AT_1 = "rollouts/generated_tokens", "validation/pass_at_1"
INFORMATIVE, GROUP_SIZE = "rollouts/informative_per_million_tokens", "rollouts/group_size"
FIRST_STEPS = 2  # of a run; then its tokens per step are known

POPULATIONS = {"BroRL's keep rates": (0.56, 0.13), "hard": (0.3, 0.9)}
N, PROMPT_TOKENS, RESPONSE_TOKENS, GROUPS_PER_STEP, NOISE = 512, 100, 200, 32, 30.0


Rows = Sequence[Mapping[str, Any]]  # of one run's metrics


def train(folder: Path, seed: int, options: argparse.Namespace, overrides: Sequence[str]) -> list[dict[str, Any]]:
    """Train one run until it has generated enough tokens. Returns its metrics. `overrides` come after those of
    `options`."""
    metrics = folder / "metrics.jsonl"
    while (steps := steps_to_go(read_metrics(metrics) if metrics.exists() else [], options.tokens)) is not None:
        command = [
            sys.executable, "-m", "nemo_brorl", "train", "--config-name", "brorl_cpu",
            f"exp_manager.explicit_log_dir={folder}",
            f"policy.model={options.base}", f"trainer.seed={seed}", f"trainer.max_steps={steps}",
            f"trainer.val_interval={options.val_interval}", f"trainer.save_interval={options.val_interval}",
            *options.overrides, *overrides,
        ]  # fmt: skip
        subprocess.run(command, check=True)
    return read_metrics(metrics)


def steps_to_go(rows: Rows, tokens: float) -> int | None:
    """The step at which a run will have generated `tokens`, by its mean so far; None: it has."""
    done = [row for row in rows if row.get(TOKENS)]
    if not done:
        return FIRST_STEPS
    step, spent = int(done[-1]["step"]), float(done[-1][TOKENS])
    return None if spent >= tokens else max(step + 1, math.ceil(step * tokens / spent))


def at_tokens(rows: Rows, name: str, tokens: float) -> float:
    """A metric of a run when it had generated `tokens`, on a line between the steps that have it. Before the first step
    nothing was generated."""
    points = [(float(row.get(TOKENS) or 0.0), float(row[name])) for row in rows if row.get(name) is not None]
    spent, values = zip(*points, strict=True)
    return float(np.interp(tokens, spent, values))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean over seeds with its standard error; not-a-number for a single one."""
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return float(np.mean(values)), error


def mean_group_size(runs: Sequence[Rows]) -> float:
    """Rollouts of a sampled group, over all steps of these runs."""
    steps = [row for rows in runs for row in rows if row.get(GROUP_SIZE)]
    groups = sum(row["dynamic_sampling/num_groups"] for row in steps)
    return float(sum(row[GROUP_SIZE] * row["dynamic_sampling/num_groups"] for row in steps) / groups)


def comparison(runs: Mapping[str, Sequence[Rows]]) -> tuple[float, dict[str, dict[str, list[float]]]]:
    """The tokens that all runs reached, and per allocation each metric at that point, one number per seed; group sizes
    of whole runs."""
    tokens = min(float(rows[-1][TOKENS]) for seeds in runs.values() for rows in seeds)
    found = {}
    for arm, seeds in runs.items():
        found[arm] = {name: [at_tokens(rows, name, tokens) for rows in seeds] for name in (INFORMATIVE, PASS_AT_1)}
        found[arm][GROUP_SIZE] = [mean_group_size([rows]) for rows in seeds]
    return tokens, found


def comparison_rows(found: Mapping[str, Mapping[str, Sequence[float]]]) -> list[list[str]]:
    """One row per allocation, and one of the waves' differences from each other one, by seed."""
    scales = {INFORMATIVE: 1.0, PASS_AT_1: 100.0, GROUP_SIZE: 1.0}
    rows = [[arm, *(_written(values[name], scale) for name, scale in scales.items())] for arm, values in found.items()]
    for arm in [arm for arm in found if arm != WAVES]:
        change = {
            name: [new - old for old, new in zip(found[arm][name], found[WAVES][name], strict=True)] for name in scales
        }
        rows.append([f"waves − {arm}", *(_written(change[name], scale) for name, scale in scales.items())])
    return rows


def _written(values: Sequence[float], scale: float) -> str:
    mean, error = mean_and_error([scale * value for value in values])
    return f"{mean:.2f} ± {error:.2f}"


@dataclass(frozen=True)
class Played:
    """What an allocation made of its tokens."""

    informative_per_million: float
    keep_rate: float  # share of prompts that were informative
    mean_size: float
    snr_per_million: float  # squared, of the mean estimate, per million tokens; which prompts were drawn is noise too
    snr_of_rollouts: float  # the same with the noise of rollouts and coins alone
    bias: float  # mean estimate − gradient, in standard errors


def play(
    allocation: Allocation,
    beliefs: SuccessPosterior,
    shape: tuple[float, float],
    tokens: float,
    seed: int,
    weighs: bool,
) -> Played:
    """Spend `tokens` on prompts with success rates from Beta(shape); `beliefs` are those of the allocation, if it has
    any."""
    random, spent = np.random.default_rng(seed), 0
    estimates, gradients, sizes, num_informative = [], [], [], 0
    while spent < tokens:
        prompt = Prompt(f"train/{len(sizes)}", "beta", "none", tuple([len(sizes)] * PROMPT_TOKENS), {})
        rate = float(random.beta(*shape))
        draws, successes = grow(allocation, prompt, rate, random)
        sizes.append(sum(draw.num_rollouts for draw in draws))
        waves = allocation.close(draws) if weighs else ()
        parts = [(wave.weight, k, wave.num_rollouts) for wave, k in zip(waves, successes, strict=False)]
        estimates.append(
            sum(weight * estimate(k, num, random) for weight, k, num in parts or [(1.0, sum(successes), sizes[-1])])
        )
        gradients.append(rate * (1 - rate))
        num_informative += 0 < sum(successes) < sizes[-1]
        spent += PROMPT_TOKENS + RESPONSE_TOKENS * sizes[-1]
        beliefs.observe_first(prompt, successes[0], draws[0].num_rollouts, RESPONSE_TOKENS)
        if len(sizes) % GROUPS_PER_STEP == 0:
            beliefs.forget()
    found, true, millions = np.array(estimates), np.array(gradients), spent / 1e6
    per_million = len(found) / millions
    return Played(
        informative_per_million=num_informative / millions,
        keep_rate=num_informative / len(found),
        mean_size=float(np.mean(sizes)),
        snr_per_million=float(true.mean() ** 2 / found.var()) * per_million,
        snr_of_rollouts=float(true.mean() ** 2 / np.mean((found - true) ** 2)) * per_million,
        bias=float((found - true).mean() / (found - true).std() * math.sqrt(len(found))),
    )


def grow(
    allocation: Allocation, prompt: Prompt, rate: float, random: np.random.Generator
) -> tuple[list[Draw], list[int]]:
    """A group's waves and how many rollouts of each are right."""
    draws: list[Draw] = []
    successes: list[int] = []
    draw: Draw | None = allocation.first(prompt)
    while draw is not None:
        draws.append(draw)
        successes.append(int(random.binomial(draw.num_rollouts, rate)))
        total = sum(draw.num_rollouts for draw in draws)
        rewards = np.repeat([1, 0], [sum(successes), total - sum(successes)]).astype(np.float32)
        draw = allocation.extend(prompt, draws, rewards, np.full(total, RESPONSE_TOKENS, np.int32))
    return draws, successes


def estimate(successes: int, num: int, random: np.random.Generator) -> float:
    """Σ (r − mean) s / (n − 1) of a wave, s = r − p plus noise: the sample variance of the rewards, and noise that it
    scales."""
    variance = successes * (num - successes) / (num * (num - 1))
    return variance + math.sqrt(NOISE * variance / (num - 1)) * float(random.standard_normal())


def simulate(tokens: float, seeds: Sequence[int], config: WavesConfig) -> None:
    """Print one table per population. One of the fixed sizes is the mean size of the waves, which no run would know
    beforehand."""
    for name, shape in POPULATIONS.items():
        arms = {"waves": play_seeds("waves", N, shape, tokens, seeds, config)}
        mean_size = round(float(np.mean([played.mean_size for played in arms["waves"]])))
        for size in (config.first_wave, mean_size, N):
            arms[f"fixed {size}"] = play_seeds("fixed", size, shape, tokens, seeds, config)
        arms["unweighted waves"] = play_seeds("unweighted", N, shape, tokens, seeds, config)
        rows = []
        for arm, played in arms.items():
            columns = zip(*map(astuple, played), strict=True)
            rows.append([arm, *("{:.2f} ± {:.2f}".format(*mean_and_error(column)) for column in columns)])
        header = [
            "allocation",
            "informative / M tokens",
            "of prompts",
            "rollouts",
            "SNR² / M tokens",
            "of rollouts alone",
            "bias, errors",
        ]
        print(f"\nBeta{shape}: {name}\n" + "\n".join(format_table(header, rows)), flush=True)


def play_seeds(
    kind: str, size: int, shape: tuple[float, float], tokens: float, seeds: Sequence[int], config: WavesConfig
) -> list[Played]:
    """Play one allocation (fixed, waves, unweighted) once per seed."""
    found = []
    for seed in seeds:
        beliefs = SuccessPosterior(PosteriorConfig())
        allocation = FixedAllocation(size) if kind == "fixed" else WaveAllocation(config, size, beliefs, seed)
        found.append(play(allocation, beliefs, shape, tokens, seed, weighs=kind == "waves"))
    return found


def compare(options: argparse.Namespace) -> None:
    """Train all runs; print the table when the first two allocations are there, and when all are."""
    runs: dict[str, list[Rows]] = {FIXED: [], WAVES: []}
    for seed in options.seeds:
        for arm in (FIXED, WAVES):
            runs[arm].append(
                train(options.output / f"{arm}_seed_{seed}", seed, options, [f"rollouts.allocation={arm}"])
            )
    show(runs, options)
    num = kept_mean_size(options.output / "mean_size.json", runs[WAVES])
    overrides = ["rollouts.allocation=fixed", f"rollouts.num_per_prompt={num}"]
    runs[FIXED_MEAN] = [
        train(options.output / f"{FIXED_MEAN}_seed_{seed}", seed, options, overrides) for seed in options.seeds
    ]
    show(runs, options)


def kept_mean_size(path: Path, runs: Sequence[Rows]) -> int:
    """N of `fixed_mean`, a multiple of the smallest chunk. It is decided once: a run cannot go on with another."""
    if not path.exists():
        mean = mean_group_size(runs)
        num = max(MIN_CHUNK, MIN_CHUNK * round(mean / MIN_CHUNK))
        path.write_text(json.dumps({"num_per_prompt": num, "mean_of_waves": mean}) + "\n")
    return int(json.loads(path.read_text())["num_per_prompt"])


def show(runs: Mapping[str, Sequence[Rows]], options: argparse.Namespace) -> None:
    """Print the table of the runs there are, and keep its numbers."""
    tokens, found = comparison(runs)
    (options.output / "waves.json").write_text(
        json.dumps({"tokens": tokens, "seeds": options.seeds, **found}, indent=1)
    )
    print(f"\nat {tokens:,.0f} generated tokens, {len(options.seeds)} seeds")
    header = ["allocation", "informative / M tokens", "held-out pass@1, %", "rollouts / group"]
    print("\n".join(format_table(header, comparison_rows(found))), flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true", help="without a model")
    parser.add_argument("--base", type=Path, default=Path("runs/base_cpu"))
    parser.add_argument("--output", type=Path, default=Path("runs/waves"))
    parser.add_argument("--tokens", type=float, default=3e6, help="response tokens of every run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--val-interval", type=int, default=4)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_intermixed_args()
    if options.simulate:
        simulate(options.tokens, options.seeds, load_config("brorl_cpu", options.overrides).rollouts.waves)
    else:
        compare(options)


if __name__ == "__main__":
    main()
