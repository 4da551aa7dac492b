"""Part f: measure what a sleeping engine still holds, over 20 turns of a colocated policy.

In a turn the engine falls asleep, the policy is on the GPU, weights go back, and the engine wakes.

    python -m bench.gpu.sleep_cycles [--tiny] [--results FOLDER] [--cycles 20] [--modes discard]

*residual* is the engine's own, by the driver's count of its process where it tells (in some containers it does not:
then what torch has reserved). *whole GPU* is everything in use while the engine sleeps and the policy is on the host. A
leak shows as growth from the third cycle to the last. On CPU engines go through the same calls and keep their memory.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.gpu.colocated import Pair, config_for, disagreement, start, used_gib
from bench.gpu.record import Row
from bench.gpu.setting import Setting, open_setting
from bench.gpu.shapes import QWEN_1_5B, TINY, make_model, with_tokenizer
from nemo_brorl.core.clock import Stopwatch
from nemo_brorl.training.device_handover import DeviceHandover

SHARE = 0.5  # of the GPU for the engine
SETTLED = 2  # cycles before growth is counted
GROWTH_GIB, RESIDUAL_GIB = 0.1, 3.0  # no leak; a context, CUDA graphs and vLLM's buffers


def turns(setting: Setting, pair: Pair, cycles: int) -> tuple[list[float], list[float], list[float]]:
    """Per cycle: residual and whole GPU in GiB, and seconds of a turn that learns nothing."""
    assert pair.policy is not None
    handover = DeviceHandover(pair.policy, pair.pool)
    with handover.first_phase(1):
        pass
    residual, whole, seconds = [], [], []
    for version in range(2, cycles + 2):
        watch = Stopwatch()
        with watch.measure("turn"), handover.policy_phase(watch) as phase:
            pair.policy.offload()
            whole.append(used_gib(setting))
            pair.policy.onload()
            phase.set_version(version)
        residual.append(handover.residual["sleep/residual_gib_max"])
        seconds.append(watch.seconds["turn"])
    return residual, whole, seconds


def measure(setting: Setting, mode: str, engine_model: Path, policy_model: Path) -> None:
    """One sleep mode."""
    config = config_for(setting, SHARE, sleep=mode, weight_bucket_mib=256.0, enforce_eager=True)
    config.policy.offload = "none" if setting.is_tiny else "all"
    with start(config, engine_model, policy_model) as pair:
        residual, whole, seconds = turns(setting, pair, setting.extra.cycles)
        after = disagreement_awake(pair)
    results, is_gpu = setting.results, not setting.is_tiny
    settled = min(SETTLED, len(residual) - 1)
    results.add(
        Row(
            f"{mode}: residual",
            max(residual) if is_gpu else None,
            "GiB",
            at_most=RESIDUAL_GIB,
            note=f"{len(residual)} cycles",
        )
    )
    growth = residual[-1] - residual[settled]
    results.add(Row(f"{mode}: growth of the residual", growth if is_gpu else None, "GiB", at_most=GROWTH_GIB))
    results.add(Row(f"{mode}: whole GPU while asleep", max(whole) if is_gpu else None, "GiB"))
    growth = whole[-1] - whole[settled]
    results.add(Row(f"{mode}: growth of the whole", growth if is_gpu else None, "GiB", at_most=GROWTH_GIB))
    results.add(Row(f"{mode}: turn without learning", sorted(seconds)[len(seconds) // 2], "s"))
    results.add(Row(f"{mode}: |Megatron − vLLM| at the end", after, "nats", at_most=0.05))
    results.detail(mode, {"residual_gib": residual, "whole_gib": whole, "seconds": seconds})


def disagreement_awake(pair: Pair) -> float:
    """Return the disagreement of policy and engine after moving the policy back to the GPU of the awake engine."""
    assert pair.policy is not None
    pair.policy.onload()
    return disagreement(pair)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sleep cycles part to its parser."""
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--modes", nargs="+", default=["discard"], choices=["cache", "offload", "discard"])


def main() -> None:
    """One mode after the other."""
    setting = open_setting("sleep_cycles", __doc__, add_arguments)
    shape, name = (TINY, "tiny") if setting.is_tiny else (QWEN_1_5B, "1.5B_shape")
    policy_model = make_model(setting.models / name, shape)
    engine_model = with_tokenizer(make_model(setting.models / f"{name}_other", shape, seed=1))
    for mode in setting.extra.modes:
        with setting.results.attempt(mode):
            measure(setting, mode, engine_model, policy_model)
    setting.results.finish()


if __name__ == "__main__":
    main()
