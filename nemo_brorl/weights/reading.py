"""Read Hugging Face weights into a rank's parameters, tensor by tensor, and of each only this rank's share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.model_folder import check_model_file
from nemo_brorl.core.model_shape import ModelShape, hf_shapes
from nemo_brorl.core.weight_files import stored_tensors
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
    files = {name: tensor.path for name, tensor in stored_tensors(folder).items()}
    expected = hf_shapes(shape)
    _check_names(files, expected, shape, folder)
    opened = {}
    for path in set(files.values()):
        opened[path] = _open(path)
    for slot, param in local_slots(models, shape, groups.experts):
        group = groups.splitting(slot)
        shares = []
        for name in slot.names:
            whole = opened[files[name]].get_slice(name)
            size = tuple(whole.get_shape())
            if size != expected[name]:
                raise ModelError(f"{files[name]}: {name} has shape {size}, but config.json says {expected[name]}")
            own_slices = slices_of(slot.kind, size, group.size(), group.rank())
            shares.append(torch.cat([whole[rows] for rows in own_slices]))
        # The share is packed on the host, because the parameter may be on a GPU or quantised.
        local = torch.empty(param.shape, dtype=param.dtype)
        pack(slot.kind, shares, local, shape)
        fill(param, local)


def _open(path: Path) -> Any:
    check_model_file(path)
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} is not a whole safetensors file: {error}") from error


def _check_names(
    files: dict[str, Path],
    expected: dict[str, tuple[int, ...]],
    shape: ModelShape,
    folder: Path,
) -> None:
    present = set(files)
    if shape.is_tied:
        # Some tools also write the copy of a tied embedding.
        present.discard("lm_head.weight")
    missing = sorted(expected.keys() - present)
    left_over = sorted(present - expected.keys())
    if missing or left_over:
        missing_names = ", ".join(missing) or "none"
        left_over_names = ", ".join(left_over) or "none"
        raise ModelError(
            f"the tensors in {folder} are not those its config.json describes: "
            f"missing {missing_names}; left over {left_over_names}"
        )
