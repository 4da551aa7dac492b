"""Who is on which GPU: the whole plan for one GPU, for a node of eight and for eight nodes."""

from __future__ import annotations

from collections import Counter

import pytest

from nemo_brorl.cluster.process_placement import Bundle, RolePlan, plan_roles
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig


def plan(
    nodes: int,
    gpus: int,
    placement: str = "colocated",
    degree: int = 1,
    engines: int | None = None,
    data: int | None = None,
) -> RolePlan:
    config = BroRLConfig()
    config.trainer.num_nodes, config.trainer.gpus_per_node = nodes, gpus
    config.generation.placement, config.generation.tensor_parallel_size = placement, degree
    config.generation.num_engines, config.policy.data_parallel_size = engines, data
    planned = plan_roles(RunSizes.from_config(config))
    assert planned is not None
    return planned


def shares(planned: RolePlan) -> Counter[Bundle]:
    """Of the GPUs of every bundle, how many are reserved."""
    held: Counter[Bundle] = Counter()
    for place in [*planned.policy, *(place for engine in planned.engines for place in engine)]:
        gpus = planned.nodes[place.node][place.index]
        held[place] += planned.share * gpus
    return held


def test_on_cpu_there_is_nothing_to_plan() -> None:
    assert plan_roles(RunSizes.from_config(BroRLConfig())) is None


def test_one_gpu_is_shared_by_a_rank_and_an_engine() -> None:
    assert plan(1, 1) == RolePlan(nodes=((1,),), policy=(Bundle(0, 0),), engines=((Bundle(0, 0),),), share=0.5)


def test_a_colocated_engine_has_its_workers_beside_ranks_of_one_node() -> None:
    planned = plan(1, 8, degree=4)
    assert planned.policy == tuple(Bundle(0, gpu) for gpu in range(8))
    assert planned.engines == (tuple(Bundle(0, gpu) for gpu in range(4)), tuple(Bundle(0, gpu) for gpu in range(4, 8)))


def test_a_node_is_divided_between_roles() -> None:
    planned = plan(1, 8, "disaggregated", degree=2, engines=2, data=4)
    assert planned.nodes == ((1, 1, 1, 1, 2, 2),)
    assert planned.policy == tuple(Bundle(0, bundle) for bundle in range(4))
    assert planned.engines == ((Bundle(0, 4),), (Bundle(0, 5),))


@pytest.mark.parametrize(
    ("placement", "degree", "engines", "data", "num_engines"),
    [
        ("colocated", 1, None, None, 64),
        ("colocated", 8, None, None, 8),
        ("disaggregated", 1, 24, 40, 24),
        ("disaggregated", 4, 9, 28, 9),
    ],
)
def test_of_64_gpus_none_is_idle_or_given_twice(
    placement: str, degree: int, engines: int | None, data: int | None, num_engines: int
) -> None:
    planned = plan(8, 8, placement, degree, engines, data)
    assert [sum(gpus) for gpus in planned.nodes] == [8] * 8
    assert len(planned.engines) == num_engines
    assert all(len({place.node for place in engine}) == 1 for engine in planned.engines)
    held = shares(planned)
    assert all(
        held[Bundle(node, bundle)] == gpus
        for node, bundles in enumerate(planned.nodes)
        for bundle, gpus in enumerate(bundles)
    )
