"""Estimate the GPU memory of processes that is neither the policy's nor the engine's tensors.

It is used by contexts, NCCL buffers, and weights in transit.
"""

from __future__ import annotations

from nemo_brorl.config.parallel_layout import ParallelLayout
from nemo_brorl.config.rank_memory import NUMBER_BYTES
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.machine import GIB
from nemo_brorl.core.model_shape import ModelShape

# GiB of GPU memory that processes use in addition to tensors. These are assumptions, not measured by this project.
POLICY_CONTEXT = 1.2  # CUDA context, cuBLAS and Transformer Engine workspaces
COMMUNICATOR = 0.25  # buffers of one NCCL communicator
ENGINE_CONTEXT = 0.8  # CUDA context and workspaces of an engine, beyond its share of the GPU
CUDA_GRAPHS = 1.0  # CUDA graphs of an engine, beyond its share, unless generation.enforce_eager


def bucket_gib(config: BroRLConfig, shape: ModelShape) -> float:
    """Return the GiB of weight buckets that exist at once during a weight sync.

    vLLM loads a mixture-of-experts layer only when it has received all experts of the layer, and holds their buckets
    until then.
    """
    size = 4 * config.generation.weight_bucket_mib / 1024
    if shape.moe is not None:
        numbers = 3 * shape.moe.num_experts * shape.moe.ffn_size * shape.hidden_size
        size += NUMBER_BYTES[config.policy.precision] * numbers / GIB
    return size


def num_communicators(layout: ParallelLayout) -> int:
    """Return the number of NCCL communicators of a policy rank.

    One connects all ranks, and there is one for each kind of parallelism in use.
    """
    used = (layout.tensor, layout.pipeline, layout.context, layout.expert, layout.data)
    return 1 + sum(degree > 1 for degree in used)


def policy_context_gib(layout: ParallelLayout) -> float:
    """Return the GiB of GPU memory that a policy rank uses in addition to its tensors."""
    return POLICY_CONTEXT + COMMUNICATOR * num_communicators(layout)


def engine_context_gib(config: BroRLConfig) -> float:
    """Return the GiB of GPU memory that an engine uses beyond the share of GPU memory that it is given."""
    return ENGINE_CONTEXT if config.generation.enforce_eager else ENGINE_CONTEXT + CUDA_GRAPHS
