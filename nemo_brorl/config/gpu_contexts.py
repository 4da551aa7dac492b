"""Count what the processes of a GPU take of it beside tensors of policy and engine: contexts, NCCL's buffers, weights
on their way.
"""

from __future__ import annotations

from nemo_brorl.config.parallel_layout import ParallelLayout
from nemo_brorl.config.rank_memory import NUMBER_BYTES
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.machine import GIB
from nemo_brorl.core.model_shape import ModelShape

# Assumed, GiB: what processes take of a GPU beside tensors. Not measured by this project.
POLICY_CONTEXT = 1.2  # CUDA context, cuBLAS and Transformer Engine workspaces
COMMUNICATOR = 0.25  # buffers of one NCCL communicator
ENGINE_CONTEXT = 0.8  # CUDA context and workspaces of an engine, beyond its share
CUDA_GRAPHS = 1.0  # of an engine, beyond its share, unless generation.enforce_eager


def bucket_gib(config: BroRLConfig, shape: ModelShape) -> float:
    """GiB of buckets that are alive while weights travel. vLLM puts a mixture's layer together when it has all of its
    experts, and holds their buckets until then."""
    size = 4 * config.generation.weight_bucket_mib / 1024
    if shape.moe is not None:
        numbers = 3 * shape.moe.num_experts * shape.moe.ffn_size * shape.hidden_size
        size += NUMBER_BYTES[config.policy.precision] * numbers / GIB
    return size


def num_communicators(layout: ParallelLayout) -> int:
    """NCCL communicators of a policy rank: the world's and one for each way of cutting that is used."""
    used = (layout.tensor, layout.pipeline, layout.context, layout.expert, layout.data)
    return 1 + sum(degree > 1 for degree in used)


def policy_context_gib(layout: ParallelLayout) -> float:
    """GiB of a policy rank."""
    return POLICY_CONTEXT + COMMUNICATOR * num_communicators(layout)


def engine_context_gib(config: BroRLConfig) -> float:
    """GiB of an engine, beyond its share of the GPU."""
    return ENGINE_CONTEXT if config.generation.enforce_eager else ENGINE_CONTEXT + CUDA_GRAPHS
