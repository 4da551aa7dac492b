"""Write the recipes' plans into the planner's README and docs/figures/: `python scripts/planner_page.py`.

The README has tables between markers, and docs/figures/ one recipe's whole plan. A test compares them with today's
planner.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from brorl_launcher.planner.command import main as plan_command
from brorl_launcher.planner.hardware import gpu_hardware
from brorl_launcher.planner.plan import Plan, make_plan
from brorl_launcher.planner.proposals import propose_layouts
from brorl_launcher.planner.tables import headline
from brorl_launcher.planner.workload import ASSUMED

from nemo_brorl.config.load import load_config

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "launcher" / "brorl_launcher" / "planner" / "README.md"
WHOLE = "brorl_64gpu"
WHOLE_PLAN = ROOT / "docs" / "figures" / f"plan_{WHOLE}.txt"
RECIPES = (WHOLE, "brorl_7b", "brorl_32b", "brorl_qwen3_30b_a3b")


def output(name: str, num_proposals: int = 3) -> str:
    """Return the output of `brorl plan --config-name NAME`, without trailing spaces."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        plan_command(["--config-name", name, "--propose", str(num_proposals)])
    return "\n".join(line.rstrip() for line in printed.getvalue().splitlines()).rstrip()


def plan_of(name: str) -> Plan:
    """Return the plan of a recipe on H100s of 80 GB, as many as it asks for."""
    config = load_config(name)
    return make_plan(config, gpu_hardware("h100", config.trainer.num_nodes, config.trainer.gpus_per_node))


def key_numbers() -> str:
    """Return the table of all recipes, with one row for each number and one column for each recipe."""
    plans = [plan_of(name) for name in RECIPES]
    rows: dict[str, list[str]] = {"": [f"`{name}`" for name in RECIPES], "---": ["---"] * len(RECIPES)}
    for plan in plans:
        for label, value in _numbers(plan).items():
            rows.setdefault(label, []).append(value)
    return "\n".join(f"| {' | '.join([label, *values])} |" for label, values in rows.items())


def _numbers(plan: Plan) -> dict[str, str]:
    """Return the key numbers of a plan by label. In these recipes roles share GPUs, so there is one kind of device."""
    model, _, rest = headline(plan).partition(" on ")
    devices, _, rest = rest.partition(": policy ")
    [device] = plan.devices
    stages = {stage.name: stage.seconds for stage in plan.time.stages}
    numbers = {
        "model": model.rpartition("/")[2],
        "devices": devices,
        "policy, engines": rest.partition(";")[0],
    }
    for moment in device.moments:
        numbers[f"{moment}, GiB of {device.capacity_gib:.1f}"] = f"{device.peak(moment):.2f}"
    numbers[f"first node, GiB of {plan.node.capacity_gib:,.0f}"] = f"{plan.node.peak:.2f}"
    numbers["object store, GiB"] = f"{plan.node.object_store_gib:.1f}"
    numbers["a checkpoint on disk, GiB"] = f"{plan.node.checkpoint_gib:.1f}"
    numbers["cache of an engine, tokens"] = f"{plan.engine.cache_tokens:,}"
    numbers["rollouts at a time"] = f"{plan.engine.concurrency:,}"
    for name in ("generate", "log_prob", "update", "sync", "validate"):
        numbers[f"{name}, s"] = f"{stages[name]:,.1f}"
    seconds = plan.time.seconds
    numbers["a step, s"] = f"{seconds:,.1f}"
    numbers["sampled tokens/s a GPU"] = f"{plan.time.tokens / seconds / plan.hardware.num_devices:,.0f}"
    numbers[f"GPU-hours of {plan.config.trainer.max_steps} steps"] = f"{plan.gpu_hours:,.0f}"
    return numbers


def fastest_layouts() -> str:
    """Return the table of each recipe's fastest layout; takes seconds.

    The recipe whose proposals are shown whole is left out.
    """
    lines = ["| | fastest layout of these GPUs | a step, s |", "|---|---|---|"]
    for name in RECIPES[1:]:
        plan = plan_of(name)
        [best] = propose_layouts(plan.config, plan.hardware, ASSUMED, plan.shape, 1)
        lines.append(f"| `{name}` | `{best.overrides}` | {best.plan.time.seconds:,.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Write the whole plan, and replace the text between `<!-- NAME -->` and `<!-- end of NAME -->`."""
    WHOLE_PLAN.write_text(f"{output(WHOLE)}\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    blocks = {"key numbers": key_numbers(), "fastest layouts": fastest_layouts()}
    for name, block in blocks.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"\n<!-- end of {name} -->")
        text = f"{before}{begin}{block}{end}{after}"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
