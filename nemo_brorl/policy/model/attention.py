"""Megatron's core attention over a packed row, in which the responses of a group may share one copy of their prompt.

`row_layout` says which tokens see which. Backends, chosen by `policy.attention`:

    sdpa   block by block: on CPU around the flash kernel (`attention_cpu`), elsewhere `attention_sdpa`
    flex   one FlexAttention kernel with a block mask, on GPU (`attention_flex`)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nemo_brorl.policy.cpu.attention import attend_on_cpu
from nemo_brorl.policy.model.attention_flex import attend_with_flex
from nemo_brorl.policy.model.attention_sdpa import attend_by_blocks
from nemo_brorl.policy.model.context_parallel import gather_context
from nemo_brorl.policy.model.rotary import rotate
from nemo_brorl.policy.rows.row_layout import Packing


class PackedAttention(torch.nn.Module):
    """Rotates queries and keys, gathers what other context-parallel ranks hold, attends. No parameters, no dropout."""

    def __init__(
        self,
        config: Any,
        layer_number: int,
        *args: Any,
        softmax_scale: float | None = None,
        pg_collection: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        assert config.attention_dropout == 0, "packed attention has no dropout"
        self.scale = config.kv_channels**-0.5 if softmax_scale is None else softmax_scale
        self.context_group = pg_collection.cp if config.context_parallel_size > 1 else None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Packing | None = None,
    ) -> Tensor:
        """query [T, 1, H, D], key and value [T, 1, K, D] to [T, 1, H * D]."""
        packing = packed_seq_params
        assert isinstance(packing, Packing), "the policy's model reads packed rows only"
        assert packing.rotation is not None, "PackedRotary has run before the first layer"
        query, key, value = (
            rotate(query.squeeze(1), packing.rotation),
            rotate(key.squeeze(1), packing.rotation),
            value.squeeze(1),
        )
        context = None
        if self.context_group is not None:
            context = gather_context(key, value, packing, self.context_group)
        by_blocks = attend_on_cpu if query.device.type == "cpu" else attend_by_blocks
        attend = by_blocks if packing.sight is None else attend_with_flex
        return attend(query, key, value, context, packing, self.scale).flatten(1)[:, None]
