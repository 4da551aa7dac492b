"""The state of one rank: its piece of the model, the optimizer, the reference, how its rows are laid out, and what of
it leaves the device between updates.

The reference policy of the KL term is a second set of weights in host memory, exchanged with the model's to score.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer
from torch import Tensor, UntypedStorage

from nemo_brorl.config.model_rules import check_policy_fits
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.core.model_shape import ModelShape
from nemo_brorl.core.torch_device import host_like, wait_for_copies
from nemo_brorl.policy.model.attention import ROW_MULTIPLE, choose_attention
from nemo_brorl.policy.model.attention_flash import use_newest_kernel
from nemo_brorl.policy.model.model import PolicyModel, build_model
from nemo_brorl.policy.model.precision import row_multiple
from nemo_brorl.policy.process.device import Device
from nemo_brorl.policy.process.layout import ParallelLayout
from nemo_brorl.policy.process.process_groups import weight_groups
from nemo_brorl.policy.rows.packed_rows import PackedSegment, Row, RowSettings
from nemo_brorl.policy.rows.row_builder import build_row
from nemo_brorl.policy.state.optimizer import build_optimizer, state_tensors, wrap_model
from nemo_brorl.weights.reading import load_hf


class Offload:
    """One rank's tensors that make room for colocated engines: optimizer state, gradient buffers and weights move to
    host memory and back. Life cycle: on the device, `offload`, on the host, `onload`, and so on.

    Everything under Megatron is a view of something larger: parameters of DDP's buffers, master weights in fp32 of
    parameters, gradients of the buffers again. So storages move, not tensors: a storage is copied out and shrunk to
    nothing, and later grown and filled again, and every view of it, whoever holds it, is valid again bit for bit. (On
    the CPU, where only tests do this, storages that numpy has seen cannot shrink: those of weights once they were
    streamed.)
    """

    def __init__(
        self,
        chunks: Sequence[DistributedDataParallel],
        optimizer: MegatronOptimizer,
        with_params: bool,
    ) -> None:
        self.chunks = chunks
        self.optimizer = optimizer
        self.with_params = with_params
        self.copies: list[Tensor] = []  # in host memory, used again by every offload
        self.sizes: dict[UntypedStorage, int] = {}  # bytes of what is not on the device now
        self.moved: list[UntypedStorage] = []

    def offload(self) -> None:
        """Free device memory, which torch keeps until `release_cache`; nothing of it may be used until `onload`.

        Calling it again does nothing.
        """
        if self.sizes:
            return
        self.moved = self._moving()
        sizes = [storage.nbytes() for storage in self.moved]
        if [copy.numel() for copy in self.copies] != sizes:
            self.copies = [host_like(_bytes_of(storage)) for storage in self.moved]
        for storage, copy in zip(self.moved, self.copies, strict=True):
            copy.copy_(_bytes_of(storage), non_blocking=True)
        wait_for_copies()
        for storage in (*self.moved, *self._gradients()):
            self.sizes[storage] = storage.nbytes()
        for storage in self.sizes:
            storage.resize_(0)
        for chunk in self.chunks:
            drop_fp8_copies(chunk.module)

    def onload(self) -> None:
        """Everything is as it was before `offload`, but gradients are zero. Calling it again does nothing."""
        if not self.sizes:
            return
        for storage, size in self.sizes.items():
            storage.resize_(size)
            if storage not in self.moved:
                _bytes_of(storage).zero_()
        for storage, copy in zip(self.moved, self.copies, strict=True):
            _bytes_of(storage).copy_(copy, non_blocking=True)
        wait_for_copies()
        self.sizes = {}
        self.moved = []

    def _moving(self) -> list[UntypedStorage]:
        """Storages to copy out. The optimizer's are looked up anew: loading a checkpoint may replace them."""
        params: list[Tensor] = []
        for chunk in self.chunks:
            params += chunk.module.parameters()
        storages = _storages(state_tensors(self.optimizer))
        for address, storage in _storages(params).items():
            if self.with_params:
                storages[address] = storage
            else:
                storages.pop(address, None)
        return list(storages.values())

    def _gradients(self) -> list[UntypedStorage]:
        gradients = []
        for chunk in self.chunks:
            for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
                gradients.append(buffer.grad_data)
        return list(_storages(gradients).values())


def drop_fp8_copies(model: torch.nn.Module) -> None:
    """Forget the quantised weights that Transformer Engine keeps between micro-batches, two bytes a parameter; the next
    pass makes them anew, as it does after every optimizer step."""
    for module in model.modules():
        if hasattr(module, "_fp8_workspaces"):
            module._fp8_workspaces.clear()


def _storages(tensors: Iterable[Tensor]) -> dict[int, UntypedStorage]:
    """The storages behind tensors by address, each once; empty shards have none."""
    storages = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            storages[storage.data_ptr()] = storage
    return storages


def _bytes_of(storage: UntypedStorage) -> Tensor:
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(storage)


_log = get_logger(__name__)


@dataclass
class RankState:
    """What the learner, its updates and its checkpoints work on."""

    config: BroRLConfig
    layout: ParallelLayout
    device: Device
    shape: ModelShape
    models: list[PolicyModel]  # one per virtual pipeline stage
    chunks: list[DistributedDataParallel]  # the models as wrapped for training
    optimizer: MegatronOptimizer
    reference: ReferenceWeights | None  # None: no KL term
    row_settings: RowSettings

    def row(self, segments: Sequence[PackedSegment], temperature: float) -> Row:
        """Segments laid out for this rank's model."""
        return build_row(segments, temperature, self.row_settings)

    def rows(self, micro_batches: Sequence[Sequence[PackedSegment]], temperature: float) -> list[Row]:
        """Rows to run together; under a virtual pipeline all as long as the longest (`pipeline._row_length`)."""
        rows = [self.row(segments, temperature) for segments in micro_batches]
        if self.layout.virtual_pipeline is None or not rows:
            return rows
        longest = max(row.token_ids.size(1) for row in rows)
        return [build_row(segments, temperature, self.row_settings, longest) for segments in micro_batches]


def build_rank_state(
    config: BroRLConfig,
    layout: ParallelLayout,
    model_folder: Path,
    device: Device,
) -> RankState:
    """The state before the first step, with the weights of a Hugging Face folder; process groups are open. Collective.

    Raises ModelError or ConfigError.
    """
    shape = check_policy_fits(config, model_folder)
    models = build_model(config.policy, shape, layout)
    load_hf(models, shape, model_folder, weight_groups())
    chunks = wrap_model(models, RunSizes.of(config).overlaps_gradients, config.policy.overlap_param_gather)
    optimizer = build_optimizer(chunks, config.policy.optim)
    reference = ReferenceWeights(models) if config.algorithm.kl.coefficient > 0 else None
    row_settings = _row_settings(config, layout, device, shape)
    return RankState(
        config,
        layout,
        device,
        shape,
        models,
        chunks,
        optimizer,
        reference,
        row_settings,
    )


def _row_settings(
    config: BroRLConfig,
    layout: ParallelLayout,
    device: Device,
    shape: ModelShape,
) -> RowSettings:
    attention, reason = choose_attention(config.policy, layout, shape)
    _log.info("attention by %s: %s", attention, reason)
    if attention == "flash":
        _log.info("its kernels are of %s", use_newest_kernel())
    multiple = row_multiple(config.policy, layout)
    if attention == "flex":
        multiple = math.lcm(multiple, ROW_MULTIPLE)
    context_rank = parallel_state.get_context_parallel_rank()
    return RowSettings(
        device=device.torch_device,
        multiple=multiple,
        context_rank=context_rank,
        context_size=layout.context,
        attention=attention,
        least_shared=config.policy.least_shared_tokens,
    )


class ReferenceWeights:
    """One rank's reference parameters by name; `chunk<i>.` in front of the name of model chunk i's parameters.

    They lie in host memory (pinned on GPUs). While they are in the model, the current weights lie in their place, so a
    device never holds more than one set of weights and one tensor of scratch.
    """

    def __init__(self, models: Sequence[PolicyModel]) -> None:
        """Raises ConfigError for parameters that are kept in FP8."""
        self.params: dict[str, Tensor] = {}
        for index, model in enumerate(models):
            for name, param in model.named_parameters():
                _check_is_plain(param)
                self.params[f"chunk{index}.{name}"] = param
        self.copies: dict[str, Tensor] = {}
        for name, param in self.params.items():
            self.copies[name] = host_like(param)
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Make the current weights the reference."""
        for name, param in self.params.items():
            self.copies[name].copy_(param, non_blocking=True)
        wait_for_copies()

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Inside, the model has the reference weights; afterwards, whatever happened, bit for bit the weights from
        before."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, param in self.params.items():
            copy = self.copies[name]
            scratch = param.detach().clone()
            param.copy_(copy, non_blocking=True)
            copy.copy_(scratch, non_blocking=True)
        wait_for_copies()


def _check_is_plain(param: Tensor) -> None:
    # Transformer Engine's FP8 parameters are a subclass: copying into one quantises anew, which need not give the same
    # bits.
    if type(param.data) is not Tensor:
        raise ConfigError(
            "policy.fp8_params=true keeps weights in FP8, which cannot be exchanged with a reference without rounding: "
            "write policy.fp8_params=false, or algorithm.kl.coefficient=0 to train without a reference"
        )
