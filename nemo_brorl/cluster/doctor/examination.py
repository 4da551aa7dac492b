"""Examination of one node: all checks, in the order in which a person wants to read them."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_brorl.cluster.doctor import data_files, gpus, machine, model_files, sandboxes, versions
from nemo_brorl.cluster.doctor.node_rank import NodeRank
from nemo_brorl.cluster.doctor.report import NodeReport
from nemo_brorl.config.derived import num_gpus
from nemo_brorl.config.schema import BroRLConfig


def examine_node(config: BroRLConfig, this: NodeRank, ports: Sequence[int]) -> NodeReport:
    """Report of this node. Takes about two seconds where nothing is wrong; everything in it has a deadline."""
    report = NodeReport(this.node, facts=versions.facts())
    model, shape = model_files.check_model(config)
    report.checks.append(machine.check_python())
    report.checks += machine.check_nodes(config, this.size)
    report.checks += versions.check_packages(config)
    if num_gpus(config) > 0:
        report.checks += gpus.check_gpus(config)
    report.checks.append(machine.check_memory(config, shape))
    report.checks += machine.check_disks(config, shape)
    report.checks += machine.check_limits(config)
    if ports:
        report.checks.append(machine.check_ports(ports))
    report.checks.append(model)
    report.checks += data_files.check_data(config)
    report.checks += sandboxes.check_sandbox(config)
    return report
