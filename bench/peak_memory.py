"""Peak memory of one policy update, traced over tensors without numbers, against what the planner says of it.

python -m bench.peak_memory [--check] [--only RECIPE] [--kinds] [--layers N]

Every tensor that is alive is counted, on one rank of each layout, through the real model, loss, backward pass,
optimizer and pipeline schedule; `tests/support/fake_rank.py` says what that cannot show. A stage is traced with two
and with three layers, and others are added as the third is, which is exact
(`launcher/tests/test_peak_memory.py`); with --layers, models that have N layers in a stage are compared as they
are. Under --check it ends with 1 where a total, or what is there beside weights, gradients and optimizer, differs by
more than 15 %. Needs g++; some minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from nemo_brorl.config.rank_memory import activation_bytes, backward_bytes, policy_bytes
from nemo_brorl.core.machine import GIB
from tests.support import fake_cuda
from tests.support.traced_update import STATE, Case

TOLERANCE = 0.15
OF_MLPS = ("policy.recompute=selective",)
FULL = ("policy.recompute=full",)
# Kernels of FP8 do not run on tensors without numbers.
IN_BF16 = ("policy.fp8=null",)
CASES = (
    Case("brorl_64gpu"),
    Case("brorl_64gpu", OF_MLPS),
    Case("brorl_64gpu", FULL),
    Case("brorl_7b"),
    Case("brorl_7b", OF_MLPS),
    Case("brorl_7b", FULL),
    Case("brorl_32b", IN_BF16),
    Case("brorl_32b", IN_BF16, stage=1),
    Case("brorl_qwen3_30b_a3b"),
    Case("brorl_qwen3_30b_a3b", FULL),
    Case("brorl_qwen3_30b_a3b", stage=1),
    Case("brorl_qwen3_30b_a3b", OF_MLPS, stage=1),
    Case("brorl_qwen3_30b_a3b", FULL, stage=1),
)


@dataclass(frozen=True)
class Peak:
    """GiB of a rank at the peak of an update."""

    state: float  # weights, gradients, master weights and moments
    beside: float  # activations, log-probs, what a layer needs for a moment

    @property
    def total(self) -> float:
        return self.state + self.beside


def traced(cases: Sequence[Case], folder: Path) -> list[dict[str, float]]:
    """Bytes by kind at the peak of each case."""
    library = folder / "fake_cuda.so"
    fake_cuda.build(library)
    written = json.dumps([asdict(case) for case in cases])
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.traced_update", str(library), written]
    done = subprocess.run(command, cwd=fake_cuda.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def with_layers(case: Case, num: int) -> Case:
    """Return the case with `num` layers in each pipeline stage."""
    return replace(case, num_layers=num * case.plan().layout.pipeline)


def short(case: Case) -> list[Case]:
    """Return the case with two and with three layers in each pipeline stage."""
    return [with_layers(case, 2), with_layers(case, 3)]


def with_all_layers(case: Case, two: Mapping[str, float], three: Mapping[str, float]) -> dict[str, float]:
    """Bytes by kind with all layers, from those with two and with three in each stage."""
    plan = case.plan()
    more = plan.shape.num_layers / plan.layout.pipeline - 2
    found = {}
    for kind in {*two, *three}:
        first = two.get(kind, 0.0)
        found[kind] = first + more * (three.get(kind, 0.0) - first)
    return found


def peak_of(found: Mapping[str, float]) -> Peak:
    """Sum the traced bytes of each kind of tensor to a peak in GiB."""
    state = sum(found.get(kind, 0.0) for kind in STATE)
    return Peak(state / GIB, (sum(found.values()) - state) / GIB)


def planned(case: Case) -> Peak:
    """Return the planner's peak for the tensors that the trace sees.

    CUDA contexts, fragmentation and the engines' memory are left out.
    """
    plan = case.plan()
    config, shape, layout = plan.config, plan.shape, plan.layout
    held = policy_bytes(config, shape, layout, case.stage)
    tokens = plan.micro.budget / layout.context
    beside = activation_bytes(config, shape, layout, case.stage, tokens)
    beside += backward_bytes(config, shape, layout, case.stage, tokens)
    return Peak((held.weights + held.gradients + held.optimizer) / GIB, beside / GIB)


def agrees(case: Case, found: Mapping[str, float]) -> bool:
    """Return whether the planner's total, and its memory without the state, are within the tolerance."""
    is_traced, is_planned = peak_of(found), planned(case)
    ratios = (is_planned.total / is_traced.total, is_planned.beside / is_traced.beside)
    return all(abs(ratio - 1) <= TOLERANCE for ratio in ratios)


def line(case: Case, found: Mapping[str, float]) -> str:
    """Return a line of the Markdown table: planned over traced memory of a case, in GiB."""
    is_traced, is_planned = peak_of(found), planned(case)
    name = f"`{' '.join((case.recipe, *case.overrides))}`"
    if case.plan().layout.pipeline > 1:
        name += f", stage {case.stage}"
    state = f"{is_planned.state:.2f} / {is_traced.state:.2f}"
    beside = f"{is_planned.beside:.2f} / {is_traced.beside:.2f} = {is_planned.beside / is_traced.beside:.2f}"
    total = f"{is_planned.total:.2f} / {is_traced.total:.2f} = {is_planned.total / is_traced.total:.2f}"
    return f"| {name} | {state} | {beside} | {total} |"


def trace_with_all_layers(cases: Sequence[Case], folder: Path) -> list[dict[str, float]]:
    both: list[Case] = []
    for case in cases:
        both += short(case)
    found = traced(both, folder)
    return [with_all_layers(case, *found[2 * index : 2 * index + 2]) for index, case in enumerate(cases)]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="end with 1 where they differ by more than 15 %%")
    parser.add_argument("--only", default="", help="recipes whose name has this in it")
    parser.add_argument("--kinds", action="store_true", help="also what a peak is made of, in GiB")
    parser.add_argument("--layers", type=int, help="of a stage, in place of all")
    options = parser.parse_args(argv)
    cases = [case for case in CASES if options.only in case.recipe]
    trace = trace_with_all_layers
    if options.layers:
        cases = [with_layers(case, options.layers) for case in cases]
        trace = traced
    with tempfile.TemporaryDirectory() as folder:
        peaks = trace(cases, Path(folder))
    print("| GiB, planned / traced | weights, gradients, optimizer | beside them | all |\n|---|---|---|---|")
    for case, found in zip(cases, peaks, strict=True):
        print(line(case, found))
        if options.kinds:
            print("   ", ", ".join(f"{kind} {size / GIB:.2f}" for kind, size in sorted(found.items())))
    all_agree = all(agrees(case, found) for case, found in zip(cases, peaks, strict=True))
    return int(options.check and not all_agree)


if __name__ == "__main__":
    sys.exit(main())
