"""`brorl plan` says whether a run fits, how long a step takes, and which layout would be better.

Tables of a plan, and the plan as JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from brorl_launcher.planner.cpu import machine_with, make_cpu_plan, print_cpu_plan, write_cpu_plan
from brorl_launcher.planner.hardware import GPUS, gpu_hardware
from brorl_launcher.planner.memory_plan import DeviceMemory
from brorl_launcher.planner.plan import Plan, make_plan
from brorl_launcher.planner.proposals import Proposal, fewest_nodes, propose, remedies
from brorl_launcher.planner.step_time import StepTime
from brorl_launcher.planner.workload import Lengths
from nemo_brorl.config.load import DEFAULT_CONFIG, load_config
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import USER_ERROR, ConfigError


def print_plan(plan: Plan) -> None:
    """Memory, generation, time, assumptions."""
    console = Console()
    console.line(headline(plan))
    for size in plan.sizes:
        console.line(f"chosen: {size}")
    for memory in plan.devices:
        console.line()
        print_device(console, memory)
    console.line()
    rows = [[term.name, _gib(term.gib), term.note] for term in plan.node.terms]
    rows.append(["all", _gib(plan.node.peak), f"of {plan.node.capacity_gib:,.0f}"])
    console.table(["GiB of the first node", "", "how"], rows, text_columns=(0, 2))
    console.line()
    for text in remarks(plan):
        console.line(text)
    console.line()
    print_stages(console, plan.time)
    console.line()
    console.line(totals(plan))


def print_device(console: Console, memory: DeviceMemory) -> None:
    """Memory of a device, term by term, at the moments when it is fullest."""
    article = "an" if memory.role[0] in "aeiou" else "a"
    header = [f"GiB of {article} {memory.role}", *memory.moments, "how"]
    rows = []
    for term in memory.terms:
        if any(term.gib.values()):
            sizes = [_gib(term.at(moment)) for moment in memory.moments]
            rows.append([term.name, *sizes, term.note])
    peaks = [_gib(memory.peak(moment)) for moment in memory.moments]
    rows.append(["all", *peaks, f"of {memory.capacity_gib:.1f}"])
    console.table(header, rows, text_columns=(0, len(header) - 1))


def print_stages(console: Console, time: StepTime) -> None:
    """Seconds of a step, stage by stage."""
    rows = []
    for stage in time.stages:
        share = ""
        if math.isfinite(time.seconds):
            share = f"{stage.seconds / time.seconds:.0%}"
        rows.append([stage.name, _seconds(stage.seconds), share, stage.note])
    rows.append(["all", _seconds(time.seconds), "", ""])
    console.table(["a step", "seconds", "share", "how"], rows, text_columns=(0, 3))


def print_proposals(title: str, proposals: Sequence[Proposal]) -> None:
    """One row a proposal, with the settings to paste."""
    if not proposals:
        return
    console = Console()
    console.line()
    rows = []
    for number, proposal in enumerate(proposals, 1):
        plan = proposal.plan
        peak = max(memory.peak(memory.worst) for memory in plan.devices)
        rows.append([f"{number}  {_layout(plan)}", f"{peak:.1f}", _seconds(plan.time.seconds)])
    console.table([title, "GiB", "step, s"], rows)
    for number, proposal in enumerate(proposals, 1):
        console.line(f"{number}  {proposal.overrides or 'as it is'}")


def _layout(plan: Plan) -> str:
    cut = plan.cut
    degrees = {"TP": cut.tensor, "PP": cut.pipeline, "VPP": cut.virtual, "CP": cut.context, "EP": cut.expert}
    words = [f"{name} {degree}" for name, degree in degrees.items() if degree > 1]
    words.append(f"DP {cut.data}")
    return f"{' '.join(words)}, {plan.engines.num} engines of {plan.engines.tensor}"


def headline(plan: Plan) -> str:
    """Line that says what is planned."""
    hardware, work = plan.hardware, plan.work
    devices = f"{hardware.num_nodes} × {hardware.per_node} {hardware.kind}"
    size = f"N = {work.num_per_prompt} × {work.prompts} prompts"
    return f"{plan.config.policy.model} on {devices}: policy {_layout(plan)}; {size}"


def remarks(plan: Plan) -> list[str]:
    """Lines on micro-batches, engines, the object store and what is assumed."""
    micro, engine, node = plan.micro, plan.engine, plan.node
    return [
        f"micro-batches: {micro.num} of {micro.tokens:,.0f} tokens, for each of "
        f"{plan.config.algorithm.num_mini_batches} mini-batches and {plan.cut.data} replicas",
        f"engines: {engine.concurrency:,} rollouts at a time, {engine.cache_tokens:,} tokens of cache of "
        f"{engine.token_bytes:,.0f} bytes",
        f"object store {node.object_store_gib:.1f} GiB; disk {node.checkpoint_gib:.1f} GiB a checkpoint, "
        f"{node.disk_gib:.1f} in all",
        f"assumed: prompts of {plan.work.prompt_tokens:,.0f} tokens, responses of {plan.work.response_tokens:,.0f} ± "
        f"{plan.work.response_spread:.0%} up to {plan.work.response_limit:,}, {plan.work.keep_rate:.0%} of groups "
        "informative",
    ]


def totals(plan: Plan) -> str:
    """Rates and hours of a step and of the run."""
    seconds = plan.time.seconds
    if not math.isfinite(seconds):
        return "an engine has no room for a single rollout"
    rate = plan.time.tokens / seconds
    steps = plan.config.trainer.max_steps
    return (
        f"{rate:,.0f} sampled tokens/s, {rate / plan.hardware.num_devices:,.0f} a device; "
        f"{steps} steps: {steps * seconds / 3600:,.1f} h, {plan.gpu_hours:,.0f} GPU-hours"
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f}" if math.isfinite(seconds) else "never ends"


def _gib(size: float) -> str:
    return f"{size:.2f}" if size else "–"


def plan_as_json(plan: Plan) -> dict[str, Any]:
    """Everything that is printed, by name."""
    devices = []
    for memory in plan.devices:
        peaks = {moment: memory.peak(moment) for moment in memory.moments}
        terms = {term.name: dict(term.gib) for term in memory.terms}
        devices.append(
            {"role": memory.role, "capacity_gib": memory.capacity_gib, "peak_gib": peaks, "terms_gib": terms}
        )
    node = {term.name: term.gib for term in plan.node.terms}
    node["all"] = plan.node.peak
    node["capacity"] = plan.node.capacity_gib
    return {
        "model": plan.config.policy.model,
        "fits": plan.fits,
        "refusal": plan.refusal,
        "devices": devices,
        "node_gib": node,
        "object_store_gib": plan.node.object_store_gib,
        "checkpoint_gib": plan.node.checkpoint_gib,
        "disk_gib": plan.node.disk_gib,
        "micro_batches": plan.micro.num,
        "engine_concurrency": plan.engine.concurrency,
        "cache_tokens": plan.engine.cache_tokens,
        "stages_s": {stage.name: _finite(stage.seconds) for stage in plan.time.stages},
        "step_s": _finite(plan.time.seconds),
        "tokens_per_s": plan.time.tokens / plan.time.seconds,
        "gpu_hours": _finite(plan.gpu_hours),
    }


def _finite(number: float) -> float | None:
    """JSON has no infinity; null: never ends."""
    return number if math.isfinite(number) else None


GPU_OPTIONS = ("kind", "gpu_memory", "prompt_tokens", "response_tokens", "keep_rate")  # of which a CPU plan has no use
DESCRIPTION = "Does the run fit, how long does a step take, and which layout would be better? Nothing is started."


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; prints and exits with 0 for --help, and with 2 for a wrong option."""
    parser = argparse.ArgumentParser(prog="brorl plan", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--config-name", "-cn", default=DEFAULT_CONFIG)
    parser.add_argument("--config-path", "-cp", type=Path)
    parser.add_argument("--kind", choices=GPUS, help="of the GPUs (default: h100)")
    parser.add_argument("--nodes", type=int, help="in place of trainer.num_nodes")
    parser.add_argument("--gpus-per-node", type=int, help="in place of trainer.gpus_per_node")
    parser.add_argument("--gpu-memory", type=float, metavar="GIB", help="of one GPU (default: of its kind)")
    parser.add_argument("--host-memory", type=float, metavar="GIB", help="of one node")
    parser.add_argument(
        "--prompt-tokens", type=float, metavar="MEAN", help="of prompts (default: an eighth of data.max_prompt_tokens)"
    )
    parser.add_argument(
        "--response-tokens",
        type=float,
        metavar="MEAN",
        help="of responses (default: 0.45 rollouts.max_response_tokens)",
    )
    parser.add_argument(
        "--response-spread", type=float, default=0.7, metavar="RATIO", help="standard deviation over mean (default 0.7)"
    )
    parser.add_argument(
        "--keep-rate", type=float, metavar="SHARE", help="of groups that are informative (default: the paper's by N)"
    )
    parser.add_argument(
        "--propose", type=int, default=3, metavar="K", help="better layouts to print; 0: none (default 3)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the plan here as well")
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="settings, as of every command: policy.model=qwen2.5-7b ..."
    )
    return parser.parse_intermixed_args(argv)


def read_config(options: argparse.Namespace) -> BroRLConfig:
    """Read the settings of a command line. Raises ConfigError for those that break their own rules, and for numbers
    that cannot be."""
    _check_positive(options)
    overrides = list(options.overrides)
    if options.nodes is not None:
        overrides.append(f"trainer.num_nodes={options.nodes}")
    if options.gpus_per_node is not None:
        overrides.append(f"trainer.gpus_per_node={options.gpus_per_node}")
    config = load_config(options.config_name, overrides, options.config_path)
    _check_limit("--prompt-tokens", options.prompt_tokens, "data.max_prompt_tokens", config.data.max_prompt_tokens)
    _check_limit(
        "--response-tokens",
        options.response_tokens,
        "rollouts.max_response_tokens",
        config.rollouts.max_response_tokens,
    )
    return config


def _check_positive(options: argparse.Namespace) -> None:
    for name in ("gpu_memory", "host_memory", "prompt_tokens", "response_tokens"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            raise ConfigError(f"--{name.replace('_', '-')} {value:g}: must be more than 0")
    for name in ("response_spread", "propose"):
        value = getattr(options, name)
        if value < 0:
            raise ConfigError(f"--{name.replace('_', '-')} {value:g}: must be 0 or more")
    if options.keep_rate is not None and not 0 < options.keep_rate <= 1:
        raise ConfigError(f"--keep-rate {options.keep_rate:g}: must be above 0 and at most 1")


def _check_limit(
    option: str,
    value: float | None,
    setting: str,
    limit: int,
) -> None:
    if value is not None and value > limit:
        raise ConfigError(f"{option} {value:g}: a mean cannot be above {setting}={limit}")


def main(argv: Sequence[str]) -> int:
    """Plan the run of a command line. Exit code: 0 it fits, 2 it does not. Raises BroRLError for wrong input."""
    options = parse(argv)
    config = read_config(options)
    if config.trainer.num_gpus == 0:
        return plan_on_cpu(config, options)
    return plan_on_gpus(config, options)


def plan_on_cpu(config: BroRLConfig, options: argparse.Namespace) -> int:
    """Print whether a run without GPUs fits. Raises ConfigError for an option that only a plan for GPUs takes."""
    for name in GPU_OPTIONS:
        if getattr(options, name) is not None:
            raise ConfigError(
                f"--{name.replace('_', '-')} is for GPUs, and trainer.gpus_per_node=0 is a run on CPU: leave it out, "
                "or add --gpus-per-node 8"
            )
    plan = make_cpu_plan(config, *machine_with(options.host_memory))
    print_cpu_plan(plan)
    if options.json is not None:
        write_cpu_plan(plan, options.json)
    if plan.fits:
        return 0
    sys.stderr.write(f"\nerror: does not fit: {plan.refusal}\n")
    return USER_ERROR


def plan_on_gpus(config: BroRLConfig, options: argparse.Namespace) -> int:
    """Print whether a run on GPUs fits, how long a step takes, and what would be better."""
    trainer = config.trainer
    kind = options.kind or "h100"
    hardware = gpu_hardware(kind, trainer.num_nodes, trainer.gpus_per_node, options.gpu_memory, options.host_memory)
    lengths = Lengths(options.prompt_tokens, options.response_tokens, options.response_spread, options.keep_rate)
    plan = make_plan(config, hardware, lengths)
    print_plan(plan)
    helpful = [] if plan.fits else remedies(plan, lengths)
    better = propose(config, hardware, lengths, plan.shape, options.propose)
    if options.json is not None:
        write_json(plan, better, helpful, options.json)
    layouts = f"layouts of these {hardware.num_devices} devices"
    if plan.fits:
        print_proposals(f"{layouts}, fastest first", better)
        return 0
    sys.stderr.write(f"\nerror: does not fit: {plan.refusal}\n")
    print_proposals("what would fit, each alone", helpful)
    print_proposals(f"{layouts} that fit, fastest first", better)
    if not helpful and not better:
        print_more_nodes(plan, lengths)
    return USER_ERROR


def print_more_nodes(plan: Plan, lengths: Lengths) -> None:
    """Print on how many nodes a run fits, where no layout of these devices does."""
    more = fewest_nodes(plan, lengths)
    if more is None:
        Console().line("nothing fits on up to 512 nodes: GPUs with more memory, or a smaller model")
    else:
        print_proposals(f"no layout of these devices fits; on {more.plan.hardware.num_nodes} nodes", [more])


def write_json(
    plan: Plan,
    better: Sequence[Proposal],
    helpful: Sequence[Proposal],
    path: Path,
) -> None:
    """The whole plan, and the overrides of what was proposed."""
    data = plan_as_json(plan)
    data["proposals"] = [_proposal_json(proposal) for proposal in better]
    data["remedies"] = [_proposal_json(proposal) for proposal in helpful]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _proposal_json(proposal: Proposal) -> dict[str, object]:
    return {"overrides": proposal.overrides, "step_s": proposal.plan.time.seconds}
