"""How settings become Megatron's, and which rows FP8 may get."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nemo_brorl.config.parallel_layout import ParallelLayout
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.policy.model.precision import precision_settings, row_multiple, sum_gradients_in_buffers
from tests.support.model_factory import make_config


@pytest.mark.parametrize("recipe", ["delayed", "tensorwise", "blockwise"])
def test_megatron_accepts_the_settings_of_every_recipe_on_gpus(recipe: str) -> None:
    from megatron.core.transformer.transformer_config import TransformerConfig

    policy = make_config(fp8="hybrid", fp8_recipe=recipe, precision="bf16", fp8_amax_history=7, fp8_params=True).policy
    config = TransformerConfig(
        num_layers=2, hidden_size=16, num_attention_heads=1, **precision_settings(policy, on_gpu=True)
    )
    assert (config.fp8, config.fp8_recipe, config.fp8_param, config.params_dtype) == (
        "hybrid",
        recipe,
        True,
        torch.bfloat16,
    )
    assert (config.fp8_amax_history_len, config.fp8_amax_compute_algo) == (7, "max")
    assert not config.first_last_layers_bf16


def test_layers_left_in_bf16_are_named_to_megatron() -> None:
    policy = make_config(fp8="e4m3", precision="bf16", fp8_bf16_last_layers=2).policy
    settings = precision_settings(policy, on_gpu=True)
    assert settings["first_last_layers_bf16"]
    assert (settings["num_layers_at_start_in_bf16"], settings["num_layers_at_end_in_bf16"]) == (0, 2)


def test_megatron_knows_of_no_fp8_on_cpu() -> None:
    assert "fp8" not in precision_settings(make_config(fp8="hybrid").policy, on_gpu=False)


def test_an_unknown_number_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="Set one of fp32, bf16"):
        precision_settings(make_config(precision="fp16").policy, on_gpu=False)


def test_rows_are_whole_multiples_on_every_sequence_parallel_rank() -> None:
    plain_layout, cut = ParallelLayout(4, 1, 1), ParallelLayout(4, 1, 1, sequence_parallel=True)
    for policy, alone, gathered in (
        ({}, 1, 4),
        ({"fp8": "hybrid"}, 16, 64),
        ({"fp8": "e4m3", "fp8_recipe": "blockwise"}, 16, 512),
    ):
        config = make_config(**policy).policy
        assert (row_multiple(config, plain_layout), row_multiple(config, cut)) == (alone, gathered)


def test_gradients_are_summed_in_buffers_by_the_modules_that_can() -> None:
    """Transformer Engine's linears have the switch, others do not get one."""
    engines, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    engines.fuse_wgrad_accumulation = False
    sum_gradients_in_buffers(torch.nn.Sequential(engines, other))
    assert engines.fuse_wgrad_accumulation is True
    assert not hasattr(other, "fuse_wgrad_accumulation")


def test_no_gloo_groups_are_made_beside_those_of_the_device(device: Any) -> None:
    """Gloo asks for the address of the host's name, which containers often cannot resolve."""
    from megatron.core import parallel_state

    assert parallel_state._DATA_PARALLEL_GROUP_GLOO is None
    assert parallel_state._DATA_PARALLEL_GROUP_WITH_CP_GLOO is None
