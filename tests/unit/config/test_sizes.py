"""Sizes that nobody gave, chosen for model, data and machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_brorl.config.load import load_config, to_yaml
from nemo_brorl.config.memory import fullest_micro_batch, needed_gib
from nemo_brorl.config.same_run import RECORD, check_same_run, with_sizes_of_run
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.config.sizes import SHARE_TAKEN, resolve_sizes
from nemo_brorl.core.machine import Machine
from nemo_brorl.core.model_shape import ModelShape, read_model_shape

pytestmark = pytest.mark.slow

# SmolLM2-135M: 134.5 M parameters, 30 layers of 576, 9 heads over 3, vocabulary of 49,152
SMOLLM2 = {
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
LONG = ["data.max_prompt_tokens=256", "rollouts.max_response_tokens=512"]


@pytest.fixture
def shape(tmp_path: Path) -> ModelShape:
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2))
    return read_model_shape(tmp_path)


def sized(shape: ModelShape, free_gib: float | None, *overrides: str, cores: int = 2) -> BroRLConfig:
    return resolve_sizes(load_config("brorl_cpu", overrides), shape, Machine(cores, free_gib))[0]


def numbers(config: BroRLConfig) -> tuple[int | None, int | None, int | None, float | None, int | None]:
    policy, generation = config.policy, config.generation
    sequences = generation.max_num_seqs
    return (
        policy.data_parallel_size,
        generation.num_engines,
        policy.tokens_per_micro_batch,
        generation.kv_cache_gib,
        sequences,
    )


def test_with_memory_to_spare_every_core_has_an_engine_and_every_two_a_rank_of_a_wide_model(shape: ModelShape) -> None:
    # a token's keys and values: 2 * 30 layers * 3 heads * 64 * 4 bytes = 46,080; a response of 512 is half done in the
    # mean, 256 tokens and a share of its prompt in blocks of 32: 288. 128 of them: 1.58 GiB, in 64ths 1.59375
    assert numbers(sized(shape, None, *LONG)) == (1, 2, 8192, 1.59375, 128)
    assert numbers(sized(shape, None, *LONG, cores=4))[:2] == (2, 4)
    assert sized(shape, None, *LONG, cores=4).policy.num_threads == 2


def test_every_core_has_a_rank_of_a_narrow_model(shape: ModelShape) -> None:
    config = sized(replace(shape, hidden_size=256), None, *LONG, cores=4)
    assert numbers(config)[:2] == (4, 4)
    assert config.policy.num_threads == 1


@pytest.mark.parametrize("free_gib", [12.0, 16.0, 20.0, 30.0, 64.0])
@pytest.mark.parametrize("overrides", [[], LONG, ["policy.precision=bf16", "generation.precision=bf16"]])
def test_what_is_chosen_fits_where_anything_does(shape: ModelShape, free_gib: float, overrides: list[str]) -> None:
    assert needed_gib(sized(shape, free_gib, *overrides), shape) <= SHARE_TAKEN * free_gib


def test_less_memory_takes_what_costs_least_first(shape: ModelShape) -> None:
    plenty, tight, small = (numbers(sized(shape, free, *LONG, cores=4)) for free in (60.0, 42.0, 22.0))
    assert plenty[:2] == tight[:2] == (2, 4)
    assert plenty[2] > tight[2] >= 2048, "the micro-batch goes first, down to where cores get slower"
    assert small[0] == 1, "then a rank, which is more than an engine"
    assert sized(shape, 22.0, *LONG, cores=4).policy.num_threads == 4, "its cores go to the other rank"


def test_numbers_that_were_given_stay(shape: ModelShape) -> None:
    given = ["policy.tokens_per_micro_batch=1000", "generation.num_engines=3", "generation.max_model_len=900"]
    config = sized(shape, 4.0, *LONG, *given, "generation.kv_cache_gib=0.5", "parity.max_mean_abs_diff=0.01")
    assert numbers(config)[1:4] == (3, 1000, 0.5)
    assert (config.generation.max_model_len, config.parity.max_mean_abs_diff) == (900, 0.01)


def test_ranks_that_were_given_share_the_cores(shape: ModelShape) -> None:
    assert sized(shape, 64.0, "policy.data_parallel_size=2").policy.num_threads == 1
    assert sized(shape, 64.0, "policy.data_parallel_size=1").policy.num_threads == 2


def test_auto_is_a_word_for_a_size_that_nobody_gave() -> None:
    config = load_config("sums_cpu", ["policy.tokens_per_micro_batch=auto", "generation.num_engines=auto"])
    assert (config.policy.tokens_per_micro_batch, config.generation.num_engines) == (None, None)


def test_bf16_on_either_side_widens_the_parity_bound(shape: ModelShape) -> None:
    assert sized(shape, None).parity.max_mean_abs_diff == 1e-3
    assert sized(shape, None, "generation.precision=bf16").parity.max_mean_abs_diff == 0.05


def test_room_is_for_the_longest_prompt_and_response(shape: ModelShape) -> None:
    assert sized(shape, None, *LONG).generation.max_model_len == 768
    assert sized(shape, None, *LONG, "evaluation.max_response_tokens=600").generation.max_model_len == 856


def test_memory_is_counted_for_what_a_batch_really_fills() -> None:
    few = ["rollouts.num_per_prompt=8", "rollouts.prompts_per_step=4", "algorithm.num_mini_batches=1"]
    config = load_config("brorl_cpu", [*few, "policy.data_parallel_size=2"])
    # 32 rollouts over two ranks: 16 responses of 32 tokens and, of 4 prompts, one of which may be cut in two, 5 of 160
    assert fullest_micro_batch(config) == 16 * 32 + 5 * 160
    assert fullest_micro_batch(load_config("brorl_cpu")) == 8192


def test_every_size_is_said_with_its_reason(shape: ModelShape) -> None:
    _, sizes = resolve_sizes(load_config("brorl_cpu", LONG), shape, Machine(4, 22.0))
    lines = [str(size) for size in sizes]
    assert "policy.data_parallel_size=1 (22.0 GiB are free; with more 2)" in lines
    assert "generation.max_model_len=768 (prompts of at most 256 tokens, responses of 512)" in lines
    assert all(size.reason for size in sizes)


def test_a_run_that_goes_on_keeps_its_sizes_on_a_machine_with_less_memory(shape: ModelShape, tmp_path: Path) -> None:
    folder = f"exp_manager.explicit_log_dir={tmp_path}"
    begun = sized(shape, 60.0, *LONG, folder)
    (tmp_path / RECORD).write_text(to_yaml(begun))
    again, _ = resolve_sizes(with_sizes_of_run(load_config("brorl_cpu", [*LONG, folder])), shape, Machine(2, 20.0))
    assert again.policy.tokens_per_micro_batch == begun.policy.tokens_per_micro_batch == 8192
    assert check_same_run(again), "ranks, engines and threads may change"


def test_experts_and_nodes_get_ranks_in_multiples(shape: ModelShape) -> None:
    assert sized(shape, None, "trainer.num_nodes=2", cores=11).policy.data_parallel_size == 4


@pytest.mark.parametrize("gpu_gib", [24.0, 79.6, 140.4])
def test_on_gpus_micro_batches_and_engines_share_what_there_is(shape: ModelShape, gpu_gib: float) -> None:
    asked = load_config("brorl_cpu", ["trainer.gpus_per_node=8", "policy.precision=bf16", "generation.precision=bf16"])
    config, _ = resolve_sizes(asked, shape, Machine(16, None, gpu_gib))
    assert (config.policy.data_parallel_size, config.generation.num_engines) == (8, 8)
    share, tokens = config.generation.gpu_memory_utilization, config.policy.tokens_per_micro_batch
    assert share is not None
    assert tokens is not None
    assert 0.2 <= share <= 0.85
    assert tokens % 1024 == 0 or tokens == 192
