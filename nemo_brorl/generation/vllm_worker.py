"""The vLLM worker's side of a weight update: HF-named tensors into the live model.

vLLM builds its workers with `WeightReceiver` as a base class, so `self` also has the worker's attributes. Linear layers
keep only a packed form of their weights, so tensors go through vLLM's layerwise reload: prepared once, fed by any
number of buckets, finished once. A load that stops half-way leaves the model unusable; the process is then replaced.

Three repairs of vLLM 0.32's CPU build stand here too, and are not used on GPUs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from nemo_brorl.generation.routes import RouteRecorder
from nemo_brorl.generation.sleep import resident_bytes
from nemo_brorl.types import BucketNotice, WeightBucket, WeightLink
from nemo_brorl.weights.arrivals import arrived
from nemo_brorl.weights.broadcast_group import WeightGroup
from nemo_brorl.weights.flat import unflatten
from nemo_brorl.weights.rendezvous import join


def fix_seeded_prefill() -> None:
    """Make seeded requests survive chunked prefill.

    A row that is only part-way through its prompt is sampled too and the sample thrown away; vLLM then winds its
    generator back by an offset, which CPU generators do not have, and the engine dies. Taking those rows' generators
    out of the batch while sampling leaves them where they were.
    """
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    if hasattr(CPUModelRunner, "sample_tokens_before_fix"):
        return
    original = CPUModelRunner.sample_tokens

    def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
        generators = self.input_batch.generators
        is_discarded = self.discard_request_mask.np[: self.input_batch.num_reqs]
        held_back = {}
        for row in np.flatnonzero(is_discarded).tolist():
            if row in generators:
                held_back[row] = generators.pop(row)
        try:
            return original(self, *args, **kwargs)
        finally:
            generators.update(held_back)

    CPUModelRunner.sample_tokens_before_fix = original
    CPUModelRunner.sample_tokens = sample_tokens


def repack_heads(model: nn.Module, is_tied: bool) -> None:
    """Give output heads the matrix they should multiply with after a layerwise reload.

    The CPU build multiplies with a packed copy of the weight. A tied head is not reloaded under its own name, so its
    copy stays that of the old weights, without an error: point it at the new embedding and pack again.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    heads = []
    embeddings = []
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            heads.append(module)
        elif isinstance(module, VocabParallelEmbedding):
            embeddings.append(module)
    for head in heads:
        if is_tied:
            assert len(embeddings) == 1, f"a tied head needs one embedding, the model has {len(embeddings)}"
            head.weight = embeddings[0].weight
        head.quant_method.process_weights_after_loading(head)


def pack_experts_again(model: nn.Module) -> None:
    """Make the next layerwise reload pack the weights of mixture-of-experts layers. Call it before the reload.

    The CPU build packs them when it first makes their kernel, and at no later load: without an error, the kernel would
    read plain weights as packed ones. Without a kernel, the load makes a new one.
    """
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if isinstance(method, UnquantizedFusedMoEMethod):
            method.moe_kernel = None


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
        flat = arrived(bucket, self.device, self.weight_group)
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

    def _model(self) -> nn.Module:
        return self.model_runner.get_model()
