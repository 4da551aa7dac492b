"""Which GPUs the policy and the engines get: a plan from the config alone, before Ray is asked for anything.

A node's GPUs are cut into bundles, the units that Ray gives to a process. GPUs are counted through the nodes, node 0
first.

*Colocated*: a bundle is one GPU. Policy rank r is on GPU r; worker w of engine e, of W workers, is on GPU e × W + w
beside it. Each reserves half. *Disaggregated*: the policy has the first GPUs, one a bundle; each engine has the next W
in one bundle, all its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from nemo_brorl.config.derived import num_engines, num_gpus, num_policy_ranks
from nemo_brorl.config.schema import BroRLConfig


@dataclass(frozen=True)
class Place:
    """A bundle."""

    node: int
    bundle: int  # within the node


@dataclass(frozen=True)
class RolePlan:
    """Bundles, and who is in which."""

    nodes: tuple[tuple[int, ...], ...]  # GPUs of every bundle, by node
    policy: tuple[Place, ...]  # by rank
    engines: tuple[tuple[Place, ...], ...]  # by engine: the bundles of its workers, or the one that holds them all
    share: float  # of a GPU that one process reserves


def plan_roles(config: BroRLConfig) -> RolePlan | None:
    """None on CPU, where both placements run on the same cores and differ in who takes turns. The rules have
    passed."""
    if num_gpus(config) == 0:
        return None
    if config.generation.placement == "colocated":
        return _colocated(config)
    return _disaggregated(config)


def _colocated(config: BroRLConfig) -> RolePlan:
    on_node, degree = config.trainer.gpus_per_node, config.generation.tensor_parallel_size
    places = [Place(gpu // on_node, gpu % on_node) for gpu in range(num_gpus(config))]
    return RolePlan(
        nodes=((1,) * on_node,) * config.trainer.num_nodes,
        policy=tuple(places[: num_policy_ranks(config)]),
        engines=tuple(tuple(places[engine * degree : (engine + 1) * degree]) for engine in range(num_engines(config))),
        share=0.5,
    )


def _disaggregated(config: BroRLConfig) -> RolePlan:
    on_node, degree = config.trainer.gpus_per_node, config.generation.tensor_parallel_size
    nodes: list[list[int]] = [[] for _ in range(config.trainer.num_nodes)]
    first_gpu = 0

    def take(num: int) -> Place:
        nonlocal first_gpu
        node = first_gpu // on_node
        nodes[node].append(num)
        first_gpu += num
        return Place(node, len(nodes[node]) - 1)

    policy = tuple(take(1) for _ in range(num_policy_ranks(config)))
    engines = tuple((take(degree),) for _ in range(num_engines(config)))
    return RolePlan(tuple(map(tuple, nodes)), policy, engines, share=1.0)
