"""Wrap private names of Megatron and Transformer Engine that a rank uses.

The module is written against megatron-core 0.16.1 and Transformer Engine 2.11. No other module of the policy uses such
a name, except `cpu.megatron`, which loads Megatron on a CPU.

    GPTModel._postprocess                           the end of a forward pass, where Megatron would make all logits
    ColumnParallelLinear._forward_impl and Row…'s   the one product of a linear, which the emulation of FP8 replaces
    DistributedOptimizer._get_main_param_and_       master weights and moments of a parameter, wherever they are kept
      optimizer_states
    DistributedDataParallel._make_forward_pre_hook  how Megatron waits for weights that are still being gathered
    TorchDistSaveShardedStrategy._get_save_and_     where a save is planned and no file is written yet
      finalize_callbacks
    filesystem_async._results_queue                 a queue that would otherwise start a process of its own
    a linear's _fp8_workspaces                      quantised weights that Transformer Engine keeps between passes

`tests/unit/policy/test_adapters.py` asserts their signatures, and that this version is the pinned one.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import torch
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from megatron.core.distributed import DistributedDataParallel
from megatron.core.models.gpt.gpt_model import GPTModel
from torch import Tensor

VERSION = "0.16.1"


class ScoringModel(GPTModel):
    """A GPTModel whose last stage returns the result of `score` for the hidden states, instead of logits."""

    def score(self, hidden_states: Tensor, packing: Any) -> Tensor:
        """Return what the model outputs instead of logits, for the last layer's hidden states [T, 1, h] of T tokens.

        Under sequence parallelism every tensor-parallel rank has only its share of the tokens.
        """
        raise NotImplementedError

    def _postprocess(
        self,
        hidden_states: Tensor,
        packed_seq_params: Any,
        **others: Any,
    ) -> Tensor:
        if not self.post_process:
            return hidden_states
        return self.score(hidden_states, packed_seq_params)


class ProductOfOwn:
    """A mixin that replaces the matrix product of one of Megatron's parallel linears.

    It must come before the linear in a class's bases.
    """

    def has_own_product(self) -> bool:
        """Return whether this linear layer currently multiplies by its method `product` instead of Megatron's code."""
        raise NotImplementedError

    def product(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        group: Any,
        is_gathered: bool,
    ) -> Tensor:
        """Return a linear layer's output [..., out] for the input x [..., in] and the weight [out, in].

        `group` are the tensor-parallel ranks that share the input, None where none do. `is_gathered` means that
        sequence parallelism has split the input over these ranks.
        """
        raise NotImplementedError

    def _forward_impl(
        self,
        input: Tensor,
        weight: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        if not self.has_own_product():
            return super()._forward_impl(input, weight, *args, **kwargs)  # type: ignore[misc]
        is_gathered = kwargs["sequence_parallel"]
        is_shared = is_gathered or kwargs["allreduce_dgrad"]
        group = kwargs["tp_group"] if is_shared else None
        return self.product(input, weight, kwargs["bias"], group, is_gathered)


class SavePlan(TorchDistSaveShardedStrategy):
    """Megatron's writer of sharded tensors, stopped once every rank knows what it will write.

    `async_save` returns its writer and the metadata of all files.
    """

    def _get_save_and_finalize_callbacks(self, writer: Any, save_state_dict_ret: Any) -> Any:
        return writer, save_state_dict_ret[1]


def keep_results_in_process() -> None:
    """Make Megatron's checkpoint writer return its results on a queue inside this process.

    By default the writer starts a manager process for the queue.
    """
    filesystem_async._results_queue = queue.Queue()


def optimizer_states(part: Any, param: Tensor) -> dict[str, Tensor]:
    """Return this rank's shard of the optimizer state of a parameter: master weights and Adam's moments, by name."""
    return part._get_main_param_and_optimizer_states(param)


def weight_gatherer(chunk: DistributedDataParallel) -> Callable[[torch.nn.Module], None]:
    """Return a function that waits until the weights of a module have been gathered from all data-parallel ranks."""
    return chunk._make_forward_pre_hook()


def forget_quantised_weights(model: torch.nn.Module) -> None:
    """Drop the quantised weights that Transformer Engine keeps between micro-batches, two bytes a parameter.

    The next forward pass quantises the weights again, as after every optimizer step.
    """
    for module in model.modules():
        if hasattr(module, "_fp8_workspaces"):
            module._fp8_workspaces.clear()
