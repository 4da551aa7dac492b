"""Build gradient buffers and the optimizer with Megatron, and guard steps against non-finite values.

The parts are Megatron's DistributedDataParallel and its distributed Adam.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from torch import Tensor

from nemo_brorl.config.policy import OptimConfig
from nemo_brorl.policy.adapters.megatron_adapter import weight_gatherer
from nemo_brorl.policy.model.model import PolicyModel
from nemo_brorl.policy.process.device import Device
from nemo_brorl.policy.state.optimizer_state import copy_state_once


def wrap_model(
    models: Sequence[PolicyModel],
    overlap_gradients: bool = False,
    overlap_weights: bool = False,
) -> list[DistributedDataParallel]:
    """Return every model chunk wrapped with fp32 gradient buffers, which are reduced over the data-parallel ranks.

    The buffers are sharded for the optimizer. With `overlap_gradients` a bucket of gradients is reduced during the last
    micro-batch's backward pass. With `overlap_weights` as well, a bucket of weights is gathered during the next
    mini-batch's forward pass. Then call `gather_weights` after optimizer steps, before anything but a forward pass
    reads the weights.
    """
    settings = DistributedDataParallelConfig(
        use_distributed_optimizer=True,
        grad_reduce_in_fp32=True,
        fp8_param_gather=models[0].config.fp8_param,
        overlap_grad_reduce=overlap_gradients,
        overlap_param_gather=overlap_weights,
    )
    chunks = []
    for index, model in enumerate(models):
        chunk = DistributedDataParallel(model.config, settings, model, disable_bucketing=index > 0)
        _count_padding_in(chunk)
        _skip_exchange_with_oneself(chunk)
        if overlap_weights:
            _gather_when_needed(chunk)
        chunks.append(chunk)
    if overlap_gradients:
        _reduce_after_last_micro_batch(chunks)
    return chunks


def _reduce_after_last_micro_batch(chunks: Sequence[DistributedDataParallel]) -> None:
    """Make model chunks reduce gradients only after the last micro-batch instead of after each.

    Megatron's pipeline schedules read this from the config, which all chunks share. Interleaved schedules need a list.
    """
    config = chunks[0].config
    config.no_sync_func = chunks[0].no_sync
    if len(chunks) > 1:
        config.no_sync_func = [chunk.no_sync for chunk in chunks]


def _gather_when_needed(chunk: DistributedDataParallel) -> None:
    """Make the model's final norm wait for the output layer's gathered weights as well as its own.

    Megatron waits for a module's weights when the module is called. The output layer is never called
    (`PolicyModel.score` uses its weight).
    """
    for group in _groups(chunk):
        # All ranks have read the same weights, so there is nothing to gather yet.
        group.param_gather_dispatched = True
    model = chunk.module
    if model.post_process:
        wait_for = weight_gatherer(chunk)
        model.decoder.final_layernorm.register_forward_pre_hook(lambda *unused: wait_for(model.output_layer))


def gather_weights(chunks: Sequence[DistributedDataParallel]) -> None:
    """Wait until all data-parallel replicas have the weights of the last optimizer step.

    Does nothing unless weight gathers overlap with forward passes. Collective.
    """
    for chunk in chunks:
        if chunk.ddp_config.overlap_param_gather:
            chunk.start_param_sync(force_sync=True)


def _groups(chunk: DistributedDataParallel) -> list[Any]:
    """Return Megatron's groups of gradient buckets, each of which ranks exchange together."""
    return [*chunk.bucket_groups, *chunk.expert_parallel_bucket_groups]


def _count_padding_in(chunk: DistributedDataParallel) -> None:
    """Count padding as part of every gradient bucket, to work around a bug of Megatron 0.16.1.

    Megatron joins the buckets of optimizer state without their padding, then cuts parameters out at their offsets with
    padding. So a checkpoint is shifted, with only a warning, wherever a bucket before the last one is padded. That
    happens under pipeline parallelism with tied embeddings, when sizes are not multiples of 128. With counted padding
    both steps agree.
    """
    for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
        buffer.numel_unpadded = buffer.numel
        for bucket in buffer.buckets:
            bucket.numel_unpadded = bucket.grad_data.numel()


def _skip_exchange_with_oneself(chunk: DistributedDataParallel) -> None:
    """Skip gradient and weight exchange in groups of one rank.

    Gloo would copy gradients and then parameters onto themselves, which takes 2 % of a small step.
    """
    for group in _groups(chunk):
        if group.intra_distributed_optimizer_instance_size == 1:
            for bucket in group.buckets:
                assert bucket.gradient_scaling_factor == 1.0, "reducing would also scale"
            group.start_grad_sync = _do_nothing
            group.finish_grad_sync = _do_nothing
            group.start_param_sync = _do_nothing


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    return None


def build_optimizer(chunks: list[DistributedDataParallel], config: OptimConfig) -> MegatronOptimizer:
    """Return Megatron's Adam with decoupled weight decay (none on biases and norms).

    The optimizer copies the weights as master weights, so load the model first.
    """
    model_config = chunks[0].module.config
    settings = OptimizerConfig(
        optimizer="adam",
        lr=config.lr,
        adam_beta1=config.betas[0],
        adam_beta2=config.betas[1],
        adam_eps=config.eps,
        weight_decay=config.weight_decay,
        clip_grad=config.clip_grad,
        bf16=model_config.bf16,
        fp8_recipe=model_config.fp8_recipe if model_config.fp8 else None,
        params_dtype=model_config.params_dtype,
        use_distributed_optimizer=True,
    )
    optimizer = get_megatron_optimizer(settings, chunks, use_gloo_process_groups=False)
    for part in optimizer.chained_optimizers:
        # Creating the moments now allows to save a run before its first step.
        part.init_state_fn(part.optimizer, part.config)
    copy_state_once(optimizer)
    return optimizer


def state_tensors(optimizer: MegatronOptimizer) -> Iterator[Tensor]:
    """Yield every tensor of this rank's optimizer: master weights and moments.

    In fp32 the master weights are views of the weights themselves.
    """
    for part in optimizer.chained_optimizers:
        for group in part.optimizer.param_groups:
            yield from group["params"]
        yield from _moments(part)


def _moments(part: Any) -> Iterator[Tensor]:
    """Yield Adam's moments of all parameters in one of Megatron's chained optimizers."""
    for state in part.optimizer.state.values():
        for value in state.values():
            if isinstance(value, Tensor):
                yield value


@torch.no_grad()
def clear_state(optimizer: MegatronOptimizer) -> None:
    """Reset Adam's moments and step count to those of a new optimizer. Master weights stay."""
    for part in optimizer.chained_optimizers:
        for group in part.optimizer.param_groups:
            group.pop("step", None)
        for moment in _moments(part):
            moment.zero_()


def guarded_step(
    optimizer: MegatronOptimizer,
    learning_rate: float,
    config: OptimConfig,
    loss_sum: Tensor | None,
    device: Device,
) -> float | None:
    """Clip gradients and take the optimizer step of a mini-batch, on all ranks or on none. Collective.

    `loss_sum` is the scalar loss of this rank on its device. It is None on ranks that have no loss. Returns the global
    gradient norm before clipping. Returns None and changes nothing when the loss of any rank or a gradient is not
    finite.
    """
    is_bad = torch.zeros((), device=device.torch_device)
    if loss_sum is not None:
        is_bad = torch.isfinite(loss_sum).logical_not().float()
    # Ranks exchange this before the norm, whose value the host waits for. Reading it afterwards waits for nothing.
    dist.all_reduce(is_bad, dist.ReduceOp.MAX)
    optimizer.prepare_grads()
    # Megatron reduces the norm over all ranks, so they all see whether it is finite.
    norm = float(optimizer.get_grad_norm())
    if is_bad.item() or not math.isfinite(norm):
        return None
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["lr_mult"]
        group["weight_decay"] = config.weight_decay * group["wd_mult"]
    # What `optimizer.step()` does, without preparing gradients and reducing their norm a second time.
    for part in optimizer.chained_optimizers:
        # Megatron has an empty optimizer where a rank has no parameters of a kind.
        is_empty = getattr(part, "is_stub_optimizer", False)
        parameters = [] if is_empty else part.get_parameters()
        if parameters and config.clip_grad > 0:
            clip_grad_by_total_norm_fp32(parameters, config.clip_grad, norm)
    optimizer.step_with_ready_grads()
    return norm
