"""One rank of the policy on a fake GPU among fake ranks: the real model, gradient buffers, optimizer, update and
pipeline schedule, over tensors that have a size and no numbers.

It cannot show what lies inside kernels (flash attention's backward has sums in fp32), and differs from a card in this:
layers are Megatron's own in place of Transformer Engine's, which keep the same (the input of every norm and product,
what SwiGLU is made of) and have workspaces of their own; experts get equally many tokens, the best case; nothing waits
for another rank, so a message is never in memory twice. `show_gpu` must come before megatron is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FakeWork

from nemo_brorl.types import Int64
from tests.support.live_storages import LiveStorages

aten = torch.ops.aten
_COALESCED = (
    torch.ops.c10d.reduce_scatter_tensor_coalesced_.default,
    torch.ops.c10d.allgather_into_tensor_coalesced_.default,
)
_CUDA = (
    *("current_stream", "default_stream", "stream", "Stream", "Event", "synchronize", "empty_cache", "set_device"),
    *("get_rng_state", "set_rng_state", "default_generators", "_lazy_call", "_lazy_init", "nvtx", "device_count"),
    "is_current_stream_capturing",
)


class FakeValues(LiveStorages):
    """Watches, and answers what depends on numbers: losses and norms are zero, checks hold, and a token
    goes to k experts."""

    experts_chosen = 1.0  # k over the number of experts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten._local_scalar_dense.default:
            return args[0].dtype == torch.bool or 0
        if func is aten.masked_select.default:
            num_chosen = round(args[1].numel() * self.experts_chosen)
            return args[0].new_empty(num_chosen)
        if func is aten._fused_adamw_.default:
            return None
        if func in _COALESCED:
            return FakeWork().boxed()
        return super().__torch_dispatch__(func, types, args, kwargs)


def show_gpu(watch: LiveStorages) -> None:
    """Have torch answer as with one Hopper, whose streams do nothing, and count what it would compile as one kernel."""
    import torch._inductor.utils  # looks at torch.cuda's functions

    from nemo_brorl.policy.cpu.cuda_stand_in import stand_in

    on_cpu = stand_in()
    for name in _CUDA:
        setattr(torch.cuda, name, getattr(on_cpu, name))
    torch.cuda.current_device = lambda: 0
    torch.cuda.manual_seed = lambda seed: None
    torch.cuda.get_device_capability = lambda *arguments: (9, 0)
    torch.nn.Module.cuda = lambda self, *arguments: self  # type: ignore[assignment,method-assign,return-value]
    torch.compile = lambda function, **options: watch.one_kernel(function)  # type: ignore[assignment]
    dist.all_gather_object = _everybody_says


def _everybody_says(answers: list[Any], mine: Any, group: Any = None) -> None:
    answers[:] = [mine] * len(answers)


def prepare_megatron(watch: LiveStorages) -> None:
    """Kernels that Transformer Engine brings, and what looks at numbers."""
    import megatron.core.tensor_parallel.random as random
    from megatron.core import optimizer
    from megatron.core.optimizer import clip_grads, distrib_optimizer
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    from nemo_brorl.policy.cpu.adam import FusedAdam
    from nemo_brorl.policy.cpu.rms_norm import _RMSNorm
    from nemo_brorl.policy.model import log_probs, model
    from nemo_brorl.policy.state import reference

    moe_utils.__dict__.setdefault("te_general_gemm", None)
    optimizer.Adam = distrib_optimizer.Adam = FusedAdam
    optimizer.USING_PYTORCH_OPTIMIZER = False
    distrib_optimizer.HAVE_APEX_OR_TE = True
    clip_grads.l2_norm_impl = lambda *arguments: (torch.ones(1, device="cuda"), None)
    clip_grads.multi_tensor_scale_impl = lambda *arguments: None
    random._get_cuda_rng_state = lambda *arguments, **settings: torch.empty(0)
    random._set_cuda_rng_state = lambda *arguments, **settings: None
    token_dispatcher.MoEAlltoAllTokenDispatcher.preprocess = _spread_evenly
    reference._check_is_plain = lambda param: None
    layer_specs = model.layer_specs
    model.layer_specs = lambda config, shape, on_gpu, stage: _grouped(layer_specs(config, shape, False, stage))
    for name in ("forward", "backward"):
        setattr(_RMSNorm, name, staticmethod(watch.one_kernel(getattr(_RMSNorm, name))))
        scores = log_probs._TokenScores
        setattr(scores, name, staticmethod(watch.of_kind("log-probs", getattr(scores, name))))


def _spread_evenly(dispatcher: Any, routing_map: Tensor) -> Int64:
    """In place of Megatron's `preprocess`: every expert gets as many tokens of every rank."""
    num_sent = routing_map.size(0) * dispatcher.config.moe_router_topk
    num_each = num_sent // dispatcher.num_experts
    num_ranks = dispatcher.ep_size * dispatcher.tp_size
    dispatcher.num_out_tokens = num_sent
    dispatcher.input_splits = [num_sent // dispatcher.ep_size] * dispatcher.ep_size
    dispatcher.output_splits = dispatcher.input_splits
    dispatcher.output_splits_tp = np.full(dispatcher.tp_size, num_sent)
    num_local = dispatcher.num_local_experts
    dispatcher.num_global_tokens_per_local_expert = np.full((num_ranks, num_local), num_each)
    chunks = np.arange(num_ranks * num_local)
    dispatcher.sort_input_by_local_experts = chunks.reshape(-1, num_local).T.ravel()
    dispatcher.restore_output_by_local_experts = chunks.reshape(num_local, -1).T.ravel()
    return np.full(num_local, num_each * num_ranks)


def _grouped(specs: Any) -> Any:
    """Layers whose experts are multiplied together, as Transformer Engine's are."""
    from megatron.core.transformer.mlp import MLPSubmodules
    from megatron.core.transformer.moe.experts import TEGroupedMLP
    from megatron.core.transformer.spec_utils import ModuleSpec

    products = MLPSubmodules(linear_fc1=GroupedProducts, linear_fc2=GroupedProducts)
    for layer in specs.layer_specs:
        parts = layer.submodules.mlp.submodules
        if hasattr(parts, "experts"):
            parts.experts = ModuleSpec(module=TEGroupedMLP, submodules=products)
    return specs


class GroupedProducts(torch.nn.Module):
    """In place of Transformer Engine's GroupedLinear: keeps its input, sums the gradients of its weights in buffers."""

    def __init__(self, num: int, num_in: int, num_out: int, *, config: Any, **settings: Any) -> None:
        super().__init__()
        assert config.expert_tensor_parallel_size == 1, "an expert is whole"
        self.num_out = num_out
        for number in range(num):
            weight = torch.empty(num_out, num_in, dtype=config.params_dtype)
            self.register_parameter(f"weight{number}", torch.nn.Parameter(weight))

    def forward(self, rows: Tensor, tokens_per_expert: Any) -> tuple[Tensor, None]:
        return _Products.apply(rows, self.num_out), None


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, num_out: int) -> Tensor:
        ctx.save_for_backward(rows)
        return rows.new_empty(rows.size(0), num_out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        return torch.empty_like(rows), None


def send_to_nobody(shape: Sequence[int]) -> None:
    """Neighbours in the pipeline send hidden states of this shape."""
    from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator

    def told(*arguments: Any) -> tuple[Sequence[int], Sequence[int]]:
        return shape, shape

    P2PCommunicator._communicate_shapes = told
