"""Private names of Megatron and Transformer Engine that a rank uses, written against megatron-core 0.16.1 and
Transformer Engine 2.11; no other module of the policy has one, but `cpu.megatron`, which loads Megatron on a CPU.

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
    """GPTModel whose last stage returns what `score` makes of the hidden states, in place of logits."""

    def score(self, hidden_states: Tensor, packing: Any) -> Tensor:
        """What the last stage returns for hidden states [T, 1, h], cut over ranks under sequence parallelism."""
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
    """Goes before one of Megatron's parallel linears among the bases of a class: its product is then `product`."""

    def has_own_product(self) -> bool:
        """Whether it is, now; otherwise Megatron's."""
        raise NotImplementedError

    def product(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        group: Any,
        is_gathered: bool,
    ) -> Tensor:
        """x [..., in] with weight [out, in]. `group`: ranks that share the input, None where none do; `is_gathered`: it
        is cut over them."""
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
    """Megatron's way of writing sharded tensors, stopped once every rank knows what it will write: `async_save` returns
    its writer and the metadata of all files."""

    def _get_save_and_finalize_callbacks(self, writer: Any, save_state_dict_ret: Any) -> Any:
        return writer, save_state_dict_ret[1]


def keep_results_in_process() -> None:
    """Have Megatron's writer hand back results on a queue that never leaves this process; by default it starts a
    manager process."""
    filesystem_async._results_queue = queue.Queue()


def optimizer_states(part: Any, param: Tensor) -> dict[str, Tensor]:
    """This rank's shard of a parameter's master weights and moments, by name."""
    return part._get_main_param_and_optimizer_states(param)


def weight_gatherer(chunk: DistributedDataParallel) -> Callable[[torch.nn.Module], None]:
    """A function that waits until a module's weights are gathered."""
    return chunk._make_forward_pre_hook()


def forget_quantised_weights(model: torch.nn.Module) -> None:
    """Forget the quantised weights that Transformer Engine keeps between micro-batches, two bytes a parameter; the next
    pass makes them anew, as it does after every optimizer step."""
    for module in model.modules():
        if hasattr(module, "_fp8_workspaces"):
            module._fp8_workspaces.clear()
