"""What an engine accepts as a weight update; no vLLM involved."""

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from nemo_brorl.core.errors import ModelError, WeightSyncError
from nemo_brorl.types import TensorInfo, WeightBucket
from nemo_brorl.weights.incoming import IncomingWeights, check_manifest, has_tied_head, read_shapes

EMBED = TensorInfo("model.embed_tokens.weight", (4, 2), "float32")
NORM = TensorInfo("model.norm.weight", (2,), "float32")
HEAD = TensorInfo("lm_head.weight", (4, 2), "float32")
EXPECTED = {EMBED.name: (4, 2), NORM.name: (2,)}


def bucket_of(*tensors: TensorInfo) -> WeightBucket:
    data = np.arange(sum(info.num_bytes for info in tensors), dtype=np.uint8)
    return WeightBucket(tensors, data, zlib.crc32(data))


def write_model(folder: Path) -> bytes:
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    path = folder / "model.safetensors"
    save_file({EMBED.name: np.zeros((4, 2), np.float32)}, path, metadata={"format": "pt"})
    return path.read_bytes()


def test_shapes_come_from_the_header(tmp_path: Path) -> None:
    write_model(tmp_path)
    assert read_shapes(tmp_path) == {EMBED.name: (4, 2)}
    assert has_tied_head(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="it needs config.json"):
        read_shapes(tmp_path)


@pytest.mark.parametrize("num_bytes", [2, 20, -1], ids=["length", "header", "data"])
def test_a_file_that_is_cut_short_is_refused(num_bytes: int, tmp_path: Path) -> None:
    whole = write_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(whole[:num_bytes])
    with pytest.raises(ModelError, match=r"model\.safetensors (of \d+ bytes is no safetensors file|has .* it was cut)"):
        read_shapes(tmp_path)


def test_a_tied_head_may_be_listed_or_left_out_and_an_untied_one_may_not() -> None:
    check_manifest([EMBED, NORM], EXPECTED, is_tied=True)
    check_manifest([EMBED, NORM, HEAD], EXPECTED, is_tied=True)
    check_manifest([EMBED, NORM], EXPECTED | {HEAD.name: (4, 2)}, is_tied=True)
    with pytest.raises(WeightSyncError, match=HEAD.name):
        check_manifest([EMBED, NORM], EXPECTED | {HEAD.name: (4, 2)}, is_tied=False)


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ([EMBED], "lacks model.norm.weight"),
        ([EMBED, NORM, HEAD], "has lm_head.weight, which the engine's model does not have"),
        ([EMBED, TensorInfo(NORM.name, (3,), "float32")], r"in shape \(3,\); the engine's model has \(2,\)"),
        ([EMBED, TensorInfo(NORM.name, (2,), "int8")], "as int8; engines load only float32"),
        ([EMBED, NORM, NORM], "names model.norm.weight 2 times"),
    ],
)
def test_a_manifest_that_does_not_fit_names_the_tensor(manifest: list[TensorInfo], message: str) -> None:
    with pytest.raises(WeightSyncError, match=message):
        check_manifest(manifest, EXPECTED, is_tied=False)


def test_a_whole_stream_is_counted() -> None:
    incoming = IncomingWeights([EMBED, NORM])
    assert not incoming.has_started
    incoming.accept(bucket_of(EMBED))
    incoming.accept(bucket_of(NORM))
    report = incoming.finish(version=5)
    assert (report.version, report.num_tensors, report.num_bytes) == (5, 2, 40)


def test_the_checksum_tells_streams_apart() -> None:
    one, other = IncomingWeights([NORM]), IncomingWeights([NORM])
    one.accept(bucket_of(NORM))
    data = np.zeros(8, np.uint8)
    other.accept(WeightBucket((NORM,), data, zlib.crc32(data)))
    assert one.finish(1).checksum != other.finish(1).checksum


def test_a_changed_byte_is_refused() -> None:
    bucket = bucket_of(EMBED)
    bucket.data[3] ^= 1
    with pytest.raises(WeightSyncError, match="embed_tokens.weight arrived with checksum"):
        IncomingWeights([EMBED]).accept(bucket)


def test_missing_bytes_are_refused() -> None:
    bucket = bucket_of(NORM)
    with pytest.raises(WeightSyncError, match="has 4 bytes, its tensors need 8"):
        IncomingWeights([NORM]).accept(WeightBucket(bucket.tensors, bucket.data[:4], bucket.checksum))


def test_buckets_out_of_order_are_refused() -> None:
    with pytest.raises(WeightSyncError, match="out of order"):
        IncomingWeights([EMBED, NORM]).accept(bucket_of(NORM))


def test_a_bucket_after_the_end_is_refused() -> None:
    incoming = IncomingWeights([NORM])
    incoming.accept(bucket_of(NORM))
    with pytest.raises(WeightSyncError, match="the stream is over"):
        incoming.accept(bucket_of(EMBED))


def test_a_stream_that_ends_early_is_refused() -> None:
    incoming = IncomingWeights([EMBED, NORM])
    incoming.accept(bucket_of(EMBED))
    with pytest.raises(WeightSyncError, match="ended after 1 of 2 tensors; model.norm.weight is missing"):
        incoming.finish(1)
