"""Costs of a model against what its authors and Megatron's publish, and against numbers worked by hand."""

from __future__ import annotations

import pytest
from brorl_launcher.planner.known_models import SHAPES, find_shape
from brorl_launcher.planner.model_cost import active_parameters, forward_flops, key_value_bytes

from nemo_brorl.config.layer_memory import layer_activations
from nemo_brorl.config.parallel_layout import ParallelLayout
from nemo_brorl.config.rank_parameters import rank_parameters
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.model_shape import num_parameters

# Billions of parameters on the models' cards: all, and without embeddings where the card says it.
CARDS = {
    "qwen2.5-1.5b": (1.54, 1.31),
    "deepseek-r1-distill-qwen-1.5b": (1.78, None),
    "qwen2.5-7b": (7.61, 6.53),
    "qwen2.5-14b": (14.7, 13.1),
    "qwen2.5-32b": (32.5, 31.0),
    "qwen3-8b": (8.2, 6.95),
    "qwen3-32b": (32.8, 31.2),
    "qwen3-30b-a3b": (30.5, 29.9),
    "llama-3.1-8b": (8.03, None),
    "mistral-7b-v0.3": (7.25, None),
    "seed-oss-36b": (36.2, None),
    "smollm3-3b": (3.08, None),
    "granite-3.3-8b": (8.17, None),
    "olmo-2-1124-7b": (7.3, None),
    "glm-4-9b-0414": (9.4, None),
}


@pytest.mark.parametrize("name", CARDS)
def test_named_shapes_have_the_parameters_of_their_cards(name: str) -> None:
    shape, (total, without_embeddings) = SHAPES[name], CARDS[name]
    embeddings = shape.vocab_size * shape.hidden_size * (1 if shape.is_tied else 2)
    assert num_parameters(shape) / 1e9 == pytest.approx(total, rel=0.01)
    if without_embeddings is not None:
        assert (num_parameters(shape) - embeddings) / 1e9 == pytest.approx(without_embeddings, rel=0.01)


def test_a_mixture_uses_the_parameters_that_its_card_calls_active() -> None:
    shape = SHAPES["qwen3-30b-a3b"]
    embedding = shape.vocab_size * shape.hidden_size
    assert (active_parameters(shape) + embedding) / 1e9 == pytest.approx(3.3, rel=0.02)


@pytest.mark.parametrize("name", SHAPES)
def test_one_rank_holds_every_tensor_of_the_checkpoint(name: str) -> None:
    assert rank_parameters(SHAPES[name], ParallelLayout(), 0).total == num_parameters(SHAPES[name])


@pytest.mark.parametrize(
    "layout",
    [
        ParallelLayout(tensor=4),
        ParallelLayout(tensor=4, expert=8, data=8),
        ParallelLayout(pipeline=4),
        ParallelLayout(pipeline=2, virtual_pipeline=2, tensor=2),
    ],
)
def test_ranks_together_hold_the_model_once_but_for_norms_and_routers(layout: ParallelLayout) -> None:
    shape = SHAPES["qwen3-30b-a3b"]
    stages = [rank_parameters(shape, layout, stage) for stage in range(layout.pipeline)]
    dense, experts = sum(part.dense for part in stages), sum(part.experts for part in stages)
    router = shape.num_layers * shape.moe.num_experts * shape.hidden_size if shape.moe else 0
    norms = shape.num_layers * (2 * shape.hidden_size + 2 * shape.head_size) + shape.hidden_size
    whole = (
        dense * layout.tensor - (layout.tensor - 1) * (router + norms) + experts * layout.expert * layout.expert_tensor
    )
    assert whole == num_parameters(shape)


def test_a_tied_head_is_a_second_copy_on_the_last_stage() -> None:
    shape = SHAPES["qwen2-1.5b"]
    first, last = (rank_parameters(shape, ParallelLayout(pipeline=2), stage).total for stage in (0, 1))
    embedding = 151936 * 1536
    assert first + last == num_parameters(shape) + embedding
    assert last - first == shape.hidden_size  # the last norm


def test_a_qwen_layer_keeps_what_its_tensors_add_up_to() -> None:
    shape = SHAPES["qwen2-1.5b"]  # h 1536, 12 heads and 2 key-value heads of 128, f 8960, bf16
    norms, projections, rotated, mlp = 4 * 1536, 1536 + 2 * 256 + 1536, 1536 + 256, 3 * 8960
    assert layer_activations(shape, 2, ParallelLayout()) == 2 * (norms + projections + rotated + mlp) + 4 * 12


def test_tensor_parallel_ranks_share_all_but_the_norms_and_with_sequence_parallelism_these_too() -> None:
    shape = SHAPES["qwen2-1.5b"]
    norms = 2 * 4 * 1536
    whole = layer_activations(shape, 2, ParallelLayout())
    assert layer_activations(shape, 2, ParallelLayout(tensor=2)) == norms + (whole - norms) / 2
    assert layer_activations(shape, 2, ParallelLayout(tensor=2, sequence_parallel=True)) == whole / 2


def test_keys_and_values_of_a_token() -> None:
    assert key_value_bytes(SHAPES["llama-3.1-8b"], 2) == 128 * 1024  # 32 layers × 2 × 8 heads × 128 × 2 bytes
    assert key_value_bytes(SHAPES["qwen2.5-1.5b"], 2) == 28 * 2 * 2 * 128 * 2


def test_a_forward_pass_is_two_operations_a_parameter_and_attention() -> None:
    shape = SHAPES["llama-3.1-8b"]
    assert forward_flops(shape, 0) == 2 * active_parameters(shape)
    assert forward_flops(shape, 1000) - forward_flops(shape, 0) == 4 * 32 * 32 * 128 * 1000


def test_models_are_found_by_name_and_unknown_ones_say_what_is_known() -> None:
    config = BroRLConfig()
    config.policy.model = "Qwen/Qwen2.5-7B-Instruct"
    assert find_shape(config) == SHAPES["qwen2.5-7b"]
    config.policy.model = "someone/unheard-of"
    with pytest.raises(ModelError, match=r"someone/unheard-of is not downloaded.*qwen2.5-7b"):
        find_shape(config)
