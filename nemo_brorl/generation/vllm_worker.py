"""The vLLM worker's side of a weight sync: loads tensors under Hugging Face names into the running model.

vLLM builds its workers with `WeightReceiver` as a base class, so `self` also has the worker's attributes. Tensors go
through vLLM's layerwise reload: prepared once, fed by any number of buckets, finished once. A load that stops half-way
leaves the model unusable, and the process is replaced.
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
    """The weight receiver of a vLLM worker, mixed into vLLM's worker class.

    Life of a load: `start_load`, `load_bucket` for each bucket, `finish_load`.
    """

    # Set by the vLLM worker that this class is mixed into.
    model_runner: GPUModelRunner
    model_config: ModelConfig
    vllm_config: VllmConfig
    device: torch.device
    rank: int  # rank in the engine

    weight_group: WeightGroup | None = None  # broadcast group of the buckets, once joined

    def apply_device_fixes(self) -> None:
        """Apply the repairs of vLLM's CPU build that must precede the first request."""
        if self.device.type == "cpu":
            vllm_adapter.fix_seeded_prefill()

    def sample_by_arrays(self) -> None:
        """Replace loops over requests in vLLM's CPU build by array operations.

        The sampled tokens stay the same bit for bit.
        """
        if self.device.type == "cpu":
            # It imports vLLM's sampler, which only workers have.
            from nemo_brorl.generation.cpu_sampling import sample_by_arrays

            sample_by_arrays(self.model_runner)

    def record_routes(self) -> None:
        """Make this vLLM worker add the expert routes of a step's tokens to the output of every step from now on.

        This is for the CPU build, because on CUDA vLLM does it itself.
        """
        vllm_adapter.RouteRecorder(self.model_runner, self.vllm_config).attach()

    def start_load(self) -> None:
        """Prepare the model of this vLLM worker for loading new weights."""
        if self.device.type == "cpu":
            vllm_adapter.pack_experts_again(self._model())
        vllm_adapter.begin_reload(self._model(), self.vllm_config)

    def load_bucket(self, bucket: WeightBucket | BucketNotice) -> None:
        """Load the tensors of one weight bucket into the model of this vLLM worker.

        A layer is completed once it has all of its tensors. Raises WeightSyncError when the bucket's bytes differ from
        those that were announced.
        """
        flat = arrived(bucket, self.device, self.weight_group)
        vllm_adapter.load_tensors(self._model(), unflatten(bucket.tensors, flat), self.vllm_config)
        # The sender may reuse its memory once this call has returned.
        if flat.is_cuda:
            torch.cuda.synchronize(self.device)

    def finish_load(self) -> None:
        """Complete the remaining layers of the model after the last weight bucket was loaded."""
        vllm_adapter.finish_reload(self._model(), self.model_config, self.vllm_config)
        if self.device.type == "cpu":
            is_tied = self.model_config.hf_text_config.tie_word_embeddings
            vllm_adapter.repack_heads(self._model(), is_tied)

    def join_weight_link(self, link: WeightLink, receiver: int) -> None:
        """Join the broadcast group over which the policy sends its weights.

        Raises ReceiverLostError when joining fails.
        """
        if self.weight_group is not None:
            self.weight_group.close()
        self.weight_group = None
        self.weight_group = join(link, receiver, self.rank)

    def resident_bytes(self) -> int:
        """Return the bytes of memory that this vLLM worker's process holds on its device."""
        return resident_bytes(self.device)

    def _model(self) -> nn.Module:
        return self.model_runner.get_model()


def resident_bytes(device: torch.device) -> int:
    """Return the bytes of memory that this process holds on a device.

    On a GPU this is the driver's count, on CPU the private memory of the process.
    """
    gc.collect()
    if device.type == "cpu":
        trim_heap()
        return private_bytes()
    return _gpu_bytes(device)


def _gpu_bytes(device: torch.device) -> int:
    """Return the bytes of GPU memory of this process, with the CUDA context and libraries included.

    Where the driver does not report it, this is the memory that torch has reserved.
    """
    torch.cuda.empty_cache()
    used = vllm_adapter.own_gpu_bytes(str(torch.cuda.get_device_properties(device).uuid))
    if used:
        return used
    # In a container the driver may report other process ids.
    return torch.cuda.memory_reserved(device)
