"""Placement groups on a Ray that is told it has GPUs: who really gets which. Nothing touches one."""

from __future__ import annotations

import os
from typing import Any

import pytest
import ray

from nemo_brorl.cluster.process_placement import Places, plan_roles
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ResourceError
from tests.support.ray_cluster import use_ray


@pytest.fixture(scope="module")
def cluster() -> None:
    use_ray(num_cpus=8, num_gpus=4)


class Process:
    """Says which GPUs Ray has given to it."""

    def gpus(self) -> list[int]:
        return [int(gpu) for gpu in ray.get_gpu_ids()]


def gpus_of(options: list[dict[str, Any]]) -> list[list[int]]:
    """Of one process for each set of options, all alive together."""
    actor = ray.remote(num_cpus=0.1)(Process)
    actors = [actor.options(**chosen).remote() for chosen in options]
    found = ray.get([one.gpus.remote() for one in actors], timeout=120)
    for one in actors:
        ray.kill(one)
    return found


def four_gpus(placement: str, degree: int = 1, engines: int | None = None) -> Places:
    config = BroRLConfig()
    config.trainer.gpus_per_node = 4
    config.generation.placement, config.generation.tensor_parallel_size = placement, degree
    config.generation.num_engines, config.policy.data_parallel_size = engines, None
    return Places(plan_roles(RunSizes.from_config(config)))


def test_a_colocated_engine_is_on_the_gpu_of_its_rank(cluster: None) -> None:
    places = four_gpus("colocated")
    options = [places.policy_options(rank) for rank in range(4)] + [
        places.engine_options(engine) for engine in range(4)
    ]
    found = gpus_of(options)
    assert found[:4] == found[4:]
    assert sorted(gpu for gpus in found[:4] for gpu in gpus) == [0, 1, 2, 3]
    places.close()


def test_disaggregated_roles_have_gpus_of_their_own(cluster: None) -> None:
    places = four_gpus("disaggregated", degree=2, engines=1)
    found = gpus_of([places.policy_options(0), places.policy_options(1), places.engine_options(0)])
    assert [len(gpus) for gpus in found] == [1, 1, 2]
    assert sorted(gpu for gpus in found for gpu in gpus) == [0, 1, 2, 3]
    assert places.worker_environment(0) == {}
    places.close()


def test_a_colocated_tensor_parallel_engine_leaves_its_gpus_to_its_workers(cluster: None) -> None:
    places = four_gpus("colocated", degree=2)
    assert gpus_of([places.engine_options(1)]) == [[]]
    assert places.worker_environment(1) == {"VLLM_RAY_BUNDLE_INDICES": "2,3", "VLLM_RAY_PER_WORKER_GPUS": "0.5"}
    places.close()


def test_gpus_that_another_run_holds_are_not_waited_for_for_ever(
    cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = four_gpus("colocated")
    monkeypatch.setattr("nemo_brorl.cluster.process_placement._TIMEOUT_S", 1.0)
    with pytest.raises(
        ResourceError, match="1 of 1 nodes with 4 free GPUs and 2 CPU cores for each of them were not found within 1 s"
    ):
        four_gpus("colocated")
    places.close()


def test_without_gpus_nothing_is_asked_for() -> None:
    places = Places(plan_roles(RunSizes.from_config(BroRLConfig())))
    assert (places.policy_options(0), places.engine_options(0), places.worker_environment(0)) == ({}, {}, {})
    places.close()
    assert os.environ.get("VLLM_RAY_BUNDLE_INDICES") is None
