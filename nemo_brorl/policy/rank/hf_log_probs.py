"""Compute log-probs of a Hugging Face folder by transformers, one sequence at a time.

It is slow and simple, and the parity gate compares the policy with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from nemo_brorl.core.torch_device import all_threads, release_cache, roomy_device
from nemo_brorl.types import Float32

# Copies of the longest sequence's logits in memory at once: the logits, their slice, and intermediates of log_softmax.
_LOGIT_COPIES = 4


@torch.no_grad()
def hf_log_probs(
    folder: Path,
    prompt_ids: Sequence[Sequence[int]],
    response_ids: Sequence[Sequence[int]],
    temperature: float,
) -> list[Float32]:
    """Return the log-prob [T] of every response token under softmax(logits / temperature), by transformers in fp32.

    Runs on the GPU if its memory has room for the model, else on the CPU.
    """
    # This import takes seconds, and only the parity gate needs it.
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False).eval()
    longest = 0
    for prompt, response in zip(prompt_ids, response_ids, strict=True):
        longest = max(longest, len(prompt) + len(response))
    logit_bytes = _LOGIT_COPIES * 4 * longest * model.config.vocab_size
    weight_bytes = sum(param.nbytes for param in model.parameters())
    device = roomy_device(weight_bytes + logit_bytes)
    model.to(device)
    results = []
    with all_threads():
        for prompt, response in zip(prompt_ids, response_ids, strict=True):
            sequence = [*prompt, *response]
            token_ids = torch.tensor([sequence], dtype=torch.int64, device=device)
            logits = model(token_ids).logits[0]
            scaled = logits[len(prompt) - 1 : -1] / temperature
            targets = token_ids[0, len(prompt) :, None]
            log_probs = scaled.log_softmax(-1).gather(1, targets)[:, 0]
            results.append(log_probs.cpu().numpy())
    # Engines on this GPU need the memory.
    del model
    release_cache()
    return results
