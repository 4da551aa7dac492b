"""Cross-field rules of `rollouts.allocation=waves` (`rules.py` says how rules work)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nemo_brorl.config.derived import data_parallel_size, stage_sizes
from nemo_brorl.config.ranges import ADVANTAGES_BY_WAVE
from nemo_brorl.config.schema import BroRLConfig


def advantage_by_wave(config: BroRLConfig) -> Iterator[str]:
    advantage = config.algorithm.advantage
    if config.rollouts.allocation == "waves" and advantage not in ADVANTAGES_BY_WAVE:
        yield (
            f"rollouts.allocation=waves compares each wave with its own mean and algorithm.advantage={advantage} "
            f"means something else "
            f"for every size of a group, which would bias the gradient: write one of "
            f"{', '.join(ADVANTAGES_BY_WAVE)}, or "
            "rollouts.allocation=fixed"
        )


def nothing_else_couples_waves(config: BroRLConfig) -> Iterator[str]:
    if config.rollouts.allocation != "waves":
        return
    algorithm = config.algorithm
    if algorithm.train_rollouts is not None:
        yield (
            f"algorithm.train_rollouts={algorithm.train_rollouts} chooses rollouts by their rewards and "
            f"rollouts.allocation=waves weighs "
            "all of them by how they came to be sampled: write algorithm.train_rollouts=null or "
            "rollouts.allocation=fixed"
        )
    if algorithm.rare_success_exponent > 0:
        yield (
            f"algorithm.rare_success_exponent={algorithm.rare_success_exponent} weighs a group by its share of "
            f"correct rollouts, which "
            "rollouts.allocation=waves makes depend on its size: write algorithm.rare_success_exponent=0 or "
            "rollouts.allocation=fixed"
        )


def first_wave_fits(config: BroRLConfig) -> Iterator[str]:
    first, sizes = config.rollouts.waves.first_wave, stage_sizes(config)
    if config.rollouts.allocation != "waves" or not sizes:
        return
    largest = max(num for num, _ in sizes)
    if largest - first < first / 2:
        yield (
            f"rollouts.waves.first_wave={first} leaves less than half a wave to decide about with N = {largest}: "
            f"write for example "
            f"rollouts.waves.first_wave={max(2, largest // 8)}, or rollouts.allocation=fixed"
        )
    needed = config.algorithm.num_mini_batches * data_parallel_size(config)
    fewest = min(min(first, num) * prompts for num, prompts in sizes)
    if fewest < needed:
        yield (
            f"a step may sample no more than its first waves, {fewest} rollouts, which cannot fill "
            f"algorithm.num_mini_batches="
            f"{config.algorithm.num_mini_batches} on {data_parallel_size(config)} data-parallel ranks: raise "
            f"rollouts.waves.first_wave "
            "or rollouts.prompts_per_step"
        )


def no_group_is_lost_for_being_extended(config: BroRLConfig) -> Iterator[str]:
    sampling = config.dynamic_sampling
    if config.rollouts.allocation != "waves":
        return
    if sampling.in_flight in ("restart", "drop"):
        yield (
            f"dynamic_sampling.in_flight={sampling.in_flight} gives up groups that are still sampled, and under "
            f"rollouts.allocation=waves "
            "those are the ones worth extending: write dynamic_sampling.in_flight=finish or resume"
        )
    if sampling.order == "completion" and not sampling.carry_over:
        yield (
            "dynamic_sampling.order=completion with dynamic_sampling.carry_over=false loses the groups that close "
            "last, and under "
            "rollouts.allocation=waves those are the ones worth extending: write order=prompt or carry_over=true"
        )


WAVE_RULES: tuple[Callable[[BroRLConfig], Iterator[str]], ...] = (
    advantage_by_wave,
    nothing_else_couples_waves,
    first_wave_fits,
    no_group_is_lost_for_being_extended,
)
