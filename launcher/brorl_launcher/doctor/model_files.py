"""Check the folder of policy.model: all files there, none cut short, and settings that fit the model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from brorl_graders.base.foreign import VAST, open_record, read_json

from brorl_launcher.doctor.probe import call_within
from brorl_launcher.doctor.report import FAIL, OK, WARN, Check
from nemo_brorl.config.model_rules import misfits
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import BroRLError, ModelError
from nemo_brorl.core.machine import GIB
from nemo_brorl.core.model_folder import local_model, model_object
from nemo_brorl.core.model_shape import ModelShape, hf_shapes, read_model_shape

MODEL_DEADLINE_S = 60.0
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
MAX_HEADER = 1 << 28  # largest safetensors header in bytes
MAX_NAMED = 4  # faults in one message

ModelVerdict = tuple[Check, ModelShape | None]


def check_model(config: BroRLConfig) -> ModelVerdict:
    """Check the model that the setting policy.model names.

    Returns the check, and the model's shape where it could be read.
    """
    reason = f"{config.policy.model} has not answered for {MODEL_DEADLINE_S:.0f} s"
    late = Check("model", FAIL, reason, "is its file server up?")
    verdict: ModelVerdict = call_within(MODEL_DEADLINE_S, lambda: _judge_model(config), (late, None))
    return verdict


def _judge_model(config: BroRLConfig) -> ModelVerdict:
    name = config.policy.model
    try:
        folder = local_model(name) or cached_model(name)
        if folder is None:
            return _not_here(name), None
        shape = read_model_shape(folder)
    except BroRLError as error:
        if name == config.sft.new.output and not Path(name).exists():
            advice = "`make train` makes it first, or brorl base"
            return Check("model", WARN, f"{name} has not been made yet", advice), None
        return Check("model", FAIL, str(error)), None
    faults = list(misfits(config, shape))
    faults += folder_faults(folder, shape)
    if faults:
        more = f" (and {len(faults) - MAX_NAMED} more)" if len(faults) > MAX_NAMED else ""
        found = f"{folder}: {'; '.join(faults[:MAX_NAMED])}{more}"
        return Check("model", FAIL, found, "download or export it again"), shape
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    size = sum(sizes)
    return Check("model", OK, f"{folder}: {shape.num_layers} layers, {size / GIB:,.2f} GiB, complete"), shape


def cached_model(name: str) -> Path | None:
    """Return the folder of a Hugging Face model in the hub's cache, or None if it is not cached."""
    user = Path.home() / ".cache" / "huggingface"
    home = Path(os.environ.get("HF_HOME") or user)
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    cache = hub / f"models--{name.replace('/', '--')}"
    head = cache / "refs" / "main"
    if not head.is_file():
        return None
    commit = head.read_text(encoding="ascii").strip()
    folder = cache / "snapshots" / commit
    return folder if folder.is_dir() else None


def _not_here(name: str) -> Check:
    advice = (
        f"`hf download {name} --local-dir FOLDER` on a machine with a network, FOLDER where all nodes see it; then "
        "policy.model=FOLDER"
    )
    offline = os.environ.get("HF_HUB_OFFLINE", "")
    if offline.lower() in ("1", "true", "yes", "on"):
        found = f"{name} is not in the hub's cache, and HF_HUB_OFFLINE forbids to download it"
        return Check("model", FAIL, found, advice)
    return Check("model", WARN, f"{name} is not in the hub's cache: every node downloads it at the start", advice)


def folder_faults(folder: Path, shape: ModelShape) -> Iterator[str]:
    """Yield the faults of a model folder: files that are missing or cut short."""
    if not any((folder / name).is_file() for name in TOKENIZERS):
        yield "there is no tokenizer (tokenizer.json)"
    index = folder / "model.safetensors.index.json"
    shards = sorted(folder.glob("*.safetensors"))
    if index.is_file():
        try:
            weight_map = model_object(index)["weight_map"]
            named = {str(file) for file in weight_map.values()}
        except (ModelError, KeyError, AttributeError, TypeError) as error:
            yield f"{index.name} cannot be read ({error})"
            return
        there = {path.name for path in shards}
        for name in sorted(named - there):
            yield f"{name} is missing"
        shards = [path for path in shards if path.name in named]
    elif not shards:
        yield "there are no weights (*.safetensors)"
        return
    tensors: set[str] = set()
    for path in shards:
        names, fault = read_shard(path)
        tensors |= names
        if fault:
            yield f"{path.name} {fault}"
            return
    lacking = [name for name in hf_shapes(shape) if name not in tensors]
    if lacking:
        yield f"{len(lacking)} tensors are missing, {lacking[0]} for one"


def read_shard(path: Path) -> tuple[set[str], str]:
    """Return the tensor names of a safetensors file, and what is wrong with the file, or an empty text.

    Only the header is read. It is compared with the file's length.
    """
    try:
        with open_record(path, VAST) as file:
            length = int.from_bytes(file.read(8), "little")
            header = None
            if length <= MAX_HEADER:
                header = read_json(file.read(length), most_bytes=MAX_HEADER)
            size = os.fstat(file.fileno()).st_size
    except (OSError, ValueError) as error:
        return set(), f"cannot be read ({error})"
    if not isinstance(header, dict):
        return set(), "is no safetensors file"
    header.pop("__metadata__", None)
    try:
        ends = [int(tensor["data_offsets"][1]) for tensor in header.values()]
    except (LookupError, TypeError, ValueError):
        return set(), "is no safetensors file"
    whole = 8 + length + max(ends, default=0)
    if size != whole:
        return set(header), f"has {size:,} bytes and its header speaks of {whole:,}: it was cut short"
    return set(header), ""
