"""Print whether a run fits, how long a step takes, and which layout would be faster: `brorl plan`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from brorl_launcher.planner.cpu import machine_with, make_cpu_plan, print_cpu_plan, write_cpu_plan
from brorl_launcher.planner.hardware import GPUS, gpu_hardware
from brorl_launcher.planner.plan import Plan, make_plan
from brorl_launcher.planner.plan_json import write_json
from brorl_launcher.planner.proposals import fewest_nodes, propose_layouts, remedies
from brorl_launcher.planner.tables import print_plan, print_proposals
from brorl_launcher.planner.workload import Lengths
from nemo_brorl.commands.check_inputs import check_inputs
from nemo_brorl.commands.teachers import check_local_teachers
from nemo_brorl.config.load import DEFAULT_CONFIG, CommandLine, load_config
from nemo_brorl.config.named_code import check_names
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console, write_error
from nemo_brorl.core.errors import USER_ERROR, ConfigError

GPU_OPTIONS = (
    "kind",
    "gpu_memory",
    "prompt_tokens",
    "response_tokens",
    "keep_rate",
)  # options that a CPU plan does not take
DESCRIPTION = "Does the run fit, how long does a step take, and which layout would be better? Nothing is started."


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line of `brorl plan`.

    Exits with 0 for --help and with 2 for a wrong option.
    """
    parser = argparse.ArgumentParser(prog="brorl plan", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--config-name", "-cn", default=DEFAULT_CONFIG)
    parser.add_argument("--config-path", "-cp", type=Path)
    parser.add_argument("--kind", choices=GPUS, help="kind of the GPUs (default: h100)")
    parser.add_argument("--nodes", type=int, help="nodes, in place of trainer.num_nodes")
    parser.add_argument("--gpus-per-node", type=int, help="GPUs of a node, in place of trainer.gpus_per_node")
    parser.add_argument("--gpu-memory", type=float, metavar="GIB", help="memory of one GPU (default: that of its kind)")
    parser.add_argument("--host-memory", type=float, metavar="GIB", help="memory of one node")
    parser.add_argument(
        "--prompt-tokens",
        type=float,
        metavar="MEAN",
        help="tokens of prompts (default: an eighth of data.max_prompt_tokens)",
    )
    parser.add_argument(
        "--response-tokens",
        type=float,
        metavar="MEAN",
        help="tokens of responses (default: 0.45 rollouts.max_response_tokens)",
    )
    parser.add_argument(
        "--response-spread",
        type=float,
        default=0.7,
        metavar="RATIO",
        help="spread of lengths over their mean (default 0.7)",
    )
    parser.add_argument(
        "--keep-rate", type=float, metavar="SHARE", help="informative groups (default: the paper's share at this N)"
    )
    parser.add_argument(
        "--propose", type=int, default=3, metavar="K", help="better layouts to print; 0: none (default 3)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the plan here as well")
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="settings, as for every command: policy.model=qwen2.5-7b ..."
    )
    return parser.parse_intermixed_args(argv)


def read_config(options: argparse.Namespace) -> BroRLConfig:
    """Return the settings of the run that a command line of `brorl plan` describes.

    Raises ConfigError for settings that break the rules of the configuration, and for numbers out of range.
    """
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
    """Print whether a run fits its hardware, and return the exit code: 0 when it fits, 2 when it does not.

    Raises BroRLError for wrong input.
    """
    options = parse(argv)
    config = read_config(options)
    check_names(config)
    line = CommandLine(options.config_name, tuple(options.overrides), options.config_path)
    check_inputs(config, line, reads_files=True)
    check_local_teachers(config)
    if config.trainer.num_gpus == 0:
        return plan_on_cpu(config, options)
    return plan_on_gpus(config, options)


def plan_on_cpu(config: BroRLConfig, options: argparse.Namespace) -> int:
    """Print whether a run without GPUs fits into the machine's memory, and return the exit code.

    Raises ConfigError for an option that applies to GPUs only.
    """
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
    write_error(f"\nerror: does not fit: {plan.refusal}\n")
    return USER_ERROR


def plan_on_gpus(config: BroRLConfig, options: argparse.Namespace) -> int:
    """Print whether a run fits its GPUs, its step time and faster parallel layouts, and return the exit code."""
    trainer = config.trainer
    kind = options.kind or "h100"
    hardware = gpu_hardware(kind, trainer.num_nodes, trainer.gpus_per_node, options.gpu_memory, options.host_memory)
    lengths = Lengths(options.prompt_tokens, options.response_tokens, options.response_spread, options.keep_rate)
    plan = make_plan(config, hardware, lengths)
    print_plan(plan)
    helpful = [] if plan.fits else remedies(plan, lengths)
    better = propose_layouts(config, hardware, lengths, plan.shape, options.propose)
    if options.json is not None:
        write_json(plan, better, helpful, options.json)
    layouts = f"layouts of these {hardware.num_devices} devices"
    if plan.fits:
        print_proposals(f"{layouts}, fastest first", better)
        return 0
    write_error(f"\nerror: does not fit: {plan.refusal}\n")
    print_proposals("what would fit, each alone", helpful)
    print_proposals(f"{layouts} that fit, fastest first", better)
    if not helpful and not better:
        print_more_nodes(plan, lengths)
    return USER_ERROR


def print_more_nodes(plan: Plan, lengths: Lengths) -> None:
    """Print on how many nodes the run fits, if no parallel layout of the given GPUs fits."""
    more = fewest_nodes(plan, lengths)
    if more is None:
        Console().line("nothing fits on up to 512 nodes: GPUs with more memory, or a smaller model")
    else:
        print_proposals(f"no layout of these devices fits; on {more.plan.hardware.num_nodes} nodes", [more])
