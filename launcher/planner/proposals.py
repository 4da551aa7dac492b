"""Which layouts of the same GPUs would be faster, and what would make a plan fit: every valid layout is planned, those
that fit ranked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, product
from math import log, prod
from typing import Any

from nemo_brorl.config.derived import num_engines, num_policy_ranks
from nemo_brorl.config.model_rules import misfits, policy_misfits
from nemo_brorl.config.model_shape import ModelShape
from nemo_brorl.config.rules import check_rules
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.launcher.planner.hardware import Hardware
from nemo_brorl.launcher.planner.plan import Plan, make_plan
from nemo_brorl.launcher.planner.workload import ASSUMED, Lengths

Changes = Mapping[str, Any]  # setting to value, as on the command line

MOST_UTILIZATION = 0.9  # of a GPU for an engine; vLLM needs some of it beyond its share
LEAST_UTILIZATION = 0.1
HEADROOM_GIB = 2.0  # of a GPU that a proposal leaves free
_ROUND_TOKENS = 1024
_MOST_NODES = 512


@dataclass(frozen=True)
class Proposal:
    """A plan that fits, and the settings that lead to it."""

    plan: Plan
    changes: Changes

    @property
    def overrides(self) -> str:
        """For the command line."""
        return " ".join(f"{key}={written(value)}" for key, value in self.changes.items())


def written(value: Any) -> str:
    """As Hydra reads it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def with_changes(config: BroRLConfig, changes: Changes) -> BroRLConfig:
    """A copy with these settings."""
    sections: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = value
    return replace(config, **{name: replace(getattr(config, name), **values) for name, values in sections.items()})


def propose(config: BroRLConfig, hardware: Hardware, lengths: Lengths, shape: ModelShape, num: int) -> list[Proposal]:
    """The fastest `num` layouts of the hardware's devices that fit, fastest first; of equals the one that changes
    less."""
    if num == 0:
        return []
    engines = list(_engine_layouts(config, hardware, shape))
    found: list[Proposal] = []
    for layout in _policy_layouts(config, hardware, shape):
        updates = _updates_that_fit(config, hardware, lengths, shape, layout)
        for engine in engines:
            with_shares = (
                _with_largest_share(config, hardware, lengths, shape, {**layout, **update, **engine})
                for update in updates
            )
            found += islice((candidate for candidate in with_shares if candidate is not None), 1)
    return sorted(found, key=_rank)[:num]


def _rank(proposal: Proposal) -> tuple[int, int, int, float]:
    """Fastest first; of those within 2 % of each other, which the estimate cannot tell apart, the one with fewer ranks
    to a replica."""
    plan = proposal.plan
    size = plan.cut.tensor * plan.cut.pipeline * plan.cut.context
    return int(log(plan.time.seconds) / log(1.02)), size * plan.engines.tensor, len(proposal.changes), plan.time.seconds


def _policy_layouts(config: BroRLConfig, hardware: Hardware, shape: ModelShape) -> Iterator[dict[str, Any]]:
    """TP within a node; every product that fills the policy's devices."""
    ranks = num_policy_ranks(config) if config.generation.placement == "disaggregated" else hardware.num_devices
    experts = (
        [size for size in _divisors(shape.moe.num_experts, ranks) if size <= hardware.per_node] if shape.moe else [1]
    )
    contexts = (
        (1,) if shape.moe else (1, 2, 4, 8)
    )  # mixtures with context parallelism are not tested together (docs/policy.md)
    for tensor, pipeline, context, expert in product(_divisors(hardware.per_node, 8), (1, 2, 4, 8), contexts, experts):
        degrees = {
            "policy.tensor_model_parallel_size": tensor,
            "policy.pipeline_model_parallel_size": pipeline,
            "policy.context_parallel_size": context,
            "policy.expert_model_parallel_size": expert,
        }
        if ranks % prod((tensor, pipeline, context)):
            continue
        data = ranks // (tensor * pipeline * context)
        if tensor * context * data % expert:
            continue
        virtual = None if pipeline == 1 else config.policy.virtual_pipeline_model_parallel_size
        changes = degrees | {
            "policy.sequence_parallel": tensor > 1,
            "policy.virtual_pipeline_model_parallel_size": virtual,
        }
        if config.policy.data_parallel_size is not None:
            changes["policy.data_parallel_size"] = data
        if not list(policy_misfits(with_changes(config, changes), shape)):
            yield changes


def _divisors(of: int, at_most: int) -> list[int]:
    return [number for number in range(1, min(of, at_most) + 1) if of % number == 0]


def _engine_layouts(config: BroRLConfig, hardware: Hardware, shape: ModelShape) -> Iterator[dict[str, Any]]:
    for tensor in _divisors(hardware.per_node, 8):
        changes: dict[str, Any] = {"generation.tensor_parallel_size": tensor}
        if config.generation.num_engines is not None:
            devices = num_engines(config) * config.generation.tensor_parallel_size
            if devices % tensor:
                continue
            changes["generation.num_engines"] = devices // tensor
        if not list(misfits(with_changes(config, changes), shape)):
            yield changes


def _updates_that_fit(
    config: BroRLConfig, hardware: Hardware, lengths: Lengths, shape: ModelShape, layout: Changes
) -> list[dict[str, Any]]:
    """Settings with which the policy alone has room to learn, those that compute least first."""
    found: list[dict[str, Any]] = []
    for recompute, tokens in product(
        (None, "selective", "full"), _budgets(config, layout["policy.context_parallel_size"])
    ):
        changes = {"policy.recompute": recompute, "policy.tokens_per_micro_batch": tokens}
        plan = make_plan(with_changes(config, {**layout, **changes}), hardware, lengths, shape)
        if plan.devices[0].peak("update", "policy") <= plan.devices[0].capacity_gib - HEADROOM_GIB:
            found.append(changes)
    return found


def _with_largest_share(
    config: BroRLConfig, hardware: Hardware, lengths: Lengths, shape: ModelShape, changes: dict[str, Any]
) -> Proposal | None:
    """With the largest share of the GPU for engines that the policy leaves; None: it leaves too little."""
    share = _engine_share(make_plan(with_changes(config, changes), hardware, lengths, shape))
    if share < LEAST_UTILIZATION:
        return None
    changes = {**changes, "generation.gpu_memory_utilization": share}
    changed = with_changes(config, changes)
    plan = make_plan(changed, hardware, lengths, shape)
    return Proposal(plan, _that_differ(config, changes)) if plan.fits and _keeps_rules(changed) else None


def _engine_share(plan: Plan) -> float:
    """The largest share of a GPU, in hundredths, that engines can have beside the policy before it is offloaded."""
    memory = plan.devices[0 if len(plan.devices) == 1 else 1]
    mine = max(plan.engine.weights_gib + plan.engine.working_gib, plan.engine.share_gib)
    moment = "start" if len(plan.devices) == 1 else "generate"
    free = memory.capacity_gib - HEADROOM_GIB - (memory.peak(moment) - mine)
    return min(MOST_UTILIZATION, int(100 * free / memory.capacity_gib) / 100)


def _budgets(config: BroRLConfig, context: int) -> list[int]:
    """Sizes of micro-batches to try, largest first: as configured, and as small as the longest sequence allows."""
    longest = config.data.max_prompt_tokens + config.rollouts.max_response_tokens
    least = -(-longest // context)
    least = -(-least // _ROUND_TOKENS) * _ROUND_TOKENS if least > _ROUND_TOKENS else least
    given = config.policy.tokens_per_micro_batch
    return sorted({max(given, least), least}, reverse=True)


def _keeps_rules(config: BroRLConfig) -> bool:
    try:
        check_rules(config)
    except ConfigError:
        return False
    return True


def _that_differ(config: BroRLConfig, changes: Changes) -> dict[str, Any]:
    """Those that are not the config's already."""
    differing = {}
    for key, value in changes.items():
        section, name = key.split(".")
        if getattr(getattr(config, section), name) != value:
            differing[key] = value
    return differing


def remedies(plan: Plan, lengths: Lengths) -> list[Proposal]:
    """Single changes that make a plan fit which does not."""
    found = []
    for changes in _single_changes(plan):
        config = with_changes(plan.config, changes)
        if not _keeps_rules(config):
            continue
        hardware = replace(plan.hardware, num_nodes=config.trainer.num_nodes)
        better = make_plan(config, hardware, lengths, plan.shape)
        if better.fits:
            found.append(Proposal(better, _that_differ(plan.config, changes)))
    return found


def advice(plan: Plan, lengths: Lengths = ASSUMED) -> str:
    """What would make a plan fit, for an error message: single changes, else the fastest layout of these devices, else
    of more."""
    found = remedies(plan, lengths) or propose(plan.config, plan.hardware, lengths, plan.shape, 1)
    if not found:
        more = fewest_nodes(plan, lengths)
        found = [more] if more else []
    return (
        "what would fit: " + "; or ".join(one.overrides for one in found)
        if found
        else "nothing fits on up to 512 nodes of this kind"
    )


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
    yield {"generation.max_num_seqs": max(1, generation.max_num_seqs // 2)}
    yield {"policy.fp8": "hybrid", "policy.fp8_params": True}
    yield {"trainer.num_nodes": 2 * config.trainer.num_nodes}


def fewest_nodes(plan: Plan, lengths: Lengths) -> Proposal | None:
    """The least power-of-two multiple of the nodes on which some layout fits, with the fastest there; None: not up to
    512 nodes."""
    nodes = plan.hardware.num_nodes
    while nodes < _MOST_NODES:
        nodes *= 2
        config = with_changes(plan.config, {"trainer.num_nodes": nodes})
        best = propose(config, replace(plan.hardware, num_nodes=nodes), lengths, plan.shape, 1)
        if best:
            return Proposal(best[0].plan, {"trainer.num_nodes": nodes, **best[0].changes})
    return None
