"""How many ranks and who does what, from the config alone: no torch here, so the driver can ask before any rank starts."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.errors import ConfigError


@dataclass(frozen=True)
class ParallelLayout:
    """Degrees of parallelism. Ranks are ordered as Megatron does by default: tensor fastest, then context, data, pipeline.
    Expert parallelism takes its ranks from context and data."""

    tensor: int
    pipeline: int
    data: int
    context: int = 1
    expert: int = 1
    virtual_pipeline: int | None = None  # model chunks per pipeline stage; None: one
    sequence_parallel: bool = False
    on_gpu: bool = False

    @property
    def world_size(self) -> int:
        return self.tensor * self.context * self.data * self.pipeline

    @property
    def report_rank(self) -> int:
        """The rank that holds the metrics: last pipeline stage, first data-parallel replica, first slice of everything else."""
        return self.tensor * self.context * self.data * (self.pipeline - 1)


def layout_of(config: BroRLConfig) -> ParallelLayout:
    """The layout a config asks for. Raises ConfigError where the degrees do not fit the devices or are not supported."""
    policy = config.policy
    for name in ("context_parallel_size", "expert_model_parallel_size"):
        if getattr(policy, name) != 1:
            raise ConfigError(
                f"policy.{name}={getattr(policy, name)} is not supported: write policy.{name}=1 and use tensor or pipeline parallelism"
            )
    on_gpu = config.trainer.gpus_per_node > 0
    model_parallel = policy.tensor_model_parallel_size * policy.pipeline_model_parallel_size
    return ParallelLayout(
        tensor=policy.tensor_model_parallel_size,
        pipeline=policy.pipeline_model_parallel_size,
        data=_data_parallel_size(config, model_parallel) if on_gpu else policy.data_parallel_size or 1,
        context=policy.context_parallel_size,
        expert=policy.expert_model_parallel_size,
        virtual_pipeline=policy.virtual_pipeline_model_parallel_size,
        sequence_parallel=policy.sequence_parallel and policy.tensor_model_parallel_size > 1,
        on_gpu=on_gpu,
    )


def _data_parallel_size(config: BroRLConfig, model_parallel: int) -> int:
    if config.policy.data_parallel_size is not None:
        return config.policy.data_parallel_size
    num_gpus = config.trainer.num_nodes * config.trainer.gpus_per_node
    if config.generation.placement == "disaggregated":
        num_gpus -= (config.generation.num_engines or 0) * config.generation.tensor_parallel_size
    if num_gpus < model_parallel or num_gpus % model_parallel:
        raise ConfigError(
            f"{num_gpus} GPUs for the policy cannot be cut into replicas of {model_parallel} (tensor x pipeline): change "
            "trainer.num_nodes, policy.tensor_model_parallel_size or policy.pipeline_model_parallel_size"
        )
    return num_gpus // model_parallel
