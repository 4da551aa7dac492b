"""Three repairs of vLLM 0.32's CPU build, kept together so that they can be dropped together. Not used on GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn


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
