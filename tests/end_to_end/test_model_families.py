"""Every model family gives the logits of transformers under every parallel layout, and its export is the model it came
from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from nemo_brorl.config.parallel_layout import layout_of
from tests.support.family_ranks import FamilyCase, score_families, update_on_padded_rows
from tests.support.model_factory import VOCAB_SIZE, make_config, make_model, make_plan
from tests.support.policy_ranks import Scenario, run_ranks, run_scenario

pytestmark = [pytest.mark.end_to_end, pytest.mark.numbers]

TOLERANCE = 1e-5  # nats
NUM_TOKENS = 12

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2 tied": {"architecture": "qwen2"},
    "qwen2": {"architecture": "qwen2", "tie_word_embeddings": False},
    "qwen2 with YaRN": {"architecture": "qwen2", "rope_parameters": {**YARN, "rope_theta": 1e4}},
    "qwen3": {"architecture": "qwen3", "head_dim": 16},
    "llama": {"architecture": "llama", "tie_word_embeddings": False},
    "llama 3": {"architecture": "llama", "rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
    "mistral": {"architecture": "mistral", "tie_word_embeddings": False, "head_dim": 16},
    "seed_oss": {"architecture": "seed_oss", "tie_word_embeddings": False},
    "smollm3 with YaRN": {"architecture": "smollm3", "rope_parameters": {**YARN, "rope_theta": 1e4}},
    "granite": {"architecture": "granite"},
    "olmo2": {"architecture": "olmo2", "tie_word_embeddings": False},
    "glm4 with YaRN": {"architecture": "glm4", "rope_parameters": {**YARN, "rope_theta": 1e4}},
    "qwen3-moe": {"architecture": "qwen3_moe", "tie_word_embeddings": False},
    "qwen3-moe with a dense layer": {"architecture": "qwen3_moe", "mlp_only_layers": [1], "norm_topk_prob": False},
}
MIXTURES = tuple(name for name in FAMILIES if name.startswith("qwen3-moe"))
DENSE = tuple(name for name in FAMILIES if name not in MIXTURES)

TP2 = {"tensor_model_parallel_size": 2}
SEQUENCE = {"sequence_parallel": True}
PP2 = {"pipeline_model_parallel_size": 2}
DP2 = {"data_parallel_size": 2}
EP2 = {"expert_model_parallel_size": 2}
LAYOUTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "one rank": ({}, tuple(FAMILIES)),
    "TP2": (TP2, DENSE),
    "TP2 with sequence parallelism": ({**TP2, **SEQUENCE}, tuple(FAMILIES)),
    "PP2": (PP2, tuple(FAMILIES)),
    "TP2 x PP2": ({**TP2, **PP2, **SEQUENCE}, tuple(FAMILIES)),
    "EP2 over data-parallel ranks": ({**DP2, **EP2}, MIXTURES),
    "EP2 over tensor-parallel ranks": ({**TP2, **SEQUENCE, **EP2}, MIXTURES),
    "PP2 x EP2": ({**PP2, **DP2, **EP2}, MIXTURES),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("families")
    return {
        name: make_model(base / str(number), **settings) for number, (name, settings) in enumerate(FAMILIES.items())
    }


@pytest.fixture(scope="module")
def token_ids() -> tuple[int, ...]:
    return tuple(np.random.default_rng(5).integers(0, VOCAB_SIZE, NUM_TOKENS).tolist())


@torch.no_grad()
def hf_logits(folder: Path, token_ids: tuple[int, ...]) -> torch.Tensor:
    """[L, V] of every next token."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()(torch.tensor([token_ids])).logits[0]


@pytest.fixture(scope="module")
def expected(folders: dict[str, Path], token_ids: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Logits of transformers; large enough that a difference in any part of the model would show."""
    logits = {name: hf_logits(folder, token_ids) for name, folder in folders.items()}
    assert all(table.abs().max() > 2 for table in logits.values())
    return logits


@pytest.mark.parametrize(("layout", "families"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_layout_gives_the_logits_of_transformers_and_exports_what_it_read(
    layout: dict[str, Any],
    families: tuple[str, ...],
    folders: dict[str, Path],
    token_ids: tuple[int, ...],
    expected: dict[str, torch.Tensor],
    tmp_path: Path,
) -> None:
    config = make_config(**layout)
    cases = [FamilyCase(folders[name], token_ids, tmp_path / str(number)) for number, name in enumerate(families)]
    tables = run_ranks(config, score_families, config, cases)[layout_of(config).report_rank]
    for name, case, table in zip(families, cases, tables, strict=True):
        assert (table - expected[name].log_softmax(-1)).abs().max() <= TOLERANCE, name
        original, exported = (load_file(folder / "model.safetensors") for folder in (case.folder, case.export_to))
        assert original.keys() == exported.keys(), name
        assert all(torch.equal(tensor, exported[key]) for key, tensor in original.items()), name
        assert torch.equal(hf_logits(case.export_to, token_ids), expected[name]), name


TRAINED: dict[str, dict[str, Any]] = {
    "EP2 over data-parallel ranks": {**DP2, **EP2},
    "EP2 over tensor-parallel ranks": {**TP2, **SEQUENCE, **EP2},
    "TP2": {**TP2, **SEQUENCE},
    "PP2": PP2,
    "PP2 x EP2": {**PP2, **DP2, **EP2},
    "TP2 x DP2 x EP2": {**TP2, **SEQUENCE, **DP2, **EP2},
    "full recompute": {"recompute": "full"},
}


def three_updates(folder: Path, layout: dict[str, Any]) -> dict[str, list[float]]:
    """Loss, gradient norm and KL of three updates by name."""
    config = make_config(**layout)
    data = layout_of(config).data
    plans = tuple(make_plan(data, micro_batches=4 // data, seed=seed) for seed in range(3))
    outcome = run_scenario(Scenario(config, folder, plans=plans))[layout_of(config).report_rank]
    names = ("policy/loss", "policy/grad_norm", "policy/kl_to_reference")
    return {name: [metrics[name] for metrics in outcome.metrics] for name in names}


@pytest.fixture(scope="module")
def single(folders: dict[str, Path]) -> dict[str, list[float]]:
    return three_updates(folders["qwen3-moe with a dense layer"], {})


@pytest.mark.parametrize("family", ["granite", "olmo2", "glm4 with YaRN"])
def test_a_family_with_layers_of_its_own_learns_the_same_when_ranks_split_them(
    family: str, folders: dict[str, Path]
) -> None:
    single = three_updates(folders[family], {})
    for layout in (TP2, {**TP2, **PP2, **SEQUENCE}):
        for name, curve in three_updates(folders[family], layout).items():
            assert curve == pytest.approx(single[name], rel=1e-4), (name, layout)


def test_a_checkpoint_of_norms_over_all_heads_continues_when_ranks_no_longer_split_them(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    plans = tuple(make_plan(micro_batches=4, seed=seed) for seed in range(3))
    whole = run_scenario(Scenario(make_config(), folders["olmo2"], plans=plans))[0].metrics
    saved = tmp_path / "checkpoint"
    run_scenario(Scenario(make_config(**TP2), folders["olmo2"], plans=plans[:2], save_to=saved))
    other_weights = make_model(tmp_path / "other", seed=9, **FAMILIES["olmo2"])
    loaded = run_scenario(Scenario(make_config(), other_weights, load_from=saved, plans=plans[2:]))[0].metrics
    for name in ("policy/loss", "policy/grad_norm", "policy/kl_to_reference"):
        assert loaded[0][name] == pytest.approx(whole[2][name], rel=1e-4), name


@pytest.mark.parametrize("layout", TRAINED.values(), ids=TRAINED.keys())
def test_a_mixture_of_experts_learns_the_same_under_every_layout(
    layout: dict[str, Any], folders: dict[str, Path], single: dict[str, list[float]]
) -> None:
    curves = three_updates(folders["qwen3-moe with a dense layer"], layout)
    for name, curve in curves.items():
        assert curve == pytest.approx(single[name], rel=1e-4), name


def test_the_balancing_loss_does_not_depend_on_how_tokens_are_spread_over_ranks(folders: dict[str, Path]) -> None:
    """Two sequence-parallel ranks against one that sees the same padding, which counts as tokens to balance."""
    curves = []
    for layout in ({}, {**TP2, **SEQUENCE, **EP2}):
        config = make_config(**layout)
        config.policy.moe.aux_loss_coefficient = 0.5
        plans = [make_plan(seed=seed) for seed in range(2)]
        reports = run_ranks(config, update_on_padded_rows, config, folders["qwen3-moe"], plans, 2)[0]
        curves.append([(metrics["policy/loss"], metrics["policy/grad_norm"]) for metrics in reports])
    for one, two in zip(*curves, strict=True):
        assert two == pytest.approx(one, rel=1e-4)


def test_a_checkpoint_of_a_mixture_continues_under_another_layout(
    folders: dict[str, Path], single: dict[str, list[float]], tmp_path: Path
) -> None:
    folder = folders["qwen3-moe with a dense layer"]
    begun = make_config(**DP2, **EP2)
    plans = tuple(make_plan(2, micro_batches=2, seed=seed) for seed in range(2))
    run_scenario(Scenario(begun, folder, plans=plans, save_to=tmp_path / "checkpoint"))
    other_weights = make_model(tmp_path / "other", seed=9, **FAMILIES["qwen3-moe with a dense layer"])
    for layout in (PP2, {**TP2, **SEQUENCE}):
        config = make_config(**layout)
        case = Scenario(
            config, other_weights, load_from=tmp_path / "checkpoint", plans=(make_plan(1, micro_batches=4, seed=2),)
        )
        metrics = run_scenario(case)[layout_of(config).report_rank].metrics[0]
        for name, curve in single.items():
            assert metrics[name] == pytest.approx(curve[2], rel=1e-4), (name, layout)
