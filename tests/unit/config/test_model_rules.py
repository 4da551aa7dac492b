"""Rules that read the model's config.json, and the memory estimate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_brorl.config.generation import CPU_HEAD_SIZES
from nemo_brorl.config.load import load_config
from nemo_brorl.config.memory import check_memory, needed_gib
from nemo_brorl.config.model_rules import check_model_rules, misfits
from nemo_brorl.core.errors import ConfigError, ModelError, ResourceError
from nemo_brorl.core.machine import available_gib
from nemo_brorl.core.model_folder import local_model
from nemo_brorl.core.model_shape import num_parameters, read_model_shape
from tests.support.source_tree import ROOT

SMALL = {
    "model_type": "qwen2",
    "rms_norm_eps": 1e-6,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 704,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


def write_model(folder: Path, **changes: object) -> str:
    (folder / "config.json").write_text(json.dumps({**SMALL, **changes}))
    return f"policy.model={folder}"


ON_GPUS = ["trainer.gpus_per_node=8", "policy.data_parallel_size=null"]

MISFITS = [
    (["policy.tensor_model_parallel_size=3"], "does not divide the model's 4 attention heads: set 2"),
    (["policy.tensor_model_parallel_size=4"], "is more than the model's 2 key-value heads"),
    (["policy.pipeline_model_parallel_size=3"], "does not divide the model's 4 layers: set 2"),
    (
        [*ON_GPUS, "policy.pipeline_model_parallel_size=2", "policy.virtual_pipeline_model_parallel_size=3"],
        "does not divide the 2 layers of a pipeline stage: set 2 or null",
    ),
    (["generation.max_model_len=1024"], "is more than the model's 512 positions"),
]


@pytest.mark.parametrize(("overrides", "fragment"), MISFITS)
def test_settings_that_do_not_fit_the_model_are_refused(tmp_path: Path, overrides: list[str], fragment: str) -> None:
    config = load_config("brorl_cpu", [write_model(tmp_path), *overrides])
    with pytest.raises(ConfigError) as caught:
        check_model_rules(config)
    assert fragment in str(caught.value)


MOE = {
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 90,
    "norm_topk_prob": True,
    "mlp_only_layers": [0],
    "head_dim": 32,
    "tie_word_embeddings": False,
}
TP2 = "policy.tensor_model_parallel_size=2"
MOE_MISFITS = [
    (
        ["policy.expert_model_parallel_size=3", "policy.data_parallel_size=3"],
        "does not divide the model's 8 experts: set 2",
    ),
    ([TP2], "set policy.sequence_parallel=true"),
    (["policy.pipeline_model_parallel_size=4"], "leaves a pipeline stage with dense layers only"),  # layer 0 is dense
    (
        ["policy.tensor_model_parallel_size=4", "policy.sequence_parallel=true"],
        "does not divide the model's moe_intermediate_size of 90: set 3",
    ),
]


@pytest.mark.parametrize(("overrides", "fragment"), MOE_MISFITS)
def test_settings_that_do_not_fit_a_mixture_of_experts_are_refused(
    tmp_path: Path, overrides: list[str], fragment: str
) -> None:
    config = load_config("brorl_cpu", [write_model(tmp_path, **MOE), *overrides])
    with pytest.raises(ConfigError) as caught:
        check_model_rules(config)
    assert fragment in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ("policy.expert_model_parallel_size=2 policy.data_parallel_size=2", "policy.expert_model_parallel_size=1"),
        ("policy.moe.aux_loss_coefficient=0.01", "policy.moe.aux_loss_coefficient=0"),
        ("policy.moe.freeze_router=true", "policy.moe.freeze_router=false"),
        ("policy.moe.router_replay=true", "policy.moe.router_replay=false"),
    ],
)
def test_settings_of_experts_are_refused_for_a_dense_model(tmp_path: Path, setting: str, wanted: str) -> None:
    config = load_config("brorl_cpu", [write_model(tmp_path), *setting.split()])
    with pytest.raises(ConfigError, match=f"this one is dense: set {wanted}$"):
        check_model_rules(config)


def test_a_fused_permutation_is_refused_for_a_dense_model(tmp_path: Path) -> None:
    config = load_config("brorl_cpu", [write_model(tmp_path)])
    config.policy.moe.fused_permutation = True  # as on GPUs: on CPU it is refused before any model is looked at
    with pytest.raises(ConfigError, match=r"this one is dense: set policy\.moe\.fused_permutation=false$"):
        check_model_rules(config)


def test_experts_may_be_spread_over_tensor_parallel_ranks(tmp_path: Path) -> None:
    overrides = [TP2, "policy.sequence_parallel=true", "policy.expert_model_parallel_size=2"]
    config = load_config("brorl_cpu", [write_model(tmp_path, **MOE), *overrides])
    assert list(misfits(config, read_model_shape(Path(config.policy.model)))) == []


def test_a_vocabulary_need_not_be_a_multiple_of_the_ranks(tmp_path: Path) -> None:
    config = load_config("brorl_cpu", [write_model(tmp_path, vocab_size=511), TP2])
    assert list(misfits(config, read_model_shape(Path(config.policy.model)))) == []


def test_a_fitting_model_is_accepted(tmp_path: Path) -> None:
    overrides = ["policy.tensor_model_parallel_size=2", "policy.pipeline_model_parallel_size=2"]
    config = load_config("brorl_cpu", [write_model(tmp_path), *overrides])
    check_model_rules(config)
    assert list(misfits(config, read_model_shape(tmp_path))) == []


@pytest.mark.parametrize(
    ("changes", "size"),
    [({"hidden_size": 64}, 16), ({"head_dim": 16}, 16), ({"head_dim": 48}, 48), ({"head_dim": 1024}, 1024)],
)
def test_heads_without_a_kernel_of_vllm_on_cpu_are_refused_with_the_sizes_that_have_one(
    tmp_path: Path, changes: dict[str, int], size: int
) -> None:
    config = load_config("brorl_cpu", [write_model(tmp_path, **changes)])
    words = rf"has heads of {size} .* needs 32, 64, 80, .*: set policy\.model to a model with heads of such a size"
    with pytest.raises(ConfigError, match=words):
        check_model_rules(config)


@pytest.mark.parametrize("size", CPU_HEAD_SIZES)
def test_heads_with_a_kernel_of_vllm_on_cpu_are_accepted(tmp_path: Path, size: int) -> None:
    check_model_rules(load_config("brorl_cpu", [write_model(tmp_path, head_dim=size)]))


def test_heads_of_any_size_are_accepted_on_gpus_and_by_commands_without_engines(tmp_path: Path) -> None:
    model = write_model(tmp_path, head_dim=16)
    check_model_rules(load_config("brorl_cpu", [model, *ON_GPUS]))
    check_model_rules(load_config("brorl_cpu", [model]), has_engines=False)


def test_vllm_has_kernels_on_cpu_for_the_heads_of_the_models_of_this_repository() -> None:
    folders = [
        path.parent for place in ("models", "lab/studies/models") for path in ROOT.glob(f"{place}/*/config.json")
    ]
    assert {"sums", "products", "cipher"} <= {folder.name for folder in folders}
    assert {read_model_shape(folder).head_size for folder in folders} <= set(CPU_HEAD_SIZES)


def test_a_missing_folder_is_a_model_error_that_names_the_warm_up() -> None:
    with pytest.raises(ModelError, match="brorl base"):
        check_model_rules(load_config("brorl_cpu", ["policy.model=runs/nowhere"]))


def test_a_folder_without_config_json_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        check_model_rules(load_config("brorl_cpu", [f"policy.model={tmp_path}"]))


@pytest.mark.parametrize("text", ["{", "[]", '{"hidden_size": 4}'])
def test_a_broken_config_json_is_a_model_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        check_model_rules(load_config("brorl_cpu", [f"policy.model={tmp_path}"]))


def test_a_hugging_face_name_is_left_to_the_hub() -> None:
    assert local_model(load_config("brorl_64gpu").policy.model) is None


def test_parameters_are_counted_by_hand(tmp_path: Path) -> None:
    write_model(tmp_path)
    # attention: 2 * 256 * (256 + 64 * 2) = 196,608; biases: 256 + 2 * 128 = 512; feed-forward: 3 * 256 * 704 = 540,672
    # norms: 2 * 256 = 512; embeddings: 512 * 256 = 131,072
    assert num_parameters(read_model_shape(tmp_path)) == 4 * (196_608 + 512 + 540_672 + 512) + 256 + 131_072


def test_parameters_of_a_mixture_of_experts_are_counted_by_hand(tmp_path: Path) -> None:
    write_model(tmp_path, **MOE)
    # attention: 256 * 32 * (4 + 2 + 2 + 4) = 98,304 and two norms of 32; norms: 512
    # layer 0: 3 * 256 * 704 = 540,672; layers 1-3: router 8 * 256 = 2,048 and 8 experts of 3 * 256 * 90 = 69,120
    # embedding and output layer: 2 * 512 * 256 = 262,144
    layers = 4 * (98_304 + 64 + 512) + 540_672 + 3 * (2_048 + 8 * 69_120)
    assert num_parameters(read_model_shape(tmp_path)) == layers + 256 + 262_144


def test_more_engines_need_more_memory(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    shape = read_model_shape(tmp_path)
    two, three = (needed_gib(load_config("brorl_cpu", [model, f"generation.num_engines={n}"]), shape) for n in (2, 3))
    assert 0.25 + 1.0 < three - two < 0.25 + 1.0 + 0.1, "cache and process, then weights and a batch of 512 rows"


def test_an_evaluation_needs_no_memory_for_the_policy(tmp_path: Path) -> None:
    config = load_config("brorl_cpu", [write_model(tmp_path)])
    shape = read_model_shape(tmp_path)
    assert needed_gib(config, shape, with_policy=False) < needed_gib(config, shape) - 1.0, (
        "two ranks with their imports alone are more"
    )


def test_a_run_that_cannot_fit_is_refused_with_the_knobs(tmp_path: Path) -> None:
    config = load_config("brorl_cpu", [write_model(tmp_path), "generation.kv_cache_gib=100000"])
    with pytest.raises(ResourceError, match="generation.kv_cache_gib"):
        check_memory(config)


def test_the_container_limit_counts_when_it_is_the_smaller_one(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\n")
    assert available_gib(meminfo, tmp_path) == 16.0
    (tmp_path / "memory.max").write_text(str(8 * 1024**3))
    (tmp_path / "memory.current").write_text(str(2 * 1024**3))
    assert available_gib(meminfo, tmp_path) == 6.0


def test_unknown_memory_is_no_reason_to_refuse(tmp_path: Path) -> None:
    assert available_gib(tmp_path / "none", tmp_path) is None
