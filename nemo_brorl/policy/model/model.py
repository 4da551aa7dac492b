"""Build the model of one rank: Megatron's GPTModel, which reads packed rows and returns scores of the response tokens.

On GPUs its layers are Transformer Engine's modules. On CPU they are Megatron's own, with our `RMSNorm`.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules, get_transformer_layer_offset
from torch import Tensor

from nemo_brorl.config.parallel_layout import ParallelLayout
from nemo_brorl.config.policy import PolicyConfig
from nemo_brorl.core.model_shape import ModelShape, Multipliers, Rope
from nemo_brorl.policy.adapters.megatron_adapter import ScoringModel
from nemo_brorl.policy.cpu.fp8_emulation import emulated_layers, follow_forwards
from nemo_brorl.policy.cpu.rms_norm import RMSNorm
from nemo_brorl.policy.model.attention import PackedAttention
from nemo_brorl.policy.model.family_layers import JointNorm, ResidualAdd
from nemo_brorl.policy.model.log_probs import take_rows, token_scores, vocab_slice
from nemo_brorl.policy.model.moe import BalancedRouter, moe_settings, prepare_experts
from nemo_brorl.policy.model.precision import precision_settings, sum_gradients_in_buffers
from nemo_brorl.policy.model.rotary import PackedRotary
from nemo_brorl.policy.model.router_replay import RouterReplay, add_router_replay
from nemo_brorl.policy.rows.packed_rows import Packing

_RECOMPUTE: dict[str | None, dict[str, Any]] = {
    None: {},
    # Megatron would recompute the attention. Of that a flash kernel keeps little more than its output.
    "selective": {"recompute_granularity": "selective", "recompute_modules": ["mlp", "moe"]},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


class PolicyModel(ScoringModel):
    """A GPTModel whose last stage returns `log_probs.TokenScores` [3, n] instead of logits [T, V].

    Call it as `model(token_ids [1, T], positions [1, T], None, packed_seq_params=packing)`.
    """

    def __init__(
        self,
        *args: Any,
        true_vocab_size: int,
        log_prob_chunk: int,
        rope: Rope,
        multipliers: Multipliers,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, position_embedding_type="rope", rotary_base=rope.base, **kwargs)
        self.router_replays: list[RouterReplay] = []  # empty: every router chooses experts itself
        self.true_vocab_size = true_vocab_size
        self.log_prob_chunk = log_prob_chunk
        self.logits_factor = multipliers.logits
        if self.pre_process and multipliers.embedding != 1.0:
            self.embedding.register_forward_hook(lambda _, inputs, output: output * multipliers.embedding)
        self.rotary_pos_emb = PackedRotary(
            kv_channels=self.config.kv_channels,
            rope=rope,
            use_cpu_initialization=self.config.use_cpu_initialization,
            cp_group=self.pg_collection.cp,
            dtype=self.config.params_dtype,
        )

    def forward(
        self,
        *args: Any,
        packed_seq_params: Packing,
        **kwargs: Any,
    ) -> Tensor:
        """Run Megatron's GPTModel on a packed row, after telling each MoE router which experts to choose."""
        routes = packed_seq_params.routes
        if self.router_replays and routes is not None:
            assert packed_seq_params.positions is not None, "a packing to run the model on has positions"
            routes = routes.to(packed_seq_params.positions.device)
        for replay in self.router_replays:
            replay.follow(routes, self.training)
        return super().forward(*args, packed_seq_params=packed_seq_params, **kwargs)

    def score(self, hidden_states: Tensor, packing: Packing) -> Tensor:
        """Return log-prob, entropy and collision mass [3, n] of n tokens from the last layer's hidden states [T, 1, h].

        Under sequence parallelism every tensor-parallel rank has only its share of the T tokens.
        """
        if self.config.sequence_parallel:
            hidden_states = gather_from_sequence_parallel_region(hidden_states, tensor_parallel_output_grad=False)
        group = parallel_state.get_tensor_model_parallel_group()
        rows = take_rows(hidden_states.squeeze(1), packing.source_rows)
        if self.share_embeddings_and_output_weights:
            weight = self.shared_embedding_or_output_weight()
        else:
            weight = self.output_layer.weight
        return token_scores(
            copy_to_tensor_model_parallel_region(rows),
            weight,
            packing.targets,
            vocab_slice(self.true_vocab_size, weight.size(0), group),
            packing.temperature / self.logits_factor,
            self.log_prob_chunk,
        )


def transformer_config(
    policy: PolicyConfig,
    shape: ModelShape,
    layout: ParallelLayout,
) -> TransformerConfig:
    """Return Megatron's TransformerConfig for the policy's settings, the model's shape and the parallel layout.

    Fused kernels are left to Transformer Engine. On CPU all fused kernels are off except SwiGLU.
    """
    return TransformerConfig(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_heads,
        num_query_groups=shape.num_key_value_heads,
        kv_channels=shape.head_size,
        softmax_scale=shape.attention_scale,
        ffn_hidden_size=shape.ffn_size,
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=layout.virtual_pipeline,
        context_parallel_size=layout.context,
        sequence_parallel=layout.sequence_parallel,
        # Rows differ in length, see `pipeline._row_length`.
        variable_seq_lengths=layout.pipeline > 1 and layout.virtual_pipeline is None,
        # Batched communication silently swaps two messages to one rank, over Gloo and with interleaved stages.
        batch_p2p_comm=layout.on_gpu and layout.virtual_pipeline is None,
        normalization="RMSNorm",
        layernorm_epsilon=shape.norm_epsilon,
        qk_layernorm=shape.has_qk_norm,
        no_rope_freq=[int(does_not_rotate) for does_not_rotate in shape.without_rope] or None,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=shape.has_qkv_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=not layout.on_gpu,
        masked_softmax_fusion=False,
        bias_activation_fusion=True,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        # Gradients are divided once, by the tokens of the whole mini-batch.
        calculate_per_token_loss=True,
        finalize_model_grads_func=finalize_model_grads,
        **moe_settings(policy.moe, shape, layout),
        **_RECOMPUTE[policy.recompute],
        **precision_settings(policy, layout.on_gpu),
    )


def layer_specs(
    config: TransformerConfig,
    shape: ModelShape,
    on_gpu: bool,
    stage: int | None,
) -> TransformerBlockSubmodules:
    """Return Megatron's specs of the layers in one model chunk, with `PackedAttention` as their core attention."""
    if on_gpu:
        # This import needs Transformer Engine.
        from megatron.core.extensions.transformer_engine import TENorm

        norm = TENorm
    else:
        norm = RMSNorm
    is_moe_layer = _is_moe_layer(config)
    kinds = {}
    for is_moe in set(is_moe_layer):
        kinds[is_moe] = _layer_spec(config, on_gpu, is_moe)
        _add_family_parts(kinds[is_moe].submodules, config, shape, norm, on_gpu)
    first = get_transformer_layer_offset(config, vp_stage=stage)
    last = first + get_num_layers_to_build(config, vp_stage=stage)
    specs = [kinds[is_moe] for is_moe in is_moe_layer[first:last]]
    return TransformerBlockSubmodules(layer_specs=specs, layer_norm=norm)


def _is_moe_layer(config: TransformerConfig) -> list[bool]:
    """Return for each layer of the whole model whether it is a mixture of experts.

    `moe_layer_freq` is a list where layers differ.
    """
    if isinstance(config.moe_layer_freq, list):
        return [bool(is_moe) for is_moe in config.moe_layer_freq]
    return [config.num_moe_experts is not None] * config.num_layers


def _layer_spec(config: TransformerConfig, on_gpu: bool, is_moe: bool) -> ModuleSpec:
    num_experts = config.num_moe_experts if is_moe else None
    if on_gpu:
        layer = get_gpt_layer_with_transformer_engine_spec(
            num_experts=num_experts, moe_grouped_gemm=config.moe_grouped_gemm, qk_layernorm=config.qk_layernorm
        )
    else:
        layer = get_gpt_layer_local_spec(
            num_experts=num_experts, qk_layernorm=config.qk_layernorm, normalization="RMSNorm"
        )
        layer.submodules.input_layernorm = RMSNorm
        layer.submodules.pre_mlp_layernorm = RMSNorm
        if config.qk_layernorm:
            attention = layer.submodules.self_attention.submodules
            attention.q_layernorm = RMSNorm
            attention.k_layernorm = RMSNorm
    layer.submodules.self_attention.submodules.core_attention = PackedAttention
    if is_moe:
        layer.submodules.mlp.submodules.router = BalancedRouter
    return layer


def _add_family_parts(
    layer: TransformerLayerSubmodules,
    config: TransformerConfig,
    shape: ModelShape,
    norm: type,
    on_gpu: bool,
) -> None:
    """Give a layer's spec the norms and factors of its model family that Megatron's specs have not."""
    attention, mlp, norms = layer.self_attention.submodules, layer.mlp.submodules, shape.norms
    if not norms.before_attention:
        layer.input_layernorm = layer.pre_mlp_layernorm = IdentityOp
        if on_gpu:
            # Transformer Engine's linears have the norms in them.
            from megatron.core.extensions.transformer_engine import TEColumnParallelLinear

            attention.linear_qkv = mlp.linear_fc1 = TEColumnParallelLinear
    if shape.has_joint_qk_norm:
        attention.q_layernorm = ModuleSpec(JointNorm, {"num_heads": shape.num_heads})
        attention.k_layernorm = ModuleSpec(JointNorm, {"num_heads": shape.num_key_value_heads})
    factor = shape.multipliers.residual
    if norms.after_attention or factor != 1.0:
        parts: dict[str, Any] = {"config": config, "factor": factor}
        layer.self_attn_bda = ModuleSpec(ResidualAdd, parts | {"norm": norm if norms.after_attention else None})
        layer.mlp_bda = ModuleSpec(ResidualAdd, parts | {"norm": norm if norms.after_mlp else None})


def build_model(
    policy: PolicyConfig,
    shape: ModelShape,
    layout: ParallelLayout,
) -> list[PolicyModel]:
    """Return this rank's model chunks with random weights: one, or one for each virtual pipeline stage.

    The weights are initialised although loaded ones replace them. Only initialisation marks the parameters that
    tensor-parallel ranks split, and the gradient norm depends on these marks.
    """
    config = transformer_config(policy, shape, layout)
    stages: list[int | None] = [None]
    if layout.virtual_pipeline:
        stages = list(range(layout.virtual_pipeline))
    models = [_build_chunk(policy, shape, layout, config, stage) for stage in stages]
    prepare_experts(policy.moe, models)
    return models


def _build_chunk(
    policy: PolicyConfig,
    shape: ModelShape,
    layout: ParallelLayout,
    config: TransformerConfig,
    stage: int | None,
) -> PolicyModel:
    specs = layer_specs(config, shape, layout.on_gpu, stage)
    if policy.fp8 is not None and not layout.on_gpu:
        first = get_transformer_layer_offset(config, vp_stage=stage)
        specs = emulated_layers(specs, policy, config.num_layers, first)
    model = PolicyModel(
        config,
        specs,
        vocab_size=shape.padded_vocab_size(layout.tensor),
        max_sequence_length=shape.max_positions,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
        share_embeddings_and_output_weights=shape.is_tied,
        parallel_output=True,
        vp_stage=stage,
        true_vocab_size=shape.vocab_size,
        log_prob_chunk=policy.log_prob_chunk_tokens,
        rope=shape.rope,
        multipliers=shape.multipliers,
    )
    # Replays are added last, because each needs its layer's number.
    if policy.moe.router_replay:
        model.router_replays = add_router_replay(model)
    follow_forwards(model)
    sum_gradients_in_buffers(model)
    return model.cuda() if layout.on_gpu else model
