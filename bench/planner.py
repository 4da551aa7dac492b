"""The planner against measured runs on CPU: memory of policy ranks and engines, and seconds of a step.

    python -m bench.planner --output runs/planner [--steps 5] [--scale 1.0] [--model FOLDER] [--cases NAME ...]

Every case is a training run of a few steps, watched from outside, and a plan for the same settings. What a plan needs
to know of the work (mean lengths, keep rate) is taken from the run; memory and seconds are not: they come from the
formulas, and from a probe of this machine before the runs. `brorl_cpu` calibrates: the column "calibrated" has scoring,
training, generation and the sizes of bare processes scaled so that this case is met. The other cases are predictions in
both columns.

Seconds come twice: by the clock (`time/*_s`), which is what a plan is for, and in processor seconds of the actors,
which other programs on the machine disturb little. Without `--model` models are random, of the sizes of the case, and
no group is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median

from brorl_launcher.planner.cpu_plan import SHARES, CpuShares, cpu_hardware, cpu_step_time
from brorl_launcher.planner.cpu_probe import CpuSpeed, measure_cpu, probe_size
from brorl_launcher.planner.model_cost import find_shape
from brorl_launcher.planner.plan import Lengths, Plan, make_plan
from brorl_launcher.planner.workload import cut_of, micro_batches, workload_of

from bench.run_watch import Watched, read_rows, watch
from nemo_brorl.commands.sft import prepare_initial_model
from nemo_brorl.commands.wiring import read_inputs
from nemo_brorl.config.load import load_config
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import format_table
from nemo_brorl.tasks.verifiers.registry import configure

CALIBRATION = "brorl_cpu"
NUM_PROMPTS = 256  # whose lengths are measured
MEMORY_TARGET, TIME_TARGET = 0.15, 0.25  # relative errors
STAGES = ("generate", "log_prob", "update", "sync")


@dataclass(frozen=True)
class Case:
    """A run to plan and to measure."""

    name: str
    config_name: str
    overrides: tuple[str, ...] = ()  # for both
    prompts: int = 16  # a step, at scale 1
    is_random: bool = False  # its shape is its own, so its weights are random


CASES = (
    Case(CALIBRATION, "brorl_cpu"),
    Case("prorl_n16_cpu", "prorl_n16_cpu", prompts=512),
    Case(
        "wide", "brorl_cpu", prompts=4, is_random=True,
        overrides=(
            "sft.hidden_size=512", "sft.num_layers=8", "sft.num_attention_heads=8", "sft.num_key_value_heads=4",
            "sft.intermediate_size=2048", "sft.vocab_size=2048", "rollouts.num_per_prompt=64", "rollouts.chunk_size=32",
        ),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """A run, from its second step on."""

    rank_gib: float  # largest
    engine_gib: float
    wall_s: dict[str, float]  # by stage, medians
    rank_cpu_s: float  # of a step, mean over ranks, median over steps
    engine_cpu_s: float
    prompt_tokens: float  # mean, of the held-out prompts
    response_tokens: float
    response_spread: float
    keep_rate: float  # rollouts that were learnt from over those that were sampled
    load: float  # of the machine in the last minute of the run


def settings(case: Case, options: argparse.Namespace, folder: Path, model: Path) -> list[str]:
    """Overrides of a run."""
    random = case.is_random or options.model is None
    written = [
        *case.overrides,
        f"rollouts.prompts_per_step={max(2, round(options.scale * case.prompts))}",
        f"trainer.max_steps={options.steps}",
        "trainer.val_interval=0",
        f"trainer.save_interval={options.steps}",
        "evaluation.num_prompts=8",
        "exp_manager.create_tensorboard_logger=false",
        f"exp_manager.explicit_log_dir={folder / 'run'}",
        f"policy.model={model}",
        *options.overrides,
    ]
    return [*written, "dynamic_sampling.enabled=false"] if random else written


def run_case(case: Case, options: argparse.Namespace) -> None:
    """Measure, and write `measured.json`."""
    folder = options.output.resolve() / case.name
    model = folder / "model" if case.is_random or options.model is None else options.model
    if not (model / "config.json").exists():
        prepare_initial_model(load_config(case.config_name, case.overrides), model)
    shutil.rmtree(folder / "run", ignore_errors=True)  # it would be continued
    overrides = settings(case, options, folder, model)
    command = [sys.executable, "-m", "nemo_brorl", "train", "--config-name", case.config_name, *overrides]
    actors = watch(command, folder / "run" / "metrics.jsonl")
    config = load_config(case.config_name, overrides)
    result = measured(actors, read_rows(folder / "run" / "metrics.jsonl"), config, prompt_tokens(config))
    (folder / "measured.json").write_text(json.dumps({"overrides": overrides, **asdict(result)}, indent=1) + "\n")


def measured(actors: list[Watched], rows: list[dict[str, float]], config: BroRLConfig, prompts: float) -> Measured:
    """Steps but the first, whose processes warm up, and the last, with a validation and a checkpoint. `prompts`: their
    mean tokens."""
    steps = rows[2:-1]
    names = sorted({key for row in steps for key in row if key.startswith("time/")})
    learnt = config.rollouts.num_per_prompt * config.rollouts.prompts_per_step
    responses = mean(row["rollouts/response_tokens"] for row in steps)
    longest = mean(row["rollouts/response_tokens_max"] for row in steps)
    return Measured(
        rank_gib=max(actor.peak_gib for actor in actors if actor.role == "rank"),
        engine_gib=max(actor.peak_gib for actor in actors if actor.role == "engine"),
        wall_s={
            name.removeprefix("time/").removesuffix("_s"): median(row.get(name, 0.0) for row in steps) for name in names
        },
        rank_cpu_s=_cpu_s(actors, "rank", len(rows)),
        engine_cpu_s=_cpu_s(actors, "engine", len(rows)),
        prompt_tokens=prompts,
        response_tokens=responses,
        response_spread=min(
            0.7, (longest / responses - 1) / 3
        ),  # of thousands, the longest is some three deviations above the mean
        keep_rate=min(1.0, learnt / mean(row["generation/num_samples"] for row in steps)),
        load=os.getloadavg()[0],
    )


def prompt_tokens(config: BroRLConfig) -> float:
    """Mean length of the config's prompts under its model's tokenizer."""
    folder = Path(config.policy.model)
    sized = replace(config, evaluation=replace(config.evaluation, num_prompts=NUM_PROMPTS))
    configure(sized)
    return mean(len(prompt.token_ids) for prompt in read_inputs(sized, folder).held_out)


def _cpu_s(actors: list[Watched], role: str, num_rows: int) -> float:
    """Of a step: rows 2 … num_rows − 2 by number, each less the one before."""
    seconds = []
    for row in range(2, num_rows - 1):
        of_actors = [
            actor.cpu_s[row] - actor.cpu_s[row - 1] for actor in actors if actor.role == role and len(actor.cpu_s) > row
        ]
        seconds.append(mean(of_actors))
    return median(seconds)


@dataclass(frozen=True)
class Compared:
    """A case beside its plan."""

    case: str
    measured: Measured
    plan: Plan

    @property
    def figures(self) -> dict[str, tuple[float, float]]:
        """(measured, planned) by name: memory in GiB, then seconds by the clock, then processor seconds."""
        rank, engine = (memory.peak(memory.worst) for memory in self.plan.devices)
        time, found = self.plan.time, self.measured
        stages = {f"{name}, s": (found.wall_s[name], time.of(name)) for name in STAGES}
        return {
            "policy rank, GiB": (found.rank_gib, rank),
            "engine, GiB": (found.engine_gib, engine),
            **stages,
            "step, s": (sum(found.wall_s[name] for name in STAGES), sum(time.of(name) for name in STAGES)),
            "rank, processor s": (found.rank_cpu_s, time.of("log_prob") + time.of("update")),
            "engine, processor s": (found.engine_cpu_s, time.of("generate")),
        }


def plan_case(case: Case, folder: Path, speeds: dict[str, CpuSpeed]) -> Compared:
    """The plan for what was run, with the work as it was."""
    found = json.loads((folder / case.name / "measured.json").read_text())
    config = load_config(case.config_name, found.pop("overrides"))
    measured = Measured(**found)
    lengths = Lengths(measured.prompt_tokens, measured.response_tokens, measured.response_spread, measured.keep_rate)
    hardware = cpu_hardware(speeds[case.name])
    return Compared(case.name, measured, make_plan(config, hardware, lengths))


def probe(case: Case, options: argparse.Namespace) -> CpuSpeed:
    """The machine's speed at the shape of a case, on as many cores as it has ranks."""
    folder = options.output.resolve() / case.name
    config = load_config(case.config_name, json.loads((folder / "measured.json").read_text())["overrides"])
    work = workload_of(config, Lengths())
    micro = micro_batches(config, work, cut_of(config))
    size = probe_size(
        find_shape(config), round(min(micro.tokens, 4096)), round(work.prompt_tokens + work.response_tokens)
    )
    return measure_cpu(size, min(2, os.cpu_count() or 1))


def calibrated(base: Compared, by_clock: bool) -> CpuShares:
    """Shares with which the plan of `base` meets its measured seconds."""
    figures = base.figures
    if by_clock:
        factors = [figures[f"{name}, s"] for name in ("log_prob", "update", "generate")]
    else:
        factors = [figures["rank, processor s"], figures["rank, processor s"], figures["engine, processor s"]]
    return SHARES.scaled(*(measured / planned for measured, planned in factors))


def with_shares(compared: Compared, shares: CpuShares) -> Compared:
    """Planned again."""
    plan = compared.plan
    time = cpu_step_time(plan.config, plan.shape, plan.hardware, plan.work, plan.cut, plan.micro, plan.engine, shares)
    return replace(compared, plan=replace(plan, time=time))


def rows_of(compared: Compared, again: Compared, excess: tuple[float, float]) -> list[list[str]]:
    """One row a figure: measured, planned and its ratio, calibrated and its ratio."""
    rows = []
    for name, (measured, planned) in compared.figures.items():
        refitted = again.figures[name][1]
        refitted += {"policy rank, GiB": excess[0], "engine, GiB": excess[1]}.get(name, 0.0)
        ratios = [f"{planned:.2f}", f"{planned / measured:.2f}", f"{refitted:.2f}", f"{refitted / measured:.2f}"]
        rows.append([f"{compared.case}: {name}", f"{measured:.2f}", *ratios])
    return rows


def misses(compared: Compared) -> list[str]:
    """Figures of a plan that are further from the measured ones than the targets, memory and the whole step."""
    targets = {"policy rank, GiB": MEMORY_TARGET, "engine, GiB": MEMORY_TARGET, "step, s": TIME_TARGET}
    figures = compared.figures
    return [
        f"{compared.case}: {name} planned {figures[name][1]:.2f}, measured {figures[name][0]:.2f}"
        for name, target in targets.items()
        if abs(figures[name][1] / figures[name][0] - 1) > target
    ]


def parse_arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/planner"))
    parser.add_argument("--steps", type=int, default=7, help="of each run; those between the first and the last count")
    parser.add_argument("--scale", type=float, default=1.0, help="prompts of a step, times those of the case")
    parser.add_argument("--model", type=Path, help="trained base of the first two cases (default: random weights)")
    parser.add_argument(
        "--cases", nargs="+", choices=[case.name for case in CASES], default=[case.name for case in CASES]
    )
    parser.add_argument(
        "--again", action="store_true", help="compare with what an earlier call measured; run only what is missing"
    )
    parser.add_argument(
        "--processor-seconds", action="store_true", help="calibrate on them, where the machine is shared"
    )
    parser.add_argument("--check", action="store_true", help="end with 1 when a plan misses a target")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for all runs")
    return parser.parse_intermixed_args()


def main() -> int:
    """Run what is to be run, plan, print."""
    options = parse_arguments()
    output, cases = options.output.resolve(), [case for case in CASES if case.name in options.cases]
    speeds: dict[str, CpuSpeed] = {}
    for case in cases:
        if not (options.again and (output / case.name / "measured.json").exists()):
            run_case(case, options)
        speeds[case.name] = probe(case, options)
    compared = [plan_case(case, output, speeds) for case in cases]
    base = next((one for one in compared if one.case == CALIBRATION), compared[0])
    shares = calibrated(base, not options.processor_seconds)
    pairs = [base.figures[name] for name in ("policy rank, GiB", "engine, GiB")]
    excess = (pairs[0][0] - pairs[0][1], pairs[1][0] - pairs[1][1])
    rows = [row for one in compared for row in rows_of(one, with_shares(one, shares), excess)]
    print("\n".join(format_table(["", "measured", "planned", "ratio", "calibrated", "ratio"], rows)))
    print(f"calibrated on {base.case}: {shares}; processes {excess[0]:+.2f} and {excess[1]:+.2f} GiB")
    print("load of the machine: " + ", ".join(f"{one.case} {one.measured.load:.1f}" for one in compared))
    missed = [text for one in compared for text in misses(one)]
    print("\n".join(missed) if missed else "all plans are within 15 % of memory and 25 % of the step")
    results = {
        one.case: {"measured": asdict(one.measured), "speed": asdict(speeds[one.case]), "figures": one.figures}
        for one in compared
    }
    (output / "planner.json").write_text(json.dumps({"shares": asdict(shares), "cases": results}, indent=1) + "\n")
    return int(options.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
