"""Place processes: decide from the config alone which GPUs the policy and the engines get, and tell Ray.

On CPU there is no plan: nodes take ranks and engines in equal shares. On GPUs a node is cut into bundles, the units
that Ray gives to a process, with one placement group for each node. GPUs are counted through the nodes, node 0 first.

*Colocated*: a bundle is one GPU. Policy rank r is on GPU r. Worker w of engine e, which has W workers, is with a rank
on GPU e × W + w. Each of the two reserves half of the GPU. *Disaggregated*: the policy has the first GPUs, one a
bundle. Each engine has the next W GPUs in one bundle, which it shares with no other process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from nemo_brorl.config.run_sizes import CPUS_PER_GPU, RunSizes
from nemo_brorl.core.errors import ResourceError

_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Bundle:
    """One bundle of GPUs that Ray gives to a process."""

    node: int
    index: int  # index within the node


@dataclass(frozen=True)
class RolePlan:
    """GPU bundles of a run, and which policy rank or engine is in which."""

    nodes: tuple[tuple[int, ...], ...]  # number of GPUs of each bundle on each node
    policy: tuple[Bundle, ...]  # bundle of each policy rank
    engines: tuple[tuple[Bundle, ...], ...]  # bundles of each engine: one for each worker, or one that holds them all
    share: float  # fraction of a GPU that one process reserves


def plan_roles(sizes: RunSizes) -> RolePlan | None:
    """Return the plan that places each policy rank and each engine on GPUs, or None on CPU.

    On CPU both placements (colocated and disaggregated) run on the same cores, and differ only in which processes run
    at a time. The settings must have passed the rules of `config/`.
    """
    if sizes.num_gpus == 0:
        return None
    if sizes.is_colocated:
        return _colocated(sizes)
    return _disaggregated(sizes)


def _colocated(sizes: RunSizes) -> RolePlan:
    on_node, degree = sizes.gpus_per_node, sizes.gpus_per_engine
    bundles = [Bundle(gpu // on_node, gpu % on_node) for gpu in range(sizes.num_gpus)]
    engines = []
    for engine in range(sizes.num_engines):
        first = engine * degree
        engines.append(tuple(bundles[first : first + degree]))
    return RolePlan(
        nodes=((1,) * on_node,) * sizes.num_nodes,
        policy=tuple(bundles[: sizes.num_ranks]),
        engines=tuple(engines),
        share=0.5,
    )


def _disaggregated(sizes: RunSizes) -> RolePlan:
    on_node, degree = sizes.gpus_per_node, sizes.gpus_per_engine
    nodes: list[list[int]] = [[] for _ in range(sizes.num_nodes)]
    first_gpu = 0

    def reserve_bundle(num: int) -> Bundle:
        nonlocal first_gpu
        node = first_gpu // on_node
        nodes[node].append(num)
        first_gpu += num
        return Bundle(node, len(nodes[node]) - 1)

    policy = tuple(reserve_bundle(1) for _ in range(sizes.num_ranks))
    engines = tuple((reserve_bundle(degree),) for _ in range(sizes.num_engines))
    return RolePlan(tuple(map(tuple, nodes)), policy, engines, share=1.0)


class Places:
    """Ray placement of a run's processes on the GPUs of its plan.

    Without a plan (on CPU) there are no placement groups and no options: Ray may start a process anywhere. Needs an
    initialised Ray. Raises ResourceError when the cluster cannot give the GPUs. `close` releases them.
    """

    def __init__(self, plan: RolePlan | None) -> None:
        self._plan = plan
        self._groups: list[PlacementGroup] = []
        if plan is None:
            return
        for gpus in plan.nodes:
            bundles = []
            for num in gpus:
                cpus = float(CPUS_PER_GPU * num)
                bundles.append({"GPU": float(num), "CPU": cpus})
            # All bundles of a group must be on one node, because workers of an engine use the node's links.
            self._groups.append(placement_group(bundles, strategy="STRICT_PACK"))
        ready = [group.ready() for group in self._groups]
        _, waiting = ray.wait(ready, num_returns=len(ready), timeout=_TIMEOUT_S)
        if waiting:
            self.close()
            raise ResourceError(
                f"{len(waiting)} of {len(ready)} nodes with {sum(plan.nodes[0])} free GPUs and {CPUS_PER_GPU} CPU "
                f"cores for each of them were not found within {_TIMEOUT_S:.0f} s: is another run on them?"
            )

    def policy_options(self, rank: int) -> dict[str, Any]:
        """Return the Ray options with which the actor of one policy rank is started."""
        if self._plan is None:
            return {}
        bundle = self._plan.policy[rank]
        return {"num_gpus": self._plan.share, "scheduling_strategy": self._at(bundle)}

    def engine_options(self, engine: int) -> dict[str, Any]:
        """Return the Ray options with which the actor of a vLLM engine is started.

        The actor of an engine whose workers use several bundles reserves no GPU itself. It starts its workers in these
        bundles.
        """
        if self._plan is None:
            return {}
        bundles = self._plan.engines[engine]
        first = bundles[0]
        num_gpus = 0.0
        if len(bundles) == 1:
            gpus = self._plan.nodes[first.node]
            num_gpus = self._plan.share * gpus[first.index]
        return {"num_gpus": num_gpus, "scheduling_strategy": self._at(first)}

    def worker_environment(self, engine: int) -> dict[str, str]:
        """Return the environment variables that tell vLLM in which Ray bundles to start the workers of an engine.

        They hold the indices of the bundles and the fraction of a GPU that each worker reserves.
        """
        if self._plan is None:
            return {}
        bundles = [str(bundle.index) for bundle in self._plan.engines[engine]]
        if len(bundles) == 1:
            return {}
        share = str(self._plan.share)
        return {"VLLM_RAY_BUNDLE_INDICES": ",".join(bundles), "VLLM_RAY_PER_WORKER_GPUS": share}

    def close(self) -> None:
        """Release the Ray placement groups that reserve the run's GPUs, which may be called twice."""
        for group in self._groups:
            remove_placement_group(group)
        self._groups = []

    def _at(self, bundle: Bundle) -> PlacementGroupSchedulingStrategy:
        group = self._groups[bundle.node]
        return PlacementGroupSchedulingStrategy(group, bundle.index, placement_group_capture_child_tasks=True)


class CpuPlaces(Places):
    """Ray placement on several nodes without GPUs.

    Ranks and engines are placed in blocks. The driver's node gets the first block of each.
    """

    def __init__(
        self,
        num_nodes: int,
        num_ranks: int,
        num_engines: int,
    ) -> None:
        """Choose the nodes on which policy ranks and vLLM engines are placed.

        Raises ResourceError when the Ray cluster has fewer than `num_nodes`.
        """
        super().__init__(None)
        here = ray.get_runtime_context().get_node_id()
        alive = [node for node in ray.nodes() if node["Alive"]]
        if len(alive) < num_nodes:
            raise ResourceError(
                f"the Ray cluster has {len(alive)} nodes, trainer.num_nodes={num_nodes}: on one machine set 1, on "
                "several start them as a job (slurm/brorl_cpu.sh)"
            )
        alive.sort(key=lambda node: (node["NodeManagerAddress"], node["NodeID"]))
        # Put the driver's node first.
        alive.sort(key=lambda node: node["NodeID"] != here)
        self._nodes = [node["NodeID"] for node in alive[:num_nodes]]
        self._num_ranks = num_ranks
        self._num_engines = num_engines

    def policy_options(self, rank: int) -> dict[str, Any]:
        """Return the Ray options with which the actor of one policy rank is started."""
        return self._on(rank, self._num_ranks)

    def engine_options(self, engine: int) -> dict[str, Any]:
        """Return the Ray options with which the actor of a vLLM engine is started."""
        return self._on(engine, self._num_engines)

    def _on(self, number: int, total: int) -> dict[str, Any]:
        node = self._nodes[number * len(self._nodes) // total]
        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


def places_of(sizes: RunSizes) -> Places:
    """Return the Ray placement of this run's policy ranks and engines.

    Ray must be initialised. Raises ResourceError when the cluster has too few nodes or free GPUs.
    """
    if sizes.gpus_per_node == 0 and sizes.num_nodes > 1:
        return CpuPlaces(sizes.num_nodes, sizes.num_ranks, sizes.num_engines)
    return Places(plan_roles(sizes))
