"""The vLLM worker's side of a weight update: HF-named tensors into the live model.

vLLM builds its workers with `WeightReceiver` as a base class, so `self` also has the worker's attributes. Linear layers keep
only a packed form of their weights, so tensors go through vLLM's layerwise reload: prepared once, fed by any number of
buckets, finished once. A load that stops half-way leaves the model unusable; the process is then replaced.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from nemo_brorl.generation.cpu_fixes import fix_seeded_prefill, pack_experts_again, repack_heads
from nemo_brorl.types import WeightBucket


def unflatten(bucket: WeightBucket) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of each tensor in the bucket, views of its bytes where alignment allows."""
    with warnings.catch_warnings():
        # Buckets come read-only from the object store, and nobody writes to these tensors.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        raw = torch.from_numpy(bucket.data)
    offset = 0
    for info in bucket.tensors:
        dtype = getattr(torch, info.dtype)
        num_bytes = torch.Size(info.shape).numel() * dtype.itemsize
        piece = raw[offset : offset + num_bytes]
        if offset % dtype.itemsize:
            piece = piece.clone()  # a bf16 tensor of odd length before an fp32 one
        yield info.name, piece.view(dtype).view(info.shape)
        offset += num_bytes


class WeightReceiver:
    """Worker extension. Life of a load: start_load, then load_bucket for each bucket, then finish_load."""

    # Set by the vLLM worker this class is mixed into.
    model_runner: Any
    model_config: Any
    vllm_config: Any
    device: torch.device

    def apply_device_fixes(self) -> None:
        """Repairs that must be in place before the first request."""
        if self.device.type == "cpu":
            fix_seeded_prefill()

    def start_load(self) -> None:
        """Take the model apart for loading."""
        if self.device.type == "cpu":
            pack_experts_again(self._model())
        with set_current_vllm_config(self.vllm_config):
            initialize_layerwise_reload(self._model())

    def load_bucket(self, bucket: WeightBucket) -> None:
        """Feed some tensors; a layer is put together as soon as it has all of its own."""
        with set_current_vllm_config(self.vllm_config):
            self._model().load_weights(unflatten(bucket))

    def finish_load(self) -> None:
        """Put the rest together."""
        with set_current_vllm_config(self.vllm_config):
            finalize_layerwise_reload(self._model(), self.model_config)
        if self.device.type == "cpu":
            repack_heads(self._model(), is_tied=self.model_config.hf_text_config.tie_word_embeddings)

    def _model(self) -> nn.Module:
        return self.model_runner.get_model()
