"""All checks of one node, in the order in which a person wants to read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from nemo_brorl.cluster.doctor import data_files, gpus, machine, model_files, sandboxes, versions
from nemo_brorl.cluster.doctor.node_rank import Place
from nemo_brorl.cluster.doctor.report import Check, NodeReport
from nemo_brorl.config.derived import num_gpus
from nemo_brorl.config.schema import BroRLConfig


def examine_node(config: BroRLConfig, place: Place, ports: Sequence[int]) -> NodeReport:
    """What one node says of itself. Takes about two seconds where nothing is wrong; everything in it has a deadline."""
    report = NodeReport(place.node, facts=versions.facts())
    model, shape = model_files.check_model(config)
    is_on_gpu = num_gpus(config) > 0
    parts: list[Callable[[], Iterator[Check]]] = [
        lambda: iter([machine.check_python()]),
        lambda: machine.check_nodes(config, place.size),
        lambda: versions.check_packages(config),
        lambda: gpus.check_gpus(config) if is_on_gpu else iter(()),
        lambda: iter([machine.check_memory(config, shape)]),
        lambda: machine.check_disks(config, shape),
        lambda: machine.check_limits(config),
        lambda: iter([machine.check_ports(ports)] if ports else ()),
        lambda: iter([model]),
        lambda: data_files.check_data(config),
        lambda: sandboxes.check_sandbox(config),
    ]
    for part in parts:
        report.checks += part()
    return report
