"""Check that the files of a model folder are whole, from their headers: in milliseconds, whatever the model's size."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from brorl_graders.base.foreign import VAST, RecordError, open_record, read_json

from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.files import why_unreadable
from nemo_brorl.core.model_folder import shard_names
from nemo_brorl.core.model_shape import ModelShape, hf_shapes, read_model_shape

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack")
MAX_HEADER = 100_000_000  # largest safetensors header in bytes, as the library has it
MAX_NAMED = 4  # faults in one message
POINTER = b"version https://git-lfs"  # first bytes of a Git LFS pointer
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TRAINED = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}  # bytes of a number, by its type
EXPONENTS = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000}  # bits that are all set in a NaN or an infinity
HARMLESS = ("rotary_emb.inv_freq", "masked_bias")  # ends of names of tensors that follow from the config
BLOCK = 1 << 16  # bytes compared at a time
MAX_BLOCKS = 4096  # blocks of one tensor that are compared


log = get_logger(__name__)


class StoredTensor(NamedTuple):
    """Where a tensor is stored."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int  # byte of the file
    end: int


class ShardError(Exception):
    """A safetensors file is damaged. The message follows the file's name."""


def check_model_files(folder: Path, setting: str = "policy.model") -> None:
    """Raise ModelError unless the weights of a model folder are whole and fit its config.json."""
    faults = list(weight_faults(folder, read_model_shape(folder)))
    if faults:
        raise ModelError(f"{folder}: {joined(faults)}. Set {setting} to a whole folder, or download it again")


def joined(faults: list[str]) -> str:
    """Return the first faults of a folder in one text, with the number of the others."""
    more = f" (and {len(faults) - MAX_NAMED} more)" if len(faults) > MAX_NAMED else ""
    return f"{'; '.join(faults[:MAX_NAMED])}{more}"


def has_weights(folder: Path) -> bool:
    """Return whether a folder has files of weights, in whatever format."""
    patterns = ("*.safetensors", "*.safetensors.index.json", *OTHER_WEIGHTS)
    return any(next(folder.glob(pattern), None) is not None for pattern in patterns)


def folder_faults(folder: Path, shape: ModelShape) -> Iterator[str]:
    """Yield the faults of a model folder: those of its weights, and a tokenizer that is missing."""
    if not any((folder / name).is_file() for name in TOKENIZERS):
        yield "there is no tokenizer (tokenizer.json)"
    yield from weight_faults(folder, shape)


def weight_faults(folder: Path, shape: ModelShape) -> Iterator[str]:
    """Yield the faults of a model's weights: files that are missing, cut short, or do not fit its config."""
    shards = sorted(folder.glob("*.safetensors"))
    try:
        names = shard_names(folder)
    except ModelError as error:
        yield str(error)
        return
    if names is not None:
        named = set(names.values())
        there = {path.name for path in shards}
        for name in sorted(named - there):
            yield f"{name} is missing"
        shards = [path for path in shards if path.name in named]
    elif not shards:
        yield _no_weights(folder)
        return
    tensors: dict[str, StoredTensor] = {}
    for path in shards:
        try:
            tensors |= read_shard(path)
        except ShardError as error:
            yield f"{path.name} {error}"
            return
    shapes = hf_shapes(shape)
    yield from _misfits(tensors, shapes)
    yield from _not_trained(tensors)
    yield from _not_finite(tensors)
    if unused := [name for name in tensors if name not in shapes and name != HEAD and not name.endswith(HARMLESS)]:
        log.warning("%s: %d tensors are not used, %s for one", folder, len(unused), unused[0])
    if shape.is_tied and HEAD in tensors and EMBEDDING in tensors and _differ(tensors[HEAD], tensors[EMBEDDING]):
        yield (
            f"{HEAD} differs from {EMBEDDING} although they are tied: write tie_word_embeddings=false into config.json "
            f"if the head was trained, or else delete {HEAD}"
        )


def _no_weights(folder: Path) -> str:
    others: list[str] = []
    for pattern in OTHER_WEIGHTS:
        others += sorted(path.name for path in folder.glob(pattern))
    if not others:
        return "there are no weights (*.safetensors)"
    return (
        f"there are no weights in safetensors, only {others[0]}: write them with transformers, "
        "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW, safe_serialization=True)"
    )


def _misfits(tensors: Mapping[str, StoredTensor], shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """Yield the tensors that are missing, and those of another size than config.json says."""
    lacking = [name for name in shapes if name not in tensors]
    if lacking:
        found = next((name for name in tensors if name.endswith(lacking[0]) or lacking[0].endswith(f".{name}")), None)
        instead = f", and {found} is there: rename the tensors" if found else ""
        yield f"{len(lacking)} tensors are missing, {lacking[0]} for one{instead}"
    for name, shape in shapes.items():
        if name in tensors and tensors[name].shape != shape:
            yield f"{name} has {_by(tensors[name].shape)} numbers, config.json says {_by(shape)}"


def _not_trained(tensors: Mapping[str, StoredTensor]) -> Iterator[str]:
    """Yield tensors of a type that no weights for training have."""
    for name, tensor in tensors.items():
        if tensor.dtype not in TRAINED:
            yield f"{name} holds {tensor.dtype} numbers, as quantised weights do: training needs bf16, fp16 or fp32"
            return


def _not_finite(tensors: Mapping[str, StoredTensor]) -> Iterator[str]:
    """Yield tensors that begin with a NaN or an infinity: a model that diverged has them everywhere."""
    try:
        import numpy as np
    except ImportError:
        # A login node may lack it.
        return
    for name, tensor in tensors.items():
        exponent = EXPONENTS.get(tensor.dtype)
        if exponent is None:
            continue
        with open_record(tensor.path, VAST) as file:
            file.seek(tensor.start)
            found = np.frombuffer(file.read(min(BLOCK, tensor.end - tensor.start)), f"<u{TRAINED[tensor.dtype]}")
        if ((found & exponent) == exponent).any():
            yield f"{name} holds NaN or infinite numbers: take the weights of an earlier step"


def _by(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def read_shard(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file by name. Only its header is read, and compared with the file's length.

    Raises ShardError.
    """
    try:
        with open_record(path, VAST) as file:
            first = file.read(8)
            if POINTER.startswith(first) and first:
                raise ShardError("is a Git LFS pointer and no weights: run `git lfs pull` in its folder")
            length = int.from_bytes(first, "little")
            header = None
            if length <= MAX_HEADER:
                header = read_json(file.read(length), most_bytes=MAX_HEADER)
            size = os.fstat(file.fileno()).st_size
    except (OSError, ValueError, RecordError) as error:
        raise ShardError(f"cannot be read ({why_unreadable(error)})") from error
    if not isinstance(header, dict):
        raise ShardError("is no safetensors file")
    header.pop("__metadata__", None)
    begin = 8 + length
    try:
        found = {name: _stored(path, entry, begin) for name, entry in header.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise ShardError(f"has a damaged header ({error!r:.80})") from error
    whole = begin
    for name, tensor in sorted(found.items(), key=lambda item: item[1][-2:]):
        if tensor.start != whole:
            raise ShardError(f"has a damaged header: {name!r:.80} does not begin where the tensor before it ends")
        whole = tensor.end
    if size != whole:
        raise ShardError(f"has {size:,} bytes and its header speaks of {whole:,}: it was cut short")
    return found


def _stored(path: Path, entry: Mapping[str, Any], begin: int) -> StoredTensor:
    """Return a tensor by its entry in a header. Raises KeyError, TypeError or ValueError for one that is none."""
    (start, end), shape, dtype = entry["data_offsets"], tuple(entry["shape"]), str(entry["dtype"])
    if not all(type(number) is int and number >= 0 for number in (start, end, *shape)):
        raise ValueError("its sizes are no whole numbers")
    num_bytes = math.prod(shape) * TRAINED[dtype] if dtype in TRAINED else max(end - start, 0)
    if end - start != num_bytes:
        raise ValueError(f"{end - start} bytes for {_by(shape)} numbers")
    return StoredTensor(path, dtype, shape, begin + start, begin + end)


def _differ(one: StoredTensor, other: StoredTensor) -> bool:
    """Return whether two tensors differ; of large ones, blocks at equal distances are compared."""
    num_bytes = one.end - one.start
    if (one.dtype, one.shape, num_bytes) != (other.dtype, other.shape, other.end - other.start):
        return True
    step = max(BLOCK, math.ceil(num_bytes / MAX_BLOCKS))
    with open_record(one.path, VAST) as first, open_record(other.path, VAST) as second:
        for place in range(0, num_bytes, step):
            size = min(BLOCK, num_bytes - place)
            first.seek(one.start + place)
            second.seek(other.start + place)
            if first.read(size) != second.read(size):
                return True
    return False
