"""Read Hugging Face weights into a rank's parameters, tensor by tensor, and of each only this rank's share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open

from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.model_shape import ModelShape, hf_shapes
from nemo_brorl.core.weight_files import joined, misfits, stored_tensors
from nemo_brorl.weights.names import NamedTensors, local_slots
from nemo_brorl.weights.parameters import fill
from nemo_brorl.weights.shares import RankGroups, pack, slices_of


@torch.no_grad()
def load_hf(
    models: Sequence[NamedTensors],
    shape: ModelShape,
    folder: Path,
    groups: RankGroups,
) -> None:
    """Fill this rank's parameters from the safetensors files of a model folder.

    Reads one tensor at a time, and of each only this rank's share. Raises ModelError naming tensors that are missing,
    left over or of another shape.
    """
    tensors = stored_tensors(folder)
    faults = list(misfits(tensors, hf_shapes(shape), shape.is_tied))
    if faults:
        raise ModelError(f"{folder}: {joined(faults)}")
    opened = {}
    for path in {tensor.path for tensor in tensors.values()}:
        opened[path] = safe_open(path, framework="pt")
    for slot, param in local_slots(models, shape, groups.experts):
        group = groups.splitting(slot)
        shares = []
        for name in slot.names:
            whole = opened[tensors[name].path].get_slice(name)
            own_slices = slices_of(slot.kind, tensors[name].shape, group.size(), group.rank())
            shares.append(torch.cat([whole[rows] for rows in own_slices]))
        # The share is packed on the host, because the parameter may be on a GPU or quantised.
        local = torch.empty(param.shape, dtype=param.dtype)
        pack(slot.kind, shares, local, shape)
        fill(param, local)
