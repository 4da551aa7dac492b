"""Model folders as people have them are read, or refused before anything starts with what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.model_folder import local_model
from nemo_brorl.core.model_shape import read_model_shape
from nemo_brorl.core.template_files import TemplateSettings
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.core.weight_files import INDEX, WEIGHTS, check_model_files
from nemo_brorl.prompts.prompt_check import unread_arguments
from nemo_brorl.weights.incoming import read_shapes
from tests.support.source_tree import ROOT

SUMS = ROOT / "models" / "sums"
Q, NORM = "model.layers.0.self_attn.q_proj.weight", "model.norm.weight"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SUMS, tmp_path / "model"))


def change(folder: Path, **entries: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def rewrite(folder: Path, changed: Callable[[Tensors], Tensors]) -> None:
    tensors = changed(load_file(folder / "model.safetensors"))
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as refused:
        check_model_files(folder)
    return str(refused.value)


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "base_model.model.", "language_model."])
def test_names_with_a_prefix_of_a_wrapper_are_shown(model: Path, prefix: str) -> None:
    rewrite(model, lambda tensors: {f"{prefix}{name}": tensor for name, tensor in tensors.items()})
    assert f"model.embed_tokens.weight for one, and {prefix}model.embed_tokens.weight is there" in refusal(model)


def test_names_without_their_prefix_are_shown(model: Path) -> None:
    rewrite(model, lambda tensors: {name.removeprefix("model."): tensor for name, tensor in tensors.items()})
    assert "and embed_tokens.weight is there: rename the tensors" in refusal(model)


@pytest.mark.parametrize(("dtype", "name"), [(torch.int8, "I8"), (torch.float8_e4m3fn, "F8_E4M3"), (torch.uint8, "U8")])
def test_weights_of_types_that_are_not_trained_are_refused(model: Path, dtype: torch.dtype, name: str) -> None:
    rewrite(model, lambda tensors: {**tensors, Q: tensors[Q].to(dtype)})
    assert f"{Q} holds {name} numbers, as quantised weights do" in refusal(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_none_are_named_by_tensor(model: Path, dtype: torch.dtype, number: float) -> None:
    def changed(tensors: Tensors) -> Tensors:
        there = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        there[NORM][3] = number
        return there

    rewrite(model, changed)
    assert f"{NORM} holds NaN or infinite numbers" in refusal(model)
    rewrite(model, lambda tensors: {**tensors, NORM: torch.full_like(tensors[NORM], 60000.0)})
    check_model_files(model)


def test_tensors_that_the_model_does_not_have_are_refused_and_buffers_are_none(model: Path) -> None:
    rewrite(model, lambda tensors: {**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)})
    check_model_files(model)
    assert not any("rotary" in name for name in read_shapes(model))
    rewrite(model, lambda tensors: {**tensors, "visual.patch_embed.weight": torch.zeros(4)})
    assert "1 tensors are not those of config.json, visual.patch_embed.weight for one" in refusal(model)


def test_a_config_of_fewer_layers_or_another_family_names_what_would_be_lost(model: Path) -> None:
    change(model, num_hidden_layers=1)
    assert "24 tensors are not those of config.json, model.layers.1." in refusal(model)
    change(model, num_hidden_layers=3, model_type="llama")
    assert "9 tensors are not those of config.json, model.layers.0.self_attn.k_proj.bias for one" in refusal(model)


@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", "model-00001-of-00001.safetensors"])
def test_a_part_without_an_index_is_refused_as_training_and_transformers_do(model: Path, name: str) -> None:
    (model / WEIGHTS).rename(model / name)
    assert f"{INDEX} is missing, which says what {name} holds: download it, too" in refusal(model)
    with pytest.raises(ModelError, match="is missing"):
        read_shapes(model)


def test_weights_of_another_name_are_renamed(model: Path) -> None:
    (model / WEIGHTS).rename(model / "weights.safetensors")
    assert f"only weights.safetensors: name it {WEIGHTS} if it holds the whole model" in refusal(model)


def test_a_second_copy_of_the_weights_under_other_names_is_left_out(model: Path) -> None:
    save_file({"layers.0.wq.weight": torch.zeros(4)}, model / "consolidated.safetensors")
    check_model_files(model)
    assert "layers.0.wq.weight" not in read_shapes(model)


def test_an_index_that_names_the_wrong_file_of_a_tensor_loses_it(model: Path) -> None:
    names = load_file(model / WEIGHTS)
    save_file({NORM: names[NORM]}, model / "other.safetensors")
    index = {"weight_map": {name: WEIGHTS for name in names} | {NORM: "other.safetensors"}}
    (model / INDEX).write_text(json.dumps(index))
    check_model_files(model)
    index["weight_map"]["model.embed_tokens.weight"] = "other.safetensors"
    (model / INDEX).write_text(json.dumps(index))
    assert "1 tensors are missing, model.embed_tokens.weight for one" in refusal(model)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"architectures": ["Qwen2ForSequenceClassification"]}, "of a Qwen2ForSequenceClassification, which writes no"),
        ({"architectures": ["Qwen2Model"]}, "of a Qwen2Model, which writes no text"),
        ({"rms_norm_eps": -1e-6}, "-1e-06 is not above 0"),
        ({"rope_theta": 0, "rope_parameters": None}, "0 is not above 0"),
    ],
)
def test_a_config_of_no_language_model_is_refused(model: Path, entries: dict[str, Any], words: str) -> None:
    change(model, **entries)
    with pytest.raises(ModelError, match=words):
        read_model_shape(model)


@pytest.mark.parametrize("below", ["checkpoint-500", "snapshots/abc"])
def test_a_folder_around_a_model_is_answered_with_the_model(tmp_path: Path, below: str) -> None:
    shutil.copytree(SUMS, tmp_path / below)
    with pytest.raises(ModelError, match=f"one is below it. Set policy.model={tmp_path / below}"):
        read_model_shape(tmp_path)


def test_an_adapter_is_answered_with_how_to_merge_it(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="holds an adapter .* merge_and_unload"):
        read_model_shape(tmp_path)


def test_a_file_or_an_address_is_answered_with_the_folder_or_the_name() -> None:
    with pytest.raises(ModelError, match=f"is a file: .* policy.model={SUMS}$"):
        local_model(str(SUMS / "config.json"))
    with pytest.raises(ModelError, match="is an address: set the name alone, policy.model=Qwen/Qwen2.5-0.5B$"):
        local_model("https://huggingface.co/Qwen/Qwen2.5-0.5B/tree/main")


def test_an_argument_that_the_chat_template_does_not_read_is_named(model: Path) -> None:
    settings = TemplateSettings(arguments={"enable_thinking": False})
    (said,) = unread_arguments(load_tokenizer(model, template=settings))
    assert said.startswith("data.template_arguments.enable_thinking is not read by the model's chat template, which")
    template = model / "chat_template.jinja"
    template.write_text(template.read_text() + "{% if enable_thinking is defined and not enable_thinking %}{% endif %}")
    assert list(unread_arguments(load_tokenizer(model, template=settings))) == []
