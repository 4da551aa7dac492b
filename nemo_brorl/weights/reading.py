"""Read Hugging Face weights into a rank's parameters, tensor by tensor, and of each only this rank's share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.model_folder import check_model_file, shard_names
from nemo_brorl.core.model_shape import ModelShape, hf_shapes
from nemo_brorl.weights.names import NamedTensors, local_slots
from nemo_brorl.weights.parameters import fill
from nemo_brorl.weights.shares import RankGroups, pack, slices_of

# Buffers in old checkpoints that are not weights.
_NO_WEIGHTS = ("rotary_emb.inv_freq",)


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
    files = tensor_files(folder)
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


def tensor_files(folder: Path) -> dict[str, Path]:
    """Return which safetensors file of a model folder holds each tensor, by tensor name.

    Raises ModelError when the folder has no safetensors file, the file is not complete, or the index names a file
    elsewhere.
    """
    names = shard_names(folder)
    if names is not None:
        return {name: folder / file for name, file in names.items()}
    path = folder / "model.safetensors"
    if not path.exists():
        raise ModelError(f"{folder} holds neither model.safetensors nor model.safetensors.index.json")
    with _open(path) as opened:
        return dict.fromkeys(opened.keys(), path)


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
    present = {name for name in files if not name.endswith(_NO_WEIGHTS)}
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
