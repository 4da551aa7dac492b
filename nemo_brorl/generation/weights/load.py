"""The vLLM worker's side of a weight update: HF-named tensors into the live model.

vLLM builds its workers with `WeightReceiver` as a base class, so `self` also has the worker's attributes. Linear layers
keep only a packed form of their weights, so tensors go through vLLM's layerwise reload: prepared once, fed by any
number of buckets, finished once. A load that stops half-way leaves the model unusable; the process is then replaced.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from nemo_brorl.core import weight_wire
from nemo_brorl.core.weight_wire import WeightGroup, check_bytes, join, unflatten
from nemo_brorl.generation.cpu_fixes import fix_seeded_prefill, pack_experts_again, repack_heads
from nemo_brorl.generation.routes import RouteRecorder
from nemo_brorl.generation.sleep import resident_bytes
from nemo_brorl.types import BucketNotice, WeightBucket, WeightLink


def on_host(bucket: WeightBucket) -> Tensor:
    """The bucket's bytes, in place."""
    with warnings.catch_warnings():
        # Buckets come read-only from the object store, and nobody writes to these tensors.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(bucket.data)


class WeightReceiver:
    """Worker extension. Life of a load: start_load, then load_bucket for each bucket, then finish_load."""

    # Set by the vLLM worker this class is mixed into.
    model_runner: Any
    model_config: Any
    vllm_config: Any
    device: torch.device
    rank: int  # within the engine

    weight_group: WeightGroup | None = None  # where buckets are broadcast, once joined

    def apply_device_fixes(self) -> None:
        """Repairs that must be in place before the first request."""
        if self.device.type == "cpu":
            fix_seeded_prefill()

    def record_routes(self) -> None:
        """Send the experts of every step's tokens along with what it sampled (CPU; elsewhere vLLM does it)."""
        RouteRecorder(self.model_runner, self.vllm_config).attach()

    def start_load(self) -> None:
        """Take the model apart for loading."""
        if self.device.type == "cpu":
            pack_experts_again(self._model())
        with set_current_vllm_config(self.vllm_config):
            initialize_layerwise_reload(self._model())

    def load_bucket(self, bucket: WeightBucket | BucketNotice) -> None:
        """Feed some tensors; a layer is put together as soon as it has all of its own. Raises WeightSyncError when a
        bucket's bytes are not those that were announced."""
        flat = self._bytes_of(bucket)
        with set_current_vllm_config(self.vllm_config):
            self._model().load_weights(unflatten(bucket.tensors, flat))
        if flat.is_cuda:
            torch.cuda.synchronize(self.device)  # the sender may use its memory again once we have answered

    def finish_load(self) -> None:
        """Put the rest together."""
        with set_current_vllm_config(self.vllm_config):
            finalize_layerwise_reload(self._model(), self.model_config)
        if self.device.type == "cpu":
            is_tied = self.model_config.hf_text_config.tie_word_embeddings
            repack_heads(self._model(), is_tied)

    def join_weight_link(self, link: WeightLink, receiver: int) -> None:
        """Become part of a broadcast group. Raises ReceiverLostError."""
        if self.weight_group is not None:
            self.weight_group.close()
        self.weight_group = None
        self.weight_group = join(link, receiver, self.rank)

    def resident_bytes(self) -> int:
        """Bytes that this worker's process holds of its device."""
        return resident_bytes(self.device)

    def _bytes_of(self, bucket: WeightBucket | BucketNotice) -> Tensor:
        if isinstance(bucket, WeightBucket):
            return on_host(bucket)
        if bucket.handles is not None:
            flat = weight_wire.map_here(bucket.handles, self.device)
        else:
            num_bytes = sum(info.num_bytes for info in bucket.tensors)
            flat = torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
            assert self.weight_group is not None, "a broadcast was announced before the weight group was joined"
            self.weight_group.broadcast(flat)
        check_bytes(bucket, flat)
        return flat

    def _model(self) -> nn.Module:
        return self.model_runner.get_model()
