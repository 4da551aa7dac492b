"""Emulate FP8 training without FP8 hardware: Megatron's parallel linears with Transformer Engine's rounding.

Everything that Transformer Engine would multiply in FP8 is quantised, forward and backward: linear_qkv, linear_proj,
linear_fc1 and linear_fc2, also those of experts and shared experts. Attention, embedding, output layer, norms and
router stay as they are. It saves no time or memory: it measures what a recipe does to log-probs and to training.

It differs from Transformer Engine in two ways. Under full recomputation the gradient's history takes one step for a
micro-batch, in Transformer Engine one for a layer. With virtual pipeline stages a chunk's history advances only with
its own forward passes, in Transformer Engine with those of every chunk.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.tensor_parallel.mappings import (
    gather_from_sequence_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlock, TransformerBlockSubmodules
from torch import Tensor

from nemo_brorl.config.policy import PolicyConfig
from nemo_brorl.policy.adapters.megatron_adapter import ProductOfOwn
from nemo_brorl.policy.cpu.fp8_recipes import (
    AmaxHistory,
    Delayed,
    LinearRecipe,
    Operands,
    ProductPhase,
    Quantised,
    make_recipe,
    product,
)


class ChunkEmulation:
    """State that the emulated linears of one model chunk share: a switch, the phase of a pass, the end of a step."""

    def __init__(self) -> None:
        self.is_on = True
        self.linears: list[EmulatedLinear] = []
        self._is_training_forward = False
        self._first: EmulatedLinear | None = None  # linear that runs first forward, so last backward

    def attach(self, block: TransformerBlock) -> None:
        """Register hooks on a transformer block's forward pass, to know when steps of FP8 scaling start and end."""
        block.register_forward_pre_hook(self._before)
        block.register_forward_hook(self._after)

    def _before(self, block: TransformerBlock, arguments: Any) -> None:
        self._is_training_forward = torch.is_grad_enabled() and self.is_on
        self._first = None

    def _after(self, block: TransformerBlock, arguments: Any, output: Any) -> None:
        if self._is_training_forward:
            histories: list[AmaxHistory] = []
            for recipe in self._delayed():
                histories += [recipe.x, recipe.w]
            self._end_step(histories)
        self._is_training_forward = False

    def enter(self, linear: EmulatedLinear) -> ProductPhase:
        """Return why a linear layer runs its forward product: in a forward, a checkpointed or a recomputed pass.

        Inside a training forward of the transformer block, gradients are off only for checkpointed parts. Outside of
        one, they are on only for recomputation.
        """
        if self._first is None:
            self._first = linear
        if torch.is_grad_enabled() == self._is_training_forward:
            return ProductPhase.FORWARD
        if self._is_training_forward:
            return ProductPhase.CHECKPOINTED
        return ProductPhase.RECOMPUTED

    def leave_backward(self, linear: EmulatedLinear) -> None:
        """End the gradients' step of delayed FP8 scaling if this linear layer is the last one in the backward pass."""
        # The first linear to run forward is the last to run backward, so all gradients of the pass are recorded.
        if linear is self._first:
            self._end_step([recipe.g for recipe in self._delayed()])

    def _delayed(self) -> list[Delayed]:
        recipes = [linear.recipe for linear in self.linears]
        return [recipe for recipe in recipes if isinstance(recipe, Delayed)]

    @staticmethod
    def _end_step(histories: Sequence[AmaxHistory]) -> None:
        """End one step of delayed FP8 scaling in the given amax histories.

        Collective over tensor-, context- and data-parallel ranks. Megatron makes these ranks the amax reduction group
        of Transformer Engine.
        """
        if not histories:
            return
        group = parallel_state.get_amax_reduction_group(with_context_parallel=True)
        # One collective serves all linears of the chunk, because each message costs more than its numbers.
        amaxes = torch.stack([history.amaxes[0] for history in histories])
        dist.all_reduce(amaxes, dist.ReduceOp.MAX, group=group)
        for history, amax in zip(histories, amaxes, strict=True):
            history.end_step(amax)


class EmulatedLinear(ProductOfOwn):
    """Base of both kinds of emulated linear. It takes `policy` and `chunk` besides Megatron's own arguments."""

    recipe: LinearRecipe
    chunk: ChunkEmulation

    def __init__(self, *args: Any, policy: PolicyConfig, chunk: ChunkEmulation, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recipe = make_recipe(policy)
        self.chunk = chunk
        chunk.linears.append(self)

    def get_extra_state(self) -> Any:
        """Return the linear layer's amax history of delayed FP8 scaling.

        A checkpoint stores it as one object per layer.
        """
        return self.recipe.extra_state()

    def set_extra_state(self, state: Any) -> None:
        self.recipe.load_extra_state(state)

    def has_own_product(self) -> bool:
        return self.chunk.is_on

    def product(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        group: Any,
        is_gathered: bool,
    ) -> Tensor:
        # Inside the autograd function's forward gradients are always off, so the phase is determined here.
        phase = self.chunk.enter(self)
        return _Fp8Linear.apply(x, weight, bias, self, phase, group, is_gathered)


class EmulatedColumnParallelLinear(EmulatedLinear, ColumnParallelLinear):
    """An emulated linear whose output features are split over tensor-parallel ranks."""


class EmulatedRowParallelLinear(EmulatedLinear, RowParallelLinear):
    """An emulated linear whose input features are split over tensor-parallel ranks."""


class _Fp8Linear(torch.autograd.Function):
    """Autograd function from x [..., in] and weight [out, in] to [..., out], with its three products in FP8.

    `group` are the tensor-parallel ranks that share the input. The input's gradient is summed over them. Under sequence
    parallelism the input is gathered and its gradient scattered instead.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        linear: EmulatedLinear,
        phase: ProductPhase,
        group: Any,
        is_gathered: bool,
    ) -> Tensor:
        whole = gather_from_sequence_parallel_region(x, group=group) if is_gathered else x
        rows = whole.flatten(0, -2)
        operands, quantised_weight = linear.recipe.inputs(rows, weight, phase)
        ctx.linear = linear
        ctx.group = group
        ctx.is_gathered = is_gathered
        ctx.has_bias = bias is not None
        ctx.shape = whole.shape
        ctx.dtype = x.dtype
        ctx.weight_dtype = weight.dtype
        _save(ctx, operands.by_column, quantised_weight)
        y = product(operands.by_row, quantised_weight.transposed(), x.dtype)
        leading = whole.shape[:-1]
        y = y.view(*leading, weight.size(0))
        if bias is None:
            return y
        return y + bias

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = _saved(ctx)
        flat = grad.flatten(0, -2)
        operands: Operands = ctx.linear.recipe.gradient(flat)
        dx = None
        dw = None
        bias_grad = None
        if ctx.needs_input_grad[0]:
            dx = product(operands.by_row, weight, ctx.dtype).view(ctx.shape)
            if ctx.is_gathered:
                dx = reduce_scatter_to_sequence_parallel_region(dx, ctx.group)
            elif ctx.group is not None:
                dist.all_reduce(dx, group=ctx.group)
        if ctx.needs_input_grad[1]:
            dw = product(operands.by_column.transposed(), x, ctx.weight_dtype)
        # As in Transformer Engine, the bias gets the gradient from before quantising.
        if ctx.has_bias:
            bias_grad = flat.sum(0)
        ctx.linear.chunk.leave_backward(ctx.linear)
        return dx, dw, bias_grad, None, None, None, None


def _save(ctx: Any, x: Quantised, weight: Quantised) -> None:
    ctx.save_for_backward(x.values, x.factor, weight.values, weight.factor)


def _saved(ctx: Any) -> tuple[Quantised, Quantised]:
    x_values, x_factor, weight_values, weight_factor = ctx.saved_tensors
    return Quantised(x_values, x_factor), Quantised(weight_values, weight_factor)


def emulated_layers(
    layers: TransformerBlockSubmodules,
    policy: PolicyConfig,
    num_layers: int,
    first_layer: int,
) -> TransformerBlockSubmodules:
    """Return the layers of a model chunk, with FP8 emulated in the linear layers of those that compute in FP8.

    `first_layer` is the number of the model's layers before this chunk.
    """
    chunk = ChunkEmulation()
    specs = []
    for layer, spec in enumerate(layers.layer_specs, start=first_layer):
        if not is_bf16_layer(policy, layer, num_layers):
            spec = _emulated(spec, policy, chunk)
        specs.append(spec)
    return dataclasses.replace(layers, layer_specs=specs)


def is_bf16_layer(policy: PolicyConfig, layer: int, num_layers: int) -> bool:
    """Return whether a transformer layer, counted from 0 over all pipeline stages, computes in bf16 instead of FP8."""
    return layer < policy.fp8_bf16_first_layers or layer >= num_layers - policy.fp8_bf16_last_layers


def _emulated(part: Any, policy: PolicyConfig, chunk: ChunkEmulation) -> Any:
    """Return a part of a Megatron layer spec with every linear layer in it replaced by one that emulates FP8."""
    module = part.module if isinstance(part, ModuleSpec) else part
    if isinstance(module, type) and module in _EMULATED:
        params = {"policy": policy, "chunk": chunk}
        return ModuleSpec(module=_EMULATED[module], params=params)
    if isinstance(part, ModuleSpec) and dataclasses.is_dataclass(part.submodules):
        submodules: Any = part.submodules
        # All layers of a kind share their spec, so it is copied instead of changed.
        exchanged = {}
        for field in dataclasses.fields(submodules):
            submodule = getattr(submodules, field.name)
            exchanged[field.name] = _emulated(submodule, policy, chunk)
        emulated = dataclasses.replace(submodules, **exchanged)
        return dataclasses.replace(part, submodules=emulated)
    return part


_EMULATED: dict[type, type] = {
    ColumnParallelLinear: EmulatedColumnParallelLinear,
    RowParallelLinear: EmulatedRowParallelLinear,
}


def chunks_of(model: torch.nn.Module) -> list[ChunkEmulation]:
    """Return the state of FP8 emulation in a built model chunk as a list, which is empty without emulation."""
    chunks: list[ChunkEmulation] = []
    for module in model.modules():
        if isinstance(module, EmulatedLinear) and module.chunk not in chunks:
            chunks.append(module.chunk)
    return chunks


def histories(model: torch.nn.Module) -> set[str]:
    """Return the names of the FP8 amax histories in a model's state dict.

    The histories are plain numbers, which no layer unpickles.
    """
    names = set()
    for name, module in model.named_modules():
        if isinstance(module, EmulatedLinear):
            names.add(f"{name}._extra_state")
    return names


def follow_forwards(model: Any) -> None:
    """Register the FP8 emulation of a built model chunk, if it has one, as hooks on the chunk's forward passes."""
    for chunk in chunks_of(model):
        chunk.attach(model.decoder)
