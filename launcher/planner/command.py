"""`brorl plan` says whether a run fits, how long a step takes, and which layout would be better."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_brorl.config.derived import num_gpus, num_policy_ranks
from nemo_brorl.config.load import DEFAULT_CONFIG, load_config
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import USER_ERROR, ConfigError
from nemo_brorl.launcher.planner.cpu_plan import cpu_hardware
from nemo_brorl.launcher.planner.cpu_probe import CpuSpeed, measure_cpu, probe_size, read_speed, write_speed
from nemo_brorl.launcher.planner.hardware import KINDS, Hardware, gpu_hardware
from nemo_brorl.launcher.planner.known_models import find_shape
from nemo_brorl.launcher.planner.plan import Plan, make_plan
from nemo_brorl.launcher.planner.proposals import Proposal, fewest_nodes, propose, remedies
from nemo_brorl.launcher.planner.table import as_json, print_plan, print_proposals
from nemo_brorl.launcher.planner.workload import Lengths, cut_of, micro_batches, workload_of

PROBE_TOKENS = 4096  # of a row, at most, that the probe computes
DESCRIPTION = "Does the run fit, how long does a step take, and which layout would be better? Nothing is started."


@dataclass(frozen=True)
class Request:
    """Request of a command line."""

    config: BroRLConfig
    hardware: Hardware
    lengths: Lengths
    num_proposals: int
    json: Path | None


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; prints and exits with 0 for --help, and with 2 for a wrong option."""
    parser = argparse.ArgumentParser(prog="brorl plan", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--config-name", "-cn", default=DEFAULT_CONFIG)
    parser.add_argument("--config-path", "-cp", type=Path)
    parser.add_argument(
        "--kind", choices=KINDS, help="of the devices (default: h100; cpu where trainer.gpus_per_node is 0)"
    )
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
        "--probe-json", type=Path, metavar="FILE", help="on CPU: the machine's speed, read from here or left here"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="settings, as of every command: policy.model=qwen2.5-7b ..."
    )
    return parser.parse_intermixed_args(argv)


def read_request(options: argparse.Namespace) -> Request:
    """Raises ConfigError for settings that break their own rules, and for numbers that cannot be."""
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
    return Request(config, _hardware(config, options), _lengths(options), options.propose, options.json)


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


def _hardware(config: BroRLConfig, options: argparse.Namespace) -> Hardware:
    on_cpu = num_gpus(config) == 0
    kind = options.kind or ("cpu" if on_cpu else "h100")
    if (kind == "cpu") != on_cpu:
        wanted = "trainer.gpus_per_node=0 plans for CPU" if on_cpu else "trainer.gpus_per_node > 0 plans for GPUs"
        other = 8 if on_cpu else 0
        raise ConfigError(f"--kind {kind} and {wanted}: leave --kind out, or add --gpus-per-node {other}")
    if on_cpu:
        return cpu_hardware(_speed(config, options), options.host_memory)
    trainer = config.trainer
    return gpu_hardware(kind, trainer.num_nodes, trainer.gpus_per_node, options.gpu_memory, options.host_memory)


def _speed(config: BroRLConfig, options: argparse.Namespace) -> CpuSpeed:
    """Speed that this machine was measured with, or is measured with now, on as many cores as the run keeps busy."""
    if options.probe_json is not None and options.probe_json.exists():
        return read_speed(options.probe_json)
    work = workload_of(config, _lengths(options))
    micro = micro_batches(config, work, cut_of(config))
    copies = max(1, min(num_policy_ranks(config), len(os.sched_getaffinity(0))))
    tokens = round(min(micro.tokens, PROBE_TOKENS))
    length = round(work.prompt_tokens + work.response_tokens)
    size = probe_size(find_shape(config), tokens, length)
    Console().stage("measuring this machine")
    speed = measure_cpu(size, copies)
    if options.probe_json is not None:
        write_speed(speed, options.probe_json)
    return speed


def _lengths(options: argparse.Namespace) -> Lengths:
    return Lengths(options.prompt_tokens, options.response_tokens, options.response_spread, options.keep_rate)


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 it fits, 2 it does not. Raises BroRLError for wrong input."""
    request = read_request(parse(argv))
    plan = make_plan(request.config, request.hardware, request.lengths)
    print_plan(plan)
    helpful = [] if plan.fits else remedies(plan, request.lengths)
    num = request.num_proposals if plan.hardware.is_gpu else 0
    better = propose(request.config, request.hardware, request.lengths, plan.shape, num)
    if request.json is not None:
        write_json(plan, better, helpful, request.json)
    layouts = f"layouts of these {plan.hardware.num_devices} devices"
    if plan.fits:
        print_proposals(f"{layouts}, fastest first", better)
        return 0
    sys.stderr.write(f"\nerror: does not fit: {plan.refusal}\n")
    print_proposals("what would fit, each alone", helpful)
    print_proposals(f"{layouts} that fit, fastest first", better)
    if not helpful and not better and plan.hardware.is_gpu:
        print_more_nodes(plan, request.lengths)
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
    data = as_json(plan)
    data["proposals"] = [_proposal_json(proposal) for proposal in better]
    data["remedies"] = [_proposal_json(proposal) for proposal in helpful]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _proposal_json(proposal: Proposal) -> dict[str, object]:
    return {"overrides": proposal.overrides, "step_s": proposal.plan.time.seconds}
