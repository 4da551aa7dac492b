"""Hugging Face folders written from the weight stream: config, tokenizer, safetensors in shards; and log-probs from
such a folder by transformers, one sequence at a time, the slow and plain yardstick of the parity gate.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from nemo_brorl.core.files import naming
from nemo_brorl.policy.process.device import all_threads, release_cache, roomy_device
from nemo_brorl.policy.weights.weight_source import cut
from nemo_brorl.types import Float32, TensorInfo

SHARD_BYTES = 4 * 2**30
PARTIAL = ".partial"  # folder inside, of what is being written
_COMPANIONS = ("*.json", "*.txt", "*.model", "*.jinja")  # tokenizer and generation settings
_INDEX = "model.safetensors.index.json"


def write_hf_folder(
    stream: Iterable[tuple[str, Tensor]],
    manifest: Sequence[TensorInfo],
    source: Path,
    folder: Path,
    shard_bytes: int,
) -> None:
    """Write the stream to `folder`, with everything but the weights copied from the model folder `source`. Files that
    are there already are replaced once all new ones are written. Raises ResourceError."""
    partial = folder / PARTIAL
    with naming(folder):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            _write(stream, manifest, source, partial, shard_bytes)
            for path in sorted(partial.iterdir()):
                path.replace(folder / path.name)
        except SafetensorError as error:  # of a disk that refuses
            raise OSError(f"{error}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _write(
    stream: Iterable[tuple[str, Tensor]],
    manifest: Sequence[TensorInfo],
    source: Path,
    folder: Path,
    shard_bytes: int,
) -> None:
    _copy_companions(source, folder, manifest[0].dtype)
    shards = list(cut(manifest, lambda info: info.num_bytes, shard_bytes))
    names = ["model.safetensors"]
    if len(shards) > 1:
        names = []
        for number in range(1, len(shards) + 1):
            names.append(f"model-{number:05d}-of-{len(shards):05d}.safetensors")
        _write_index(folder, shards, names)
    tensors = iter(stream)
    for shard, name in zip(shards, names, strict=True):
        held = {}
        for _ in shard:
            tensor_name, tensor = next(tensors)
            held[tensor_name] = tensor
        save_file(held, folder / name, metadata={"format": "pt"})


def _copy_companions(source: Path, folder: Path, dtype: str) -> None:
    companions: list[Path] = []
    if source.resolve() != folder.resolve():
        for pattern in _COMPANIONS:
            companions += source.glob(pattern)
    for path in companions:
        if not path.name.endswith(".safetensors.index.json"):
            shutil.copyfile(path, folder / path.name)
    config = json.loads((source / "config.json").read_text())
    config.pop("torch_dtype", None)  # the name before Transformers 5
    config["dtype"] = dtype
    text = json.dumps(config, indent=2)
    (folder / "config.json").write_text(text + "\n")


def _write_index(
    folder: Path,
    shards: Sequence[Sequence[TensorInfo]],
    names: Sequence[str],
) -> None:
    weight_map = {}
    total = 0
    for shard, name in zip(shards, names, strict=True):
        for info in shard:
            weight_map[info.name] = name
            total += info.num_bytes
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    text = json.dumps(index, indent=2)
    (folder / _INDEX).write_text(text + "\n")


_LOGIT_COPIES = 4  # logits of the longest sequence, its part, and what log_softmax makes of it


@torch.no_grad()
def hf_log_probs(
    folder: Path,
    prompt_ids: Sequence[Sequence[int]],
    response_ids: Sequence[Sequence[int]],
    temperature: float,
) -> list[Float32]:
    """Log-prob [T] of every response token under softmax(logits / temperature), computed in fp32, on the GPU if there
    is room."""
    from transformers import AutoModelForCausalLM  # seconds of imports, for the parity gate alone
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
    del model
    release_cache()  # engines on this GPU need it
    return results
