"""Buckets cover the stream in order and carry exactly its bytes; an exported folder holds them under the right
names."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nemo_brorl.types import BucketNotice, TensorInfo
from nemo_brorl.weights.hf_folder import write_hf_folder
from nemo_brorl.weights.sender import WeightSender, buckets

TENSORS = [("a", torch.arange(4.0)), ("b", torch.ones(2, 3)), ("c", torch.zeros(10)), ("d", torch.full((1,), 2.0))]


def test_a_bucket_holds_as_many_tensors_as_fit() -> None:
    made = list(buckets(TENSORS, limit=40))
    assert [[info.name for info in bucket.tensors] for bucket in made] == [["a", "b"], ["c"], ["d"]]
    assert made[0].data.view(np.float32).tolist() == [0, 1, 2, 3, 1, 1, 1, 1, 1, 1]
    assert all(bucket.checksum == zlib.crc32(bucket.data.tobytes()) for bucket in made)


def test_a_tensor_larger_than_a_bucket_travels_alone() -> None:
    made = list(buckets(TENSORS, limit=20))
    assert [[info.name for info in bucket.tensors] for bucket in made] == [["a"], ["b"], ["c"], ["d"]]


def test_bfloat16_travels_as_its_bytes() -> None:
    (bucket,) = buckets([("a", torch.tensor([1.0, -2.0], dtype=torch.bfloat16))], limit=100)
    assert bucket.tensors == (TensorInfo("a", (2,), "bfloat16"),)
    assert bucket.data.view(np.uint16).tolist() == [0x3F80, 0xC000]


class FakeGroup:
    """Counts broadcasts."""

    num_sent = 0

    def broadcast(self, flat: torch.Tensor) -> None:
        self.num_sent += 1


def test_a_bucket_is_announced_before_it_is_broadcast() -> None:
    sender = WeightSender("collective", is_first_rank=True)
    group = FakeGroup()
    sender.group = group  # type: ignore[assignment]
    sent = [(type(message), group.num_sent) for message in sender.stream(TENSORS, limit=40)]
    assert sent == [(BucketNotice, 0), (BucketNotice, 1), (BucketNotice, 2)]
    assert group.num_sent == 3


def test_a_large_model_is_written_in_shards_with_an_index(tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    (source / "config.json").write_text(json.dumps({"model_type": "qwen2", "torch_dtype": "bfloat16"}))
    for name in ("tokenizer.json", "validated.json", "converted.json"):
        (source / name).write_text("{}")
    manifest = [TensorInfo(name, tuple(tensor.shape), "float32") for name, tensor in TENSORS]
    write_hf_folder(iter(TENSORS), manifest, source, folder, shard_bytes=40)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = [f"model-0000{number}-of-00003.safetensors" for number in (1, 1, 2, 3)]
    assert index["weight_map"] == dict(zip("abcd", files, strict=True))
    assert index["metadata"]["total_size"] == 84
    for name, tensor in TENSORS:
        assert torch.equal(load_file(folder / index["weight_map"][name])[name], tensor)
    assert json.loads((folder / "config.json").read_text()) == {"model_type": "qwen2", "dtype": "float32"}
    assert (folder / "tokenizer.json").exists()
    # Records are of the source's weights.
    assert not any(folder.glob("*ted.json"))


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_every_file_of_a_model_folder_has_the_mode_that_the_umask_gives(tmp_path: Path, umask: int, mode: int) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text("{}")
    (source / "tokenizer.json").write_text("{}")
    manifest = [TensorInfo(name, tuple(tensor.shape), "float32") for name, tensor in TENSORS]
    before = os.umask(umask)
    try:
        write_hf_folder(iter(TENSORS), manifest, source, tmp_path / "out", shard_bytes=40)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
    assert len(modes) > 3 and set(modes.values()) == {mode}, modes
