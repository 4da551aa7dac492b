"""The vLLM worker's side of a weight update: HF-named tensors into the live model.

vLLM builds its workers with `WeightReceiver` as a base class, so `self` also has the worker's attributes. Tensors go
through vLLM's layerwise reload: prepared once, fed by any number of buckets, finished once. A load that stops half-way
leaves the model unusable; the process is then replaced.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import torch
from torch import nn

from nemo_brorl.core.process_memory import private_bytes, trim_heap
from nemo_brorl.generation import vllm_adapter
from nemo_brorl.types import BucketNotice, WeightBucket, WeightLink
from nemo_brorl.weights.arrivals import arrived
from nemo_brorl.weights.broadcast_group import WeightGroup
from nemo_brorl.weights.flat import unflatten
from nemo_brorl.weights.rendezvous import join

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

    from nemo_brorl.generation.vllm_adapter import GPUModelRunner


class WeightReceiver:
    """Worker extension. Life of a load: start_load, then load_bucket for each bucket, then finish_load."""

    # Set by the vLLM worker this class is mixed into.
    model_runner: GPUModelRunner
    model_config: ModelConfig
    vllm_config: VllmConfig
    device: torch.device
    rank: int  # within the engine

    weight_group: WeightGroup | None = None  # where buckets are broadcast, once joined

    def apply_device_fixes(self) -> None:
        """Make the repairs that must be in place before the first request."""
        if self.device.type == "cpu":
            vllm_adapter.fix_seeded_prefill()

    def record_routes(self) -> None:
        """Send the experts of every step's tokens along with what it sampled (CPU; elsewhere vLLM does it)."""
        vllm_adapter.RouteRecorder(self.model_runner, self.vllm_config).attach()

    def start_load(self) -> None:
        """Take the model apart for loading."""
        if self.device.type == "cpu":
            vllm_adapter.pack_experts_again(self._model())
        vllm_adapter.begin_reload(self._model(), self.vllm_config)

    def load_bucket(self, bucket: WeightBucket | BucketNotice) -> None:
        """Feed some tensors; a layer is put together as soon as it has all of its own. Raises WeightSyncError when a
        bucket's bytes are not those that were announced."""
        flat = arrived(bucket, self.device, self.weight_group)
        vllm_adapter.load_tensors(self._model(), unflatten(bucket.tensors, flat), self.vllm_config)
        # The sender may use its memory again once we have answered.
        if flat.is_cuda:
            torch.cuda.synchronize(self.device)

    def finish_load(self) -> None:
        """Put the rest together."""
        vllm_adapter.finish_reload(self._model(), self.model_config, self.vllm_config)
        if self.device.type == "cpu":
            is_tied = self.model_config.hf_text_config.tie_word_embeddings
            vllm_adapter.repack_heads(self._model(), is_tied)

    def join_weight_link(self, link: WeightLink, receiver: int) -> None:
        """Become part of a broadcast group. Raises ReceiverLostError."""
        if self.weight_group is not None:
            self.weight_group.close()
        self.weight_group = None
        self.weight_group = join(link, receiver, self.rank)

    def resident_bytes(self) -> int:
        """Return the bytes that this worker's process holds of its device."""
        return resident_bytes(self.device)

    def _model(self) -> nn.Module:
        return self.model_runner.get_model()


def resident_bytes(device: torch.device) -> int:
    """Return the bytes that this process holds of a device: GPU memory by the driver's own count, or private memory of
    the process on CPU."""
    gc.collect()
    if device.type == "cpu":
        trim_heap()
        return private_bytes()
    return _gpu_bytes(device)


def _gpu_bytes(device: torch.device) -> int:
    """Return the memory of this process, context and libraries included; where the driver does not tell, what torch has
    reserved."""
    torch.cuda.empty_cache()
    used = vllm_adapter.own_gpu_bytes(str(torch.cuda.get_device_properties(device).uuid))
    if used:
        return used
    # In a container the driver may count other process numbers.
    return torch.cuda.memory_reserved(device)
