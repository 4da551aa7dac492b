"""Check that the files of a model folder are whole, from their headers: in milliseconds, whatever the model's size."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from brorl_graders.base.foreign import VAST, RecordError, open_record, read_json, record_object

from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.files import why_unreadable
from nemo_brorl.core.model_folder import MAX_JSON
from nemo_brorl.core.model_shape import ModelShape, hf_shapes, read_model_shape

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack")
MAX_HEADER = 100_000_000  # largest safetensors header in bytes, as the library has it
MAX_NAMED = 4  # faults in one message
POINTER = b"version https://git-lfs"  # first bytes of a Git LFS pointer
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TRAINED = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}  # bytes of a number, by its type
# Bits that are all set in a NaN or an infinity.
EXPONENTS = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000}
NO_WEIGHTS = ("rotary_emb.inv_freq", "masked_bias")  # ends of names of buffers in old checkpoints
INDEX, WEIGHTS = "model.safetensors.index.json", "model.safetensors"
SHARD = re.compile(r".*-\d+-of-\d+\.safetensors")
BLOCK = 1 << 16  # bytes compared at a time
MAX_BLOCKS = 4096  # blocks of one tensor that are compared


class StoredTensor(NamedTuple):
    """Where a tensor is stored."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int  # byte of the file
    end: int


class DamagedError(Exception):
    """Files of weights are missing or damaged. The message names the file, and follows the folder's name."""


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
    try:
        tensors = _tensors(folder)
    except DamagedError as error:
        yield str(error)
        return
    yield from misfits(tensors, hf_shapes(shape), shape.is_tied)
    yield from _not_trained(tensors)
    yield from _not_finite(tensors)
    if shape.is_tied and HEAD in tensors and EMBEDDING in tensors and _differ(tensors[HEAD], tensors[EMBEDDING]):
        yield (
            f"{HEAD} differs from {EMBEDDING} although they are tied: write tie_word_embeddings=false into config.json "
            f"if the head was trained, or else delete {HEAD}"
        )


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a model folder by name: of model.safetensors, or of the files that its index names.

    Further files and buffers that are no weights are left out. Raises ModelError if the files are not whole.
    """
    try:
        return _tensors(folder)
    except DamagedError as error:
        raise ModelError(f"{folder}: {error}") from error


def _tensors(folder: Path) -> dict[str, StoredTensor]:
    if (folder / INDEX).exists():
        files = _files_by_tensor(folder / INDEX)
    elif (folder / WEIGHTS).exists():
        files = dict.fromkeys(read_shard(folder / WEIGHTS), WEIGHTS)
    else:
        raise DamagedError(_no_weights(folder))
    names = sorted(set(files.values()))
    if missing := [name for name in names if not (folder / name).exists()]:
        raise DamagedError("; ".join(f"{name} is missing" for name in missing[:MAX_NAMED]))
    found = {name: read_shard(folder / name) for name in names}
    return {
        tensor: found[file][tensor]
        for tensor, file in files.items()
        if tensor in found[file] and not tensor.endswith(NO_WEIGHTS)
    }


def _files_by_tensor(index: Path) -> dict[str, str]:
    try:
        files = record_object(index, MAX_JSON)["weight_map"]
    except (OSError, RecordError, KeyError) as error:
        raise DamagedError(f"{index.name} cannot be read ({why_unreadable(error)})") from error
    if not isinstance(files, dict) or not all(map(_is_name, files.values())):
        raise DamagedError(f"{index.name}: its weight_map does not name a file of this folder for each tensor")
    return files


def _is_name(file: Any) -> bool:
    return isinstance(file, str) and file.strip(".") != "" and Path(file).name == file


def _no_weights(folder: Path) -> str:
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    if len(shards) > 1 or any(SHARD.fullmatch(name) for name in shards):
        return f"{INDEX} is missing, which says what {shards[0]} holds: download it, too"
    if shards:
        return f"there is no {WEIGHTS}, only {shards[0]}: name it {WEIGHTS} if it holds the whole model"
    others: list[str] = []
    for pattern in OTHER_WEIGHTS:
        others += sorted(path.name for path in folder.glob(pattern))
    if not others:
        return "there are no weights (*.safetensors)"
    return (
        f"there are no weights in safetensors, only {others[0]}: write them with transformers, "
        "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW, safe_serialization=True)"
    )


def misfits(tensors: Mapping[str, StoredTensor], shapes: Mapping[str, tuple[int, ...]], is_tied: bool) -> Iterator[str]:
    """Yield the tensors that are missing, left over, or of another size than config.json says."""
    lacking = [name for name in shapes if name not in tensors]
    if lacking:
        found = next((name for name in tensors if name.endswith(lacking[0]) or lacking[0].endswith(f".{name}")), None)
        instead = f", and {found} is there: rename the tensors" if found else ""
        yield f"{len(lacking)} tensors are missing, {lacking[0]} for one{instead}"
    # Some tools also write the copy of a tied embedding.
    left_over = [name for name in tensors if name not in shapes and not (is_tied and name == HEAD)]
    if left_over:
        yield (
            f"{len(left_over)} tensors are not those of config.json, {left_over[0]} for one: correct config.json, or "
            "leave them out with AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW)"
        )
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

    Raises DamagedError.
    """
    try:
        with open_record(path, VAST) as file:
            first = file.read(8)
            if POINTER.startswith(first) and first:
                raise DamagedError(f"{path.name} is a Git LFS pointer and no weights: run `git lfs pull` in its folder")
            length = int.from_bytes(first, "little")
            size = os.fstat(file.fileno()).st_size
            header = None
            if length <= min(MAX_HEADER, size - 8):
                header = read_json(file.read(length), most_bytes=MAX_HEADER)
    except (OSError, ValueError, RecordError) as error:
        raise DamagedError(f"{path.name} cannot be read ({why_unreadable(error)})") from error
    if not isinstance(header, dict):
        raise DamagedError(f"{path.name} of {size:,} bytes is no safetensors file, or was cut short")
    header.pop("__metadata__", None)
    begin = 8 + length
    try:
        found = {name: _stored(path, entry, begin) for name, entry in header.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"{path.name} has a damaged header ({error!r:.80})") from error
    whole = begin
    for name, tensor in sorted(found.items(), key=lambda item: item[1][-2:]):
        if tensor.start != whole:
            raise DamagedError(
                f"{path.name} has a damaged header: {name!r:.80} does not begin where the tensor before it ends"
            )
        whole = tensor.end
    if size != whole:
        raise DamagedError(f"{path.name} has {size:,} bytes and its header speaks of {whole:,}: it was cut short")
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
