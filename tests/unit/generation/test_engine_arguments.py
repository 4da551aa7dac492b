"""Arguments of engines: those of every recipe against the vLLM that GPUs get (tests/data/, made by
scripts/vllm_signatures.py), and `generation.engine_args` against the one that is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_brorl.config.load import load_config
from nemo_brorl.config.rules import violations
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.generation import device
from nemo_brorl.generation.engine_arguments import check_engine_arguments, known_arguments
from tests.support.source_tree import ROOT

GPU_WHEEL = json.loads((ROOT / "tests/data/vllm_signatures.json").read_text())
RECIPES = ("brorl_cpu", "brorl_1gpu", "brorl_8gpu", "brorl_64gpu", "brorl_7b", "brorl_32b", "brorl_qwen3_30b_a3b")


@pytest.mark.parametrize("recipe", RECIPES)
def test_engines_of_every_recipe_are_started_with_arguments_that_vllm_has(recipe: str) -> None:
    config = load_config(recipe, [])
    config.policy.moe.router_replay = True
    first = device.engine_settings(config.generation, RunSizes.from_config(config), Path("model"), 0)
    second = device.with_cache(first, 2**30)
    assert second.arguments.keys() <= set(GPU_WHEEL["classes"]["EngineArgs"])


def test_further_arguments_are_checked_by_name_against_the_installed_vllm() -> None:
    assert set(known_arguments()) == set(GPU_WHEEL["classes"]["EngineArgs"])
    check_engine_arguments({"kv_cache_memory_bytes": 2**30, "async_scheduling": False})
    with pytest.raises(ConfigError, match=r"engine_args.kv_cache_dtyp is no argument .*. Set kv_cache_dtype"):
        check_engine_arguments({"kv_cache_dtyp": "fp8"})


def quantised(config: BroRLConfig) -> list[str]:
    """What the rules say of quantised rollouts."""
    return [message for message in violations(config) if "quantises" in message]


def with_arguments(**arguments: Any) -> BroRLConfig:
    config = BroRLConfig()
    config.trainer.gpus_per_node = 1
    config.policy.model = "model"
    config.generation.engine_args = arguments
    return config


def test_further_arguments_reach_the_engine_and_overrides_are_merged() -> None:
    config = with_arguments(kv_cache_dtype="fp8", hf_overrides={"rope_theta": 1e6})
    config.generation.precision = "bf16"
    arguments = device.engine_settings(config.generation, RunSizes.from_config(config), Path("model"), 0).arguments
    assert arguments["kv_cache_dtype"] == "fp8"
    assert arguments["hf_overrides"] == {"head_dtype": "float32", "rope_theta": 1e6}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_num_seqs": 8}, "engine_args.max_num_seqs is a setting of its own: set generation.max_num_seqs"),
        ({"worker_extension_cls": "x"}, "engine_args.worker_extension_cls cannot be chosen"),
    ],
)
def test_arguments_that_settings_decide_are_refused(arguments: dict[str, Any], said: str) -> None:
    (message,) = with_arguments(**arguments).generation.violations()
    assert said in message


@pytest.mark.parametrize("arguments", [{"quantization": "fp8"}, {"kv_cache_dtype": "fp8_e4m3"}])
def test_quantised_rollouts_need_gpus_and_the_importance_correction(arguments: dict[str, Any]) -> None:
    config = with_arguments(**arguments)
    config.algorithm.importance_correction.enabled = True
    assert not quantised(config)
    config.algorithm.importance_correction.enabled = False
    (message,) = quantised(config)
    assert "set algorithm.importance_correction.enabled=true" in message
    config.trainer.gpus_per_node = 0
    config.algorithm.importance_correction.enabled = True
    (message,) = quantised(config)
    assert "needs GPUs" in message


def test_speculative_decoding_is_refused_on_cpu() -> None:
    config = with_arguments(speculative_config={"method": "ngram", "num_speculative_tokens": 3})
    assert not [said for said in violations(config) if "speculative" in said]
    config.trainer.gpus_per_node = 0
    (message,) = [said for said in violations(config) if "speculative" in said]
    assert "some log-probs of vLLM's CPU build are not finite" in message
