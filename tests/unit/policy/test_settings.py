"""Layouts, number formats and model folders that cannot work are refused with what to write instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_brorl.config.model_rules import check_policy_fits
from nemo_brorl.config.parallel_layout import ParallelLayout, layout_of
from nemo_brorl.core.errors import ConfigError, ModelError, ResourceError
from nemo_brorl.core.model_shape import read_model_shape
from nemo_brorl.policy.process.device import open_device
from tests.support.model_factory import make_config


def test_ranks_are_the_product_of_the_degrees() -> None:
    layout = layout_of(make_config(tensor_model_parallel_size=2, pipeline_model_parallel_size=3, data_parallel_size=4))
    assert layout.world_size == 24
    assert layout.report_rank == 16  # first of the 8 ranks of the last stage


def test_on_cpu_there_is_one_replica_unless_told_otherwise() -> None:
    assert layout_of(make_config()) == ParallelLayout(1, 1, 1)


def test_on_gpus_replicas_fill_what_engines_leave() -> None:
    config = make_config(tensor_model_parallel_size=2)
    config.trainer.num_nodes, config.trainer.gpus_per_node = 2, 8
    assert layout_of(config).data == 8
    config.generation.placement, config.generation.num_engines, config.generation.tensor_parallel_size = (
        "disaggregated",
        2,
        4,
    )
    assert layout_of(config).data == 4


def test_heads_and_layers_must_divide(model_folder: Path) -> None:
    check_policy_fits(
        make_config(tensor_model_parallel_size=2, pipeline_model_parallel_size=4).policy, model_folder, on_gpu=False
    )
    with pytest.raises(ConfigError, match="tensor_model_parallel_size=4 is more than the model's 2 key-value heads"):
        check_policy_fits(make_config(tensor_model_parallel_size=4).policy, model_folder, on_gpu=False)
    with pytest.raises(ConfigError, match="pipeline_model_parallel_size=3 does not divide the model's 4 layers"):
        check_policy_fits(make_config(pipeline_model_parallel_size=3).policy, model_folder, on_gpu=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' cannot be trained"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type 'longrope' is not supported"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}}, "has no 'factor'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5 is not supported"),
        ({"attention_bias": True, "model_type": "llama"}, "attention_bias=true is not supported for llama"),
    ],
)
def test_models_of_another_kind_are_refused(
    change: dict[str, Any], message: str, model_folder: Path, tmp_path: Path
) -> None:
    config = json.loads((model_folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ModelError, match=message):
        read_model_shape(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere has no config.json"):
        read_model_shape(tmp_path / "nowhere")


def test_the_rope_base_is_found_in_old_and_new_configs(model_folder: Path, tmp_path: Path) -> None:
    config = json.loads((model_folder / "config.json").read_text())
    del config["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_theta": 1e6}))
    assert read_model_shape(tmp_path).rope.base == 1e6
    assert read_model_shape(model_folder).rope.base == 1e4


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_asking_for_a_gpu_without_one_is_an_error() -> None:
    with pytest.raises(ResourceError, match="set trainer.gpus_per_node=0"):
        open_device(on_gpu=True, num_threads=1)
