"""Examination of one node: all checks, in the order in which a person wants to read them."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_brorl.cluster.doctor import constant_answers, data_files, gpus, machine, model_files, sandboxes, versions
from nemo_brorl.cluster.doctor.node_rank import NodeRank
from nemo_brorl.cluster.doctor.report import NodeReport
from nemo_brorl.config.derived import num_gpus
from nemo_brorl.config.schema import BroRLConfig


def examine_node(
    config: BroRLConfig,
    this: NodeRank,
    ports: Sequence[int],
) -> NodeReport:
    """Report of this node. Takes about ten seconds where nothing is wrong; everything in it has a deadline."""
    model, shape = model_files.check_model(config)
    checks = [machine.check_python()]
    checks += machine.check_nodes(config, this.size)
    checks += versions.check_packages(config)
    if num_gpus(config) > 0:
        checks += gpus.check_gpus(config)
        checks.append(machine.check_compiler())
    checks.append(machine.check_memory(config, shape))
    checks += machine.check_disks(config, shape)
    checks += machine.check_limits(config)
    if ports:
        checks.append(machine.check_ports(ports))
    checks.append(model)
    checks += data_files.check_data(config)
    checks += constant_answers.check_constants(config)
    checks += sandboxes.check_sandbox(config)
    return NodeReport(this.node, checks, versions.facts())
