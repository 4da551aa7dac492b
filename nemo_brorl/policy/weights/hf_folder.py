"""Writes a Hugging Face folder from the weight stream: config, tokenizer, safetensors in shards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from nemo_brorl.types import TensorInfo

SHARD_BYTES = 4 * 2**30
_COMPANIONS = ("*.json", "*.txt", "*.model", "*.jinja")  # tokenizer and generation settings
_BYTES = {"float32": 4, "bfloat16": 2}


def write_hf_folder(
    stream: Iterable[tuple[str, Tensor]], manifest: Sequence[TensorInfo], source: Path, folder: Path, shard_bytes: int
) -> None:
    """Write the stream to `folder`, with everything but the weights copied from the model folder `source`."""
    folder.mkdir(parents=True, exist_ok=True)
    _copy_companions(source, folder, manifest[0].dtype)
    shards = list(_shards(manifest, shard_bytes))
    names = ["model.safetensors"]
    if len(shards) > 1:
        names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
        _write_index(folder, shards, names)
    tensors = iter(stream)
    for shard, name in zip(shards, names, strict=True):
        save_file(dict(next(tensors) for _ in shard), folder / name, metadata={"format": "pt"})


def _copy_companions(source: Path, folder: Path, dtype: str) -> None:
    if source.resolve() != folder.resolve():
        for path in sorted({path for pattern in _COMPANIONS for path in source.glob(pattern)}):
            if not path.name.endswith(".safetensors.index.json"):
                shutil.copyfile(path, folder / path.name)
    config = json.loads((source / "config.json").read_text())
    config.pop("torch_dtype", None)  # the name before Transformers 5
    (folder / "config.json").write_text(json.dumps(config | {"dtype": dtype}, indent=2) + "\n")


def _num_bytes(info: TensorInfo) -> int:
    number = _BYTES[info.dtype]
    for size in info.shape:
        number *= size
    return number


def _shards(manifest: Sequence[TensorInfo], shard_bytes: int) -> Iterator[list[TensorInfo]]:
    held: list[TensorInfo] = []
    for info in manifest:
        if held and sum(map(_num_bytes, held)) + _num_bytes(info) > shard_bytes:
            yield held
            held = []
        held.append(info)
    yield held


def _write_index(folder: Path, shards: Sequence[Sequence[TensorInfo]], names: Sequence[str]) -> None:
    weight_map = {info.name: name for shard, name in zip(shards, names, strict=True) for info in shard}
    total = sum(_num_bytes(info) for shard in shards for info in shard)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
