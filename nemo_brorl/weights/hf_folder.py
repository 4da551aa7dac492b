"""Write Hugging Face model folders from the weight stream: config, tokenizer, and safetensors in shards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from brorl_graders.base.foreign import RecordError, record_bytes
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from nemo_brorl.core.best_weights import RECORD as BEST_WEIGHTS_RECORD
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.files import naming, share_as_usual
from nemo_brorl.core.model_folder import MAX_JSON, model_object
from nemo_brorl.core.template_files import FOLDER as TEMPLATES
from nemo_brorl.types import TensorInfo
from nemo_brorl.weights.buckets import cut

SHARD_BYTES = 4 * 2**30
# Subfolder in which new files are written, until all of them are complete.
PARTIAL = ".partial"
# Tokenizer and generation settings.
_COMPANIONS = ("*.json", "*.txt", "*.model", "*.jinja", f"{TEMPLATES}/*.jinja")
# Records of the weights in the source, not of those that are written.
_RECORDS = (BEST_WEIGHTS_RECORD, "converted.json")
_INDEX = "model.safetensors.index.json"
log = get_logger(__name__)


def write_hf_folder(
    stream: Iterable[tuple[str, Tensor]],
    manifest: Sequence[TensorInfo],
    source: Path,
    folder: Path,
    shard_bytes: int,
) -> None:
    """Write a stream of (name, tensor) to a Hugging Face model folder.

    Config, tokenizer and generation settings are copied from the model folder `source`. `manifest` lists the tensors in
    the order of the stream. No safetensors file exceeds `shard_bytes` unless one tensor alone does. Existing files are
    replaced once all new ones are written. Raises ResourceError for a full or read-only disk.
    """
    partial = folder / PARTIAL
    with naming(folder):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            _write(stream, manifest, source, partial, shard_bytes)
            for path in sorted(filter(Path.is_file, partial.rglob("*"))):
                target = folder / path.relative_to(partial)
                target.parent.mkdir(exist_ok=True)
                path.replace(target)
        except SafetensorError as error:
            # safetensors raises its own error for a full disk, and `naming` explains only an OSError.
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
        names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
        _write_index(folder, shards, names)
    tensors = iter(stream)
    for shard, name in zip(shards, names, strict=True):
        held = {}
        for _ in shard:
            tensor_name, tensor = next(tensors)
            held[tensor_name] = tensor
        save_file(held, folder / name, metadata={"format": "pt"})
        share_as_usual(folder / name)


def _copy_companions(
    source: Path,
    folder: Path,
    dtype: str,
) -> None:
    companions: list[Path] = []
    if source.resolve() != folder.resolve():
        for pattern in _COMPANIONS:
            companions += source.glob(pattern)
    for path in companions:
        if path.name in _RECORDS or path.name.endswith(".safetensors.index.json"):
            continue
        try:
            content = record_bytes(path, MAX_JSON)
        except (OSError, RecordError) as error:
            log.warning("left out of %s: %s", folder, error)
            continue
        copy = folder / path.relative_to(source)
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(content)
    config = model_object(source / "config.json")
    # Transformers before version 5 calls it `torch_dtype`.
    config.pop("torch_dtype", None)
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
