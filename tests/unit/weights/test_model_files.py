"""Files of a model folder are its own: an index names no other folder, and no link is followed out of it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.weight_files import check_model_files, stored_tensors
from nemo_brorl.types import TensorInfo
from nemo_brorl.weights.hf_folder import write_hf_folder
from nemo_brorl.weights.incoming import has_tied_head, read_shapes
from tests.support.source_tree import ROOT

SUMS = ROOT / "models" / "sums"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SUMS, tmp_path / "model"))


@pytest.mark.parametrize(
    "index",
    [
        '{"weight_map": {"a": "../private/model.safetensors"}}',
        '{"weight_map": {"a": "/private/model.safetensors"}}',
        '{"weight_map": {"a": "", "b": ".."}}',
        '{"weight_map": {"a": 1}}',
        '{"weight_map": [1]}',
        "{}",
        "[]",
        "{",
        "[" * 100_000,
    ],
)
def test_an_index_names_files_of_its_folder_or_is_refused(model: Path, index: str) -> None:
    (model / "model.safetensors.index.json").write_text(index)
    for read in (stored_tensors, check_model_files):
        with pytest.raises(ModelError, match="index.json"):
            read(model)


def test_weights_elsewhere_and_pipes_are_not_opened(model: Path, tmp_path: Path) -> None:
    weights = model / "model.safetensors"
    weights.rename(tmp_path / "private.safetensors")
    weights.symlink_to("../private.safetensors")
    for read in (stored_tensors, read_shapes):
        with pytest.raises(ModelError, match="outside of its folder"):
            read(model)
    weights.unlink()
    os.mkfifo(weights)
    for read in (stored_tensors, read_shapes):
        with pytest.raises(ModelError, match="no regular file"):
            read(model)
    weights.unlink()
    os.link(tmp_path / "private.safetensors", weights)
    assert set(stored_tensors(model)) == set(read_shapes(model))


def test_a_model_in_the_hubs_cache_is_read_through_its_links(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "models--org--sums"
    (cache / "snapshots" / "abc").mkdir(parents=True)
    model.rename(cache / "blobs")
    for path in (cache / "blobs").iterdir():
        (cache / "snapshots" / "abc" / path.name).symlink_to(f"../../blobs/{path.name}")
    folder = cache / "snapshots" / "abc"
    assert set(stored_tensors(folder)) == set(read_shapes(folder)) != set()
    assert has_tied_head(folder) in (True, False)


def test_an_exported_model_has_no_copy_of_what_a_link_leads_to(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:

    (tmp_path / "secret").write_text("s3cr3t")
    for name in ("generation_config.json", "notes.txt"):
        (model / name).unlink(missing_ok=True)
        (model / name).symlink_to("../secret")
    info = TensorInfo("a", (2,), "float32")
    write_hf_folder([("a", torch.zeros(2))], [info], model, tmp_path / "hf", 1 << 30)
    names = {path.name for path in (tmp_path / "hf").iterdir()}
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= names
    assert not {"generation_config.json", "notes.txt"} & names
    assert caplog.text.count("outside of its folder") == 2
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["dtype"] == "float32"
