"""Log-probs from Hugging Face transformers, one sequence at a time: the slow and plain yardstick of the parity gate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from nemo_brorl.types import Float32


@torch.no_grad()
def hf_log_probs(
    folder: Path, prompt_ids: Sequence[Sequence[int]], response_ids: Sequence[Sequence[int]], temperature: float
) -> list[Float32]:
    """Log-prob [T] of every response token under softmax(logits / temperature), computed in fp32."""
    transformers_logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    results = []
    for prompt, response in zip(prompt_ids, response_ids, strict=True):
        token_ids = torch.tensor([[*prompt, *response]], dtype=torch.int64)
        logits = model(token_ids).logits[0, len(prompt) - 1 : -1] / temperature
        log_probs = logits.log_softmax(-1).gather(1, token_ids[0, len(prompt) :, None])[:, 0]
        results.append(log_probs.numpy())
    return results
