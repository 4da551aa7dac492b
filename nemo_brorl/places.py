"""The plan of roles made real: Ray placement groups, one for each node, and the options that put a process into its bundle."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from nemo_brorl.config.roles import Place, RolePlan
from nemo_brorl.errors import ResourceError

_CPUS_PER_GPU = 2  # an engine reserves one, a policy rank a tenth
_TIMEOUT_S = 300.0


class Places:
    """Where a run's processes go. Without a plan (on CPU) anywhere: no options, no groups.

    Needs an initialised Ray; raises ResourceError when the cluster cannot give the GPUs. `close` gives them back.
    """

    def __init__(self, plan: RolePlan | None) -> None:
        self._plan = plan
        self._groups: list[PlacementGroup] = []
        if plan is None:
            return
        for gpus in plan.nodes:
            bundles = [{"GPU": float(num), "CPU": float(_CPUS_PER_GPU * num)} for num in gpus]
            self._groups.append(placement_group(bundles, strategy="STRICT_PACK"))
        ready = [group.ready() for group in self._groups]
        if waiting := ray.wait(ready, num_returns=len(ready), timeout=_TIMEOUT_S)[1]:
            self.close()
            raise ResourceError(
                f"{len(waiting)} of {len(ready)} nodes with {sum(plan.nodes[0])} free GPUs and {_CPUS_PER_GPU} CPU cores for each of them "
                f"were not found within {_TIMEOUT_S:.0f} s: is another run on them?"
            )

    def policy_options(self, rank: int) -> dict[str, Any]:
        """Ray options of a policy rank's actor."""
        if self._plan is None:
            return {}
        return {"num_gpus": self._plan.share, "scheduling_strategy": self._at(self._plan.policy[rank])}

    def engine_options(self, engine: int) -> dict[str, Any]:
        """Ray options of an engine's actor. One whose workers are in several bundles has no GPU itself: it starts them there."""
        if self._plan is None:
            return {}
        places = self._plan.engines[engine]
        num_gpus = self._plan.share * self._plan.nodes[places[0].node][places[0].bundle] if len(places) == 1 else 0
        return {"num_gpus": num_gpus, "scheduling_strategy": self._at(places[0])}

    def worker_environment(self, engine: int) -> dict[str, str]:
        """For vLLM: the bundles and the share of a GPU of workers that it starts through Ray."""
        if self._plan is None or len(self._plan.engines[engine]) == 1:
            return {}
        bundles = ",".join(str(place.bundle) for place in self._plan.engines[engine])
        return {"VLLM_RAY_BUNDLE_INDICES": bundles, "VLLM_RAY_PER_WORKER_GPUS": str(self._plan.share)}

    def close(self) -> None:
        """Give the bundles back. May be called twice."""
        for group in self._groups:
            remove_placement_group(group)
        self._groups = []

    def _at(self, place: Place) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(self._groups[place.node], place.bundle, placement_group_capture_child_tasks=True)
