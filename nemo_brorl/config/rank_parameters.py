"""Count the parameters of a policy rank: how the model is cut over ranks, and what one of them holds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.model_shape import ModelShape


@dataclass(frozen=True)
class Cut:
    """How the policy is cut over ranks, and what it keeps."""

    tensor: int = 1
    pipeline: int = 1
    virtual: int = 1
    context: int = 1
    expert: int = 1
    data: int = 1
    has_sequence_parallel: bool = False

    @property
    def expert_tensor(self) -> int:
        """Ranks that share one expert: the tensor-parallel ones where experts are not spread."""
        return self.tensor if self.expert == 1 else 1

    @property
    def sequence_ranks(self) -> int:
        """Ranks that share the tokens of what lies between products."""
        return self.tensor if self.has_sequence_parallel else 1

    @property
    def replicas(self) -> int:
        """Ranks over which the optimizer's state of dense parameters is spread."""
        return self.data * self.context

    @property
    def expert_replicas(self) -> int:
        """The same, of experts' parameters."""
        return max(1, self.tensor * self.context * self.data // (self.expert * self.expert_tensor))


def cut_of(config: BroRLConfig) -> Cut:
    """How the config cuts the policy."""
    policy = config.policy
    return Cut(
        tensor=policy.tensor_model_parallel_size,
        pipeline=policy.pipeline_model_parallel_size,
        virtual=policy.virtual_pipeline_model_parallel_size or 1,
        context=policy.context_parallel_size,
        expert=policy.expert_model_parallel_size,
        data=RunSizes.of(config).data_parallel,
        has_sequence_parallel=policy.sequence_parallel,
    )


@dataclass(frozen=True)
class Parameters:
    """Number of parameters of one rank."""

    dense: int  # replicated over Cut.replicas
    experts: int  # replicated over Cut.expert_replicas
    linear: int  # of both, those of matrix products inside layers, which FP8 concerns

    @property
    def total(self) -> int:
        return self.dense + self.experts


def attention_size(shape: ModelShape) -> int:
    """Parameters of the four projections of a layer, without biases: (2 a d + 2 k d) h."""
    return 2 * shape.hidden_size * (shape.num_heads + shape.num_key_value_heads) * shape.head_size


@lru_cache(maxsize=1024)
def rank_parameters(shape: ModelShape, cut: Cut, stage: int) -> Parameters:
    """Parameters of a rank of a pipeline stage; with interleaved stages, of all its pieces."""
    width, tensor = shape.hidden_size, cut.tensor
    piece_size = shape.num_layers // (cut.pipeline * cut.virtual)
    layers: list[int] = []
    for piece in range(cut.virtual):
        first = (piece * cut.pipeline + stage) * piece_size
        layers += range(first, first + piece_size)
    bias = 0
    if shape.has_qkv_bias:
        bias = (shape.num_heads + 2 * shape.num_key_value_heads) * shape.head_size
    norms = 2 * width
    if shape.has_qk_norm:
        norms += 2 * shape.head_size
    attention = attention_size(shape) // tensor
    dense = experts = linear = 0
    for layer in layers:
        dense += attention + bias // tensor + norms
        linear += attention
        if shape.moe is not None and shape.moe.is_moe_layer[layer]:
            dense += shape.moe.num_experts * width
            mine = 3 * shape.moe.ffn_size * width * shape.moe.num_experts // (cut.expert * cut.expert_tensor)
            experts += mine
            linear += mine
        else:
            mlp = 3 * shape.ffn_size * width // tensor
            dense += mlp
            linear += mlp
    vocabulary = shape.padded_vocab_size(tensor) // tensor * width
    is_first = stage == 0
    if is_first:
        dense += vocabulary
    if stage == cut.pipeline - 1:
        dense += width
        if not (shape.is_tied and is_first):
            dense += vocabulary
    return Parameters(dense, experts, linear)
