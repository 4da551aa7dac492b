"""Read the pickles in a checkpoint safely: only names that such a pickle is known to contain are called.

Torch's index of a checkpoint and the scales of Transformer Engine's layers are pickles. An unpickler calls whatever a
pickle names. So they are read here by lists of names, before torch and Transformer Engine read them.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from brorl_graders.base.foreign import VAST, open_record
from torch import Tensor

# Functions and classes that torch names in its index of a checkpoint, by module. None of them does more than hold data.
_INDEX_NAMES = {
    "collections": {"OrderedDict"},
    "torch": {"Size", "bfloat16", "float16", "float32", "float64", "int32", "int64", "uint8", "bool"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.planner": {"SavePlan", "TensorWriteData", "WriteItem", "WriteItemType"},
    "torch.serialization": {"_get_layout"},
}
# Functions and classes in what Transformer Engine stores with a layer's weights: its recipe, and with the delayed
# recipe its scales.
_SCALE_NAMES = {
    "collections": {"OrderedDict"},
    "megatron.core.extensions.transformer_engine": {"TEDelayedScaling"},
    "torch._utils": {"_rebuild_tensor_v2"},
    "torch.storage": {"_load_from_bytes"},
    "transformer_engine.common.recipe": {
        "DelayedScaling",
        "Float8BlockScaling",
        "Float8CurrentScaling",
        "Format",
        "MMParams",
        "QParams",
        "_FormatHelper",
    },
}


class IndexReader(pickle.Unpickler):
    """An unpickler of torch's index of a checkpoint that accepts only the names in such an index."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a function or class that torch's index of a checkpoint names.

        Raises UnpicklingError for a name that no index has.
        """
        if name not in _INDEX_NAMES.get(module, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint does: it may be an attack")
        return super().find_class(module, name)


def check_index(path: Path) -> None:
    """Raise UnpicklingError if torch's index of a checkpoint names a function or class that no index has.

    Torch's own reader would call what the index names.
    """
    with open_record(path, VAST) as file:
        IndexReader(file).load()


class ScaleReader(pickle.Unpickler):
    """An unpickler of one layer's `_extra_state`, in which each tensor is a pickle within the pickle."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a function or class that the pickled state of a layer names.

        Raises UnpicklingError for a name that Transformer Engine never writes.
        """
        if name not in _SCALE_NAMES.get(module, ()):
            raise pickle.UnpicklingError(f"a layer's scales name {module}.{name}, which none do: it may be an attack")
        if name == "_load_from_bytes":
            return _read_storage
        return super().find_class(module, name)


def _read_storage(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)


def check_scales(state: Mapping[str, Any], plain: Collection[str]) -> None:
    """Raise UnpicklingError if the `_extra_state` of a layer names what Transformer Engine never writes there.

    Transformer Engine 2.11 calls whatever function or class a `_extra_state` names, with or without FP8. `plain` are
    the names of states that are plain numbers, which no layer unpickles.
    """
    for name, value in state.items():
        is_unpickled = "._extra_state" in name and name not in plain
        if is_unpickled and isinstance(value, Tensor) and value.numel():
            ScaleReader(io.BytesIO(value.cpu().numpy().tobytes())).load()
