"""Describe how the policy's model is split over ranks."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig


@dataclass(frozen=True)
class ParallelLayout:
    """Degrees of parallelism of the policy.

    Ranks have Megatron's default order: tensor fastest, then context, data, pipeline. Expert parallelism takes its
    ranks from tensor, context and data, in this order.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    virtual_pipeline: int | None = None  # model chunks per pipeline stage; None: one
    sequence_parallel: bool = False
    on_gpu: bool = False

    @property
    def world_size(self) -> int:
        return self.tensor * self.context * self.data * self.pipeline

    @property
    def chunks(self) -> int:
        """Number of model chunks (virtual pipeline stages) that a pipeline stage holds."""
        return self.virtual_pipeline or 1

    @property
    def expert_tensor(self) -> int:
        """Number of ranks that share one expert.

        Under expert parallelism experts stay whole, because Gloo cannot gather the uneven shards. Without it they must
        be shared, because Megatron reduces the gradients of such experts as if they were.
        """
        return 1 if self.expert > 1 else self.tensor

    @property
    def sequence_ranks(self) -> int:
        """Number of ranks over which sequence parallelism splits activations; 1: it is off."""
        return self.tensor if self.sequence_parallel else 1

    @property
    def replicas(self) -> int:
        """Number of ranks over which the optimizer state of dense parameters is sharded."""
        return self.data * self.context

    @property
    def expert_replicas(self) -> int:
        """Number of ranks over which the optimizer state of experts' parameters is sharded."""
        return max(1, self.tensor * self.context * self.data // (self.expert * self.expert_tensor))

    @property
    def report_rank(self) -> int:
        """Rank that holds the metrics: last pipeline stage, first rank of every other kind of parallelism."""
        return self.tensor * self.context * self.data * (self.pipeline - 1)


def layout_of(config: BroRLConfig) -> ParallelLayout:
    """Return the policy's parallel layout from a run's configuration."""
    policy = config.policy
    return ParallelLayout(
        tensor=policy.tensor_model_parallel_size,
        pipeline=policy.pipeline_model_parallel_size,
        data=RunSizes.from_config(config).data_parallel,
        context=policy.context_parallel_size,
        expert=policy.expert_model_parallel_size,
        virtual_pipeline=policy.virtual_pipeline_model_parallel_size,
        sequence_parallel=policy.sequence_parallel and policy.tensor_model_parallel_size > 1,
        on_gpu=config.trainer.gpus_per_node > 0,
    )
