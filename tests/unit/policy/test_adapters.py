"""What the policy uses of the insides of Megatron and torch is there, with the arguments that the adapters give it."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from megatron.core.distributed import DistributedDataParallel
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.tensor_parallel.layers import linear_with_grad_accumulation_and_async_allreduce

from nemo_brorl.policy.adapters import megatron_adapter, torch_adapter
from tests.support.source_tree import PACKAGE, ROOT, tree

POLICY = PACKAGE / "policy"
LIBRARIES = ("torch", "megatron", "transformer_engine")
FLASH_ON_CPU = ["query", "key", "value", "dropout_p", "is_causal"]
FLASH_ON_CPU_BACKWARD = ["grad_out", "query", "key", "value", "out", "logsumexp", "dropout_p", "is_causal"]
LENGTHS = ["cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal"]
FLASH_ON_GPU = ["query", "key", "value", *LENGTHS, "return_debug_mask"]
FLASH_ON_GPU_BACKWARD = ["grad_out", "query", "key", "value", "out", "logsumexp", *LENGTHS, "rng_state", "unused"]
ADAM = ["self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "state_steps"]


def arguments(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def positional(operator: Any) -> list[str]:
    return [argument.name for argument in operator._schema.arguments if not argument.kwarg_only]


@pytest.mark.parametrize(
    ("library", "version"), [("megatron-core", megatron_adapter.VERSION), ("torch", torch_adapter.VERSION)]
)
@pytest.mark.parametrize("file", ["cpu.txt", "gpu.txt"])
def test_an_adapter_is_written_against_the_pinned_and_installed_version(library: str, version: str, file: str) -> None:
    assert importlib.metadata.version(library).partition("+")[0] == version
    pinned = re.findall(rf"^{library}==([\d.]+)", (ROOT / "requirements" / file).read_text(), re.MULTILINE)
    assert pinned == [version]


def test_megatrons_private_names_have_the_arguments_that_the_adapter_gives() -> None:
    assert arguments(DistributedOptimizer._get_main_param_and_optimizer_states) == ["self", "model_param"]
    assert arguments(DistributedDataParallel._make_forward_pre_hook) == ["self"]
    callbacks = TorchDistSaveShardedStrategy._get_save_and_finalize_callbacks
    assert arguments(callbacks) == arguments(megatron_adapter.SavePlan._get_save_and_finalize_callbacks)
    assert hasattr(filesystem_async, "_results_queue")
    assert {"hidden_states", "packed_seq_params"} <= set(arguments(GPTModel._postprocess))
    for linear in (ColumnParallelLinear, RowParallelLinear):
        assert arguments(linear._forward_impl) == arguments(megatron_adapter.ProductOfOwn._forward_impl)
    given = arguments(linear_with_grad_accumulation_and_async_allreduce)
    assert {"bias", "sequence_parallel", "allreduce_dgrad", "tp_group"} <= set(given)


def test_torchs_private_operators_have_the_arguments_that_the_kernels_give() -> None:
    assert positional(torch_adapter.flash_on_cpu) == FLASH_ON_CPU
    assert positional(torch_adapter.flash_on_cpu_backward) == FLASH_ON_CPU_BACKWARD
    assert positional(torch_adapter.flash_on_gpu) == FLASH_ON_GPU
    assert positional(torch_adapter.flash_on_gpu_backward) == FLASH_ON_GPU_BACKWARD
    assert positional(torch.ops.aten._fused_adam_.default) == ADAM
    assert positional(torch.ops.aten._fused_adamw_.default) == ADAM
    assert arguments(torch._dynamo.mark_static)[:2] == ["t", "index"]
    assert "max_entries" in arguments(torch.cuda.memory._record_memory_history)
    assert arguments(torch.cuda.memory._dump_snapshot)[0] == "filename"


def private_names(path: Path) -> list[str]:
    """Private names that a module imports from these libraries, or reads below their names."""
    found = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in LIBRARIES:
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            found += [part for part in parts if part.startswith("_")]
        if isinstance(node, ast.Attribute) and ast.unparse(node).partition(".")[0] in LIBRARIES:
            found += [part for part in ast.unparse(node).split(".") if re.match(r"_[a-z]", part)]
    return found


def test_only_the_adapters_use_private_names_of_torch_megatron_and_transformer_engine() -> None:
    users = {path.name for path in POLICY.rglob("*.py") if private_names(path)}
    assert users == {"torch_adapter.py"}  # Megatron's are methods, which no name of a module stands before
