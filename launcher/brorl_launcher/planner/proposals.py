"""Propose faster layouts of the same GPUs, and changes that would make a plan fit.

Every valid layout is planned, and those that fit are ranked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, log
from typing import Any

from brorl_launcher.planner.hardware import Hardware
from brorl_launcher.planner.plan import Plan, make_plan
from brorl_launcher.planner.workload import ASSUMED, Lengths
from nemo_brorl.config.model_rules import misfits, policy_misfits
from nemo_brorl.config.rules import check_rules
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.core.model_shape import ModelShape

Changes = Mapping[str, Any]  # values by setting, as on the command line

MOST_UTILIZATION = 0.9  # largest GPU share of an engine; vLLM needs some memory beyond it
LEAST_UTILIZATION = 0.1
HEADROOM_GIB = 2.0  # memory of a GPU that a proposal leaves free
_ROUND_TOKENS = 1024
_MOST_NODES = 512


@dataclass(frozen=True)
class Proposal:
    """A plan that fits, and the settings that lead to it."""

    plan: Plan
    changes: Changes

    @property
    def overrides(self) -> str:
        """Return the proposed settings as Hydra overrides for a command line."""
        return " ".join(f"{key}={format_override_value(value)}" for key, value in self.changes.items())


def format_override_value(value: Any) -> str:
    """Return a setting's value in the form that Hydra reads on a command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def with_changes(config: BroRLConfig, changes: Changes) -> BroRLConfig:
    """Return a copy of a run's settings with some settings changed."""
    sections: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = value
    changed = {}
    for section, values in sections.items():
        changed[section] = replace(getattr(config, section), **values)
    return replace(config, **changed)


@dataclass(frozen=True)
class _Search:
    """The fixed inputs of a search for layouts: settings, devices, lengths and model."""

    config: BroRLConfig
    hardware: Hardware
    lengths: Lengths
    shape: ModelShape

    def plan(self, changes: Changes) -> Plan:
        """Return the memory and time estimate of the run with some settings changed."""
        config = with_changes(self.config, changes)
        return make_plan(config, self.hardware, self.lengths, self.shape)


def propose_layouts(
    config: BroRLConfig,
    hardware: Hardware,
    lengths: Lengths,
    shape: ModelShape,
    num: int,
) -> list[Proposal]:
    """Return the `num` parallel layouts of the run on these GPUs that fit and take the least time per step.

    The fastest layout comes first. Of equally fast layouts the one with fewer changed settings comes first.
    """
    if num == 0:
        return []
    search = _Search(config, hardware, lengths, shape)
    engines = list(_engine_layouts(search))
    found: list[Proposal] = []
    for layout in _policy_layouts(search):
        updates = _updates_that_fit(search, layout)
        for engine in engines:
            proposal = _first_that_fits(search, layout, updates, engine)
            if proposal is not None:
                found.append(proposal)
    return sorted(found, key=_rank)[:num]


def _first_that_fits(
    search: _Search,
    layout: Changes,
    updates: Sequence[Changes],
    engine: Changes,
) -> Proposal | None:
    """Return the first proposal of settings that leaves the vLLM engines enough GPU memory, or None.

    The policy's parallel layout is fixed, and its recomputation and micro-batch settings are tried in order.
    """
    for update in updates:
        proposal = _with_largest_share(search, {**layout, **update, **engine})
        if proposal is not None:
            return proposal
    return None


def _rank(proposal: Proposal) -> tuple[int, int, int, float]:
    """Return the sort key of proposed layouts: fastest first, by classes of speed.

    A class spans 2 %, because the estimate cannot tell apart speeds within 2 %. Among layouts of one class, fewer ranks
    for a replica come first.
    """
    plan = proposal.plan
    seconds = plan.time.seconds
    speed_class = int(log(seconds) / log(1.02))
    size = plan.layout.tensor * plan.layout.pipeline * plan.layout.context
    return speed_class, size * plan.engines.tensor, len(proposal.changes), seconds


def _policy_layouts(search: _Search) -> Iterator[dict[str, Any]]:
    """Yield parallel layouts of the policy.

    Tensor parallelism stays within a node, and the product of the parallel sizes fills the policy's GPUs.
    """
    config, shape = search.config, search.shape
    ranks = search.hardware.num_devices
    if config.generation.placement == "disaggregated":
        ranks = RunSizes.from_config(config).num_ranks
    tensors = _divisors(search.hardware.per_node, 8)
    pipelines = (1, 2, 4, 8)
    contexts: tuple[int, ...] = (1, 2, 4, 8)
    experts = [1]
    if shape.moe:
        experts = _divisors(shape.moe.num_experts, min(ranks, search.hardware.per_node))
        contexts = (1,)  # mixtures with context parallelism are not tested together (docs/explanation/policy.md)
    for tensor, pipeline, context, expert in product(tensors, pipelines, contexts, experts):
        replica = tensor * pipeline * context
        if ranks % replica:
            continue
        data = ranks // replica
        if tensor * context * data % expert:
            continue
        virtual = None if pipeline == 1 else config.policy.virtual_pipeline_model_parallel_size
        changes: dict[str, Any] = {
            "policy.tensor_model_parallel_size": tensor,
            "policy.pipeline_model_parallel_size": pipeline,
            "policy.context_parallel_size": context,
            "policy.expert_model_parallel_size": expert,
            "policy.sequence_parallel": tensor > 1,
            "policy.virtual_pipeline_model_parallel_size": virtual,
        }
        if config.policy.data_parallel_size is not None:
            changes["policy.data_parallel_size"] = data
        changed = with_changes(config, changes)
        if not list(policy_misfits(changed.policy, shape, changed.trainer.num_gpus > 0)):
            yield changes


def _divisors(of: int, at_most: int) -> list[int]:
    return [number for number in range(1, min(of, at_most) + 1) if of % number == 0]


def _engine_layouts(search: _Search) -> Iterator[dict[str, Any]]:
    """Yield layouts of the vLLM engines.

    Tensor parallelism stays within a node, and the engines use as many GPUs as now.
    """
    config = search.config
    for tensor in _divisors(search.hardware.per_node, 8):
        changes: dict[str, Any] = {"generation.tensor_parallel_size": tensor}
        if config.generation.num_engines is not None:
            devices = RunSizes.from_config(config).num_engines * config.generation.tensor_parallel_size
            if devices % tensor:
                continue
            changes["generation.num_engines"] = devices // tensor
        if not list(misfits(with_changes(config, changes), search.shape)):
            yield changes


def _updates_that_fit(search: _Search, layout: Changes) -> list[dict[str, Any]]:
    """Return recomputation and micro-batch settings with which the policy alone fits its GPUs, the cheapest first."""
    found: list[dict[str, Any]] = []
    budgets = _budgets(search.config, layout["policy.context_parallel_size"])
    for recompute, tokens in product((None, "selective", "full"), budgets):
        changes = {"policy.recompute": recompute, "policy.tokens_per_micro_batch": tokens}
        memory = search.plan({**layout, **changes}).devices[0]
        if memory.peak("update", "policy") <= memory.capacity_gib - HEADROOM_GIB:
            found.append(changes)
    return found


def _with_largest_share(search: _Search, changes: dict[str, Any]) -> Proposal | None:
    """Return a proposal of settings with the largest GPU memory share that the policy leaves to the vLLM engines.

    The result is None when the share is too small, when the run does not fit, or when the settings break a rule.
    """
    share = _engine_share(search.plan(changes))
    if share < LEAST_UTILIZATION:
        return None
    changes = {**changes, "generation.gpu_memory_utilization": share}
    plan = search.plan(changes)
    if not plan.fits or not _keeps_rules(plan.config):
        return None
    return Proposal(plan, _changes_that_differ(search.config, changes))


def _engine_share(plan: Plan) -> float:
    """Return the largest share of GPU memory that vLLM engines can have, rounded down to hundredths."""
    memory = plan.devices[-1]
    mine = max(plan.engine.weights_gib + plan.engine.working_gib, plan.engine.share_gib)
    free = memory.capacity_gib - HEADROOM_GIB - (memory.peak("generate") - mine)
    return min(MOST_UTILIZATION, int(100 * free / memory.capacity_gib) / 100)


def _budgets(config: BroRLConfig, context: int) -> list[int]:
    """Return the micro-batch sizes in tokens to try, largest first.

    They are the configured size and the smallest one that holds the longest sequence.
    """
    longest = config.data.max_prompt_tokens + config.rollouts.max_response_tokens
    least = ceil(longest / context)
    if least > _ROUND_TOKENS:
        least = _ROUND_TOKENS * ceil(least / _ROUND_TOKENS)
    given = RunSizes.from_config(config).micro_batch_tokens
    return [given, least] if given > least else [least]


def _keeps_rules(config: BroRLConfig) -> bool:
    try:
        check_rules(config)
    except ConfigError:
        return False
    return True


def _changes_that_differ(config: BroRLConfig, changes: Changes) -> dict[str, Any]:
    """Return those of the proposed setting changes that differ from the run's settings."""
    differing = {}
    for key, value in changes.items():
        section, name = key.split(".")
        if getattr(getattr(config, section), name) != value:
            differing[key] = value
    return differing


def remedies(plan: Plan, lengths: Lengths) -> list[Proposal]:
    """Return proposals for a run that does not fit its hardware, each with one change that makes the run fit."""
    found = []
    for changes in _single_changes(plan):
        config = with_changes(plan.config, changes)
        if not _keeps_rules(config):
            continue
        hardware = replace(plan.hardware, num_nodes=config.trainer.num_nodes)
        better = make_plan(config, hardware, lengths, plan.shape)
        if better.fits:
            found.append(Proposal(better, _changes_that_differ(plan.config, changes)))
    return found


def advice_to_fit(plan: Plan, lengths: Lengths = ASSUMED) -> str:
    """Return what would make a run fit its hardware, as text for an error message.

    Single changes of settings come first, else the fastest parallel layout of the given GPUs, else one of more nodes.
    """
    found = remedies(plan, lengths) or propose_layouts(plan.config, plan.hardware, lengths, plan.shape, 1)
    if not found:
        more = fewest_nodes(plan, lengths)
        if more is None:
            return f"nothing fits on up to {_MOST_NODES} nodes of this kind"
        found = [more]
    return "what would fit: " + "; or ".join(proposal.overrides for proposal in found)


def _single_changes(plan: Plan) -> Iterator[dict[str, Any]]:
    config = plan.config
    policy, generation = config.policy, config.generation
    yield {"policy.tokens_per_micro_batch": _budgets(config, policy.context_parallel_size)[-1]}
    yield {"policy.recompute": "selective"}
    yield {"policy.recompute": "full"}
    share = _engine_share(plan)
    if share >= LEAST_UTILIZATION:
        yield {"generation.gpu_memory_utilization": share}
    yield {"generation.sleep": "discard"}
    yield {"policy.offload": "none"}
    yield {"policy.offload": "optimizer"}
    yield {"policy.tensor_model_parallel_size": 2 * policy.tensor_model_parallel_size, "policy.sequence_parallel": True}
    yield {"policy.pipeline_model_parallel_size": 2 * policy.pipeline_model_parallel_size}
    yield {"policy.context_parallel_size": 2 * policy.context_parallel_size}
    if plan.shape.moe:
        yield {"policy.expert_model_parallel_size": 2 * policy.expert_model_parallel_size}
    yield {"generation.tensor_parallel_size": 2 * generation.tensor_parallel_size}
    yield {"generation.max_num_seqs": max(1, RunSizes.from_config(config).max_num_seqs // 2)}
    yield {"policy.fp8": "hybrid", "policy.fp8_params": True}
    yield {"trainer.num_nodes": 2 * config.trainer.num_nodes}


def fewest_nodes(plan: Plan, lengths: Lengths) -> Proposal | None:
    """Return the fastest parallel layout on the fewest nodes on which the run fits.

    The number of nodes is doubled up to 512. The result is None when no layout fits.
    """
    nodes = plan.hardware.num_nodes
    while nodes < _MOST_NODES:
        nodes *= 2
        config = with_changes(plan.config, {"trainer.num_nodes": nodes})
        best = propose_layouts(config, replace(plan.hardware, num_nodes=nodes), lengths, plan.shape, 1)
        if best:
            return Proposal(best[0].plan, {"trainer.num_nodes": nodes, **best[0].changes})
    return None
