"""Model folders whose files are cut, missing, or of another shape than their config says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.model_shape import read_model_shape
from nemo_brorl.core.weight_files import check_model_files, has_weights
from tests.support.source_tree import ROOT

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 990328\n"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "models" / "sums", tmp_path / "model"))


def change(folder: Path, **entries: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as refused:
        check_model_files(folder)
    return str(refused.value)


def test_a_whole_folder_passes(model: Path) -> None:
    check_model_files(model)


def test_a_file_that_was_cut_short_is_named_with_its_sizes(model: Path) -> None:
    path = model / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert f"has {len(whole) // 2:,} bytes and its header speaks of {len(whole):,}" in refusal(model)
    path.write_bytes(whole[:100])
    assert "model.safetensors of 100 bytes is no safetensors file, or was cut short" in refusal(model)


def test_a_file_that_cannot_be_read_is_named_once(model: Path) -> None:
    index = model / "model.safetensors.index.json"
    index.write_text("{")
    message = refusal(model)
    assert message.count("cannot be read") == message.count(index.name) == 1
    index.unlink()
    (model / "config.json").write_text("[]")
    assert refusal(model) == f"{model}/config.json cannot be read: it holds a list, not an object"


def test_a_git_lfs_pointer_says_what_to_run(model: Path) -> None:
    (model / "model.safetensors").write_text(POINTER)
    assert "run `git lfs pull`" in refusal(model)
    (model / "model.safetensors").write_bytes(b"")
    assert "model.safetensors" in refusal(model)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.gguf"])
def test_weights_in_another_format_say_how_to_write_safetensors(model: Path, name: str) -> None:
    (model / "model.safetensors").rename(model / name)
    assert f"only {name}: write them with transformers" in refusal(model)
    assert has_weights(model)


@pytest.mark.parametrize(
    ("shape", "offsets"),
    [
        ("[1]", "[]"),
        ("[1]", "[Infinity, 4]"),
        ("[1e999]", "[0, 4]"),
        ("[1]", "[-400, -396]"),
        ("[1]", "[8, 4]"),
        ("[1]", "[0, 3]"),
        ("[-1, -1]", "[0, 4]"),
        ("[1000000, 1000000]", "[0, 4]"),
        ("[true]", "[false, 4]"),
        ("[0]", "[4, 4]"),
    ],
)
def test_a_tensor_whose_place_is_none_is_a_damaged_header(model: Path, shape: str, offsets: str) -> None:
    tensor = '{"dtype": "F32", "shape": %s, "data_offsets": %s}'
    header = f'{{"a": {tensor % ("[2]", "[0, 8]")}, "b": {tensor % (shape, offsets)}}}'.encode()
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    assert "model.safetensors has a damaged header" in refusal(model)


def test_a_header_longer_than_the_library_reads_is_refused_unread(model: Path) -> None:
    (model / "model.safetensors").write_bytes((100_000_001).to_bytes(8, "little") + b"{")
    assert "model.safetensors of 9 bytes is no safetensors file" in refusal(model)


@pytest.mark.parametrize(
    ("entry", "value", "told"),
    [
        ("intermediate_size", 128, "mlp.gate_proj.weight has 256 × 128 numbers, config.json says 128 × 128"),
        ("vocab_size", 512, "embed_tokens.weight has 384 × 128 numbers, config.json says 512 × 128"),
        ("num_key_value_heads", 4, "k_proj.weight has 64 × 128 numbers, config.json says 128 × 128"),
        ("head_dim", 16, "q_proj.weight has 128 × 128 numbers, config.json says 64 × 128"),
        ("num_hidden_layers", 4, "12 tensors are missing, model.layers.3"),
    ],
)
def test_sizes_of_the_config_are_those_of_the_tensors(model: Path, entry: str, value: int, told: str) -> None:
    change(model, **{entry: value})
    assert told in refusal(model)


def add_head(folder: Path, change_by: float) -> None:
    tensors = load_file(folder / "model.safetensors")
    head = tensors[EMBEDDING].clone()
    head[-1, -1] += change_by
    save_file({**tensors, HEAD: head}, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_head_that_is_not_the_embedding_it_is_tied_to_is_refused(model: Path) -> None:
    add_head(model, 1.0)
    assert "write tie_word_embeddings=false into config.json" in refusal(model)
    change(model, tie_word_embeddings=False)
    check_model_files(model)


def test_a_copy_of_the_embedding_may_stand_as_the_head(model: Path) -> None:
    add_head(model, 0.0)
    check_model_files(model)


@pytest.mark.parametrize(
    ("entry", "method"),
    [
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, "fp8"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ({"compression_config": {"format": "int-quantized"}}, "compression_config"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "quantization"),
    ],
)
def test_a_quantised_checkpoint_is_refused(model: Path, entry: dict[str, Any], method: str) -> None:
    change(model, **entry)
    with pytest.raises(ModelError, match=rf"policy.model is quantised \({method}"):
        read_model_shape(model)


def test_an_empty_entry_of_quantisation_is_none(model: Path) -> None:
    change(model, quantization_config=None)
    check_model_files(model)
