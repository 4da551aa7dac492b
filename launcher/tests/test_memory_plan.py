"""Memory of a GPU against Megatron's table of bytes per parameter, and against what recipes must and must not fit."""

from __future__ import annotations

import pytest
from brorl_launcher.planner.hardware import configured_hardware, gpu_hardware
from brorl_launcher.planner.known_models import SHAPES
from brorl_launcher.planner.node_memory import checkpoint_gib
from brorl_launcher.planner.plan import Plan, make_plan

from nemo_brorl.config.load import load_config
from nemo_brorl.config.parallel_layout import ParallelLayout
from nemo_brorl.config.rank_memory import activation_bytes, backward_bytes, log_prob_bytes, policy_bytes
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.core.machine import GIB

pytestmark = pytest.mark.slow

SMALL = SHAPES["qwen2.5-1.5b"]
NUM_SMALL = 1_543_714_304
NO_RESETS = [f"algorithm.reference_reset.{name}" for name in ("interval=0", "kl_above=null", "patience=0")]
TWO_TEACHERS = "algorithm.kl.teachers={x: a/b, y: c/d, z: a/b}"
LAYER_MATRICES = 1536 * (1536 + 2 * 256) + 1536 * 1536 + 3 * 1536 * 8960  # numbers in the matrices of a layer
GPU_RECIPES = (
    "brorl_64gpu",
    "brorl_7b",
    "brorl_32b",
    "brorl_qwen3_30b_a3b",
    "prorl_v2",
    "prorl_v1",
    "brorl_on_plateau",
    "brorl_1gpu",
)


def planned(name: str, *overrides: str, kind: str = "h100") -> Plan:
    config = load_config(name, overrides)
    return make_plan(config, configured_hardware(config, kind))


@pytest.mark.parametrize(
    ("precision", "data", "bytes_of_each"), [("bf16", 1, 18.0), ("bf16", 8, 6 + 12 / 8), ("fp32", 8, 8 + 8 / 8)]
)
def test_weights_gradients_and_optimizer_are_megatrons_bytes_per_parameter(
    precision: str, data: int, bytes_of_each: float
) -> None:
    """Megatron-core's table for the distributed optimizer: 18 and 6 + 12 / d with bf16 weights, 8 + 8 / d with fp32
    ones."""
    config = load_config("brorl_64gpu", [f"policy.precision={precision}"])
    held = policy_bytes(config, SMALL, ParallelLayout(data=data), 0)
    assert (held.weights + held.gradients + held.optimizer) / NUM_SMALL == pytest.approx(bytes_of_each)
    assert held.reference == held.weights  # in host memory


@pytest.mark.parametrize(
    ("teachers", "copies"),
    [("algorithm.kl.teacher=a/b", 1), ("algorithm.kl.teachers={x: a/b, y: a/b}", 1), (TWO_TEACHERS, 2)],
)
def test_each_further_teacher_is_one_more_copy_of_the_weights_on_host_and_disk(teachers: str, copies: int) -> None:
    config = load_config("brorl_64gpu", [teachers, *NO_RESETS])
    held = policy_bytes(config, SMALL, ParallelLayout(data=8), 0)
    assert held.reference == copies * held.weights
    alone, _ = checkpoint_gib(load_config("brorl_64gpu", ["algorithm.kl.coefficient=0", *NO_RESETS]), SMALL)
    taught, _ = checkpoint_gib(config, SMALL)
    assert taught - alone == pytest.approx(copies * 2 * NUM_SMALL / GIB)


def test_experts_are_spread_over_fewer_replicas_than_the_rest() -> None:
    config = load_config("brorl_qwen3_30b_a3b")
    shape = SHAPES["qwen3-30b-a3b"]
    held = policy_bytes(
        config, shape, ParallelLayout(tensor=4, pipeline=2, expert=8, data=8, sequence_parallel=True), 0
    )
    experts = 24 * 128 * 3 * 768 * 2048 // 8  # of 24 layers, a rank has an eighth
    assert held.parameters.experts == experts
    assert held.optimizer == pytest.approx(
        12 * (held.parameters.dense / 8 + experts / 4)
    )  # 4 × 8 ranks hold each expert 4 times


def test_full_recomputation_keeps_a_layers_input_and_one_layer_while_it_is_learnt() -> None:
    config = load_config("brorl_64gpu", ["policy.recompute=full"])
    one_layer = 2 * (4 * 1536 + 3072 + 512 + 1792 + 3 * 8960) + 48
    gradients = 2 * (1536 + 2 * 8960)
    assert activation_bytes(config, SMALL, ParallelLayout(), 0, 1) == 28 * 2 * 1536
    assert backward_bytes(config, SMALL, ParallelLayout(pipeline=2), 0, 1) == one_layer + gradients


def test_log_probs_and_a_layer_that_is_computed_again_are_not_there_together() -> None:
    config = load_config("brorl_64gpu", ["policy.recompute=full"])
    one_layer = 16384 * (2 * (4 * 1536 + 3072 + 512 + 1792 + 3 * 8960) + 48 + 2 * (1536 + 2 * 8960))
    log_probs = 6 * 2**27 + 4 * 8192 * 1536 + 3 * 2 * 16384 * 1536
    assert log_prob_bytes(config, SMALL, ParallelLayout(), 16384) == log_probs
    assert backward_bytes(config, SMALL, ParallelLayout(), 0, 16384) == one_layer > log_probs
    keeping = load_config("brorl_64gpu", ["policy.recompute=null"])
    assert backward_bytes(keeping, SMALL, ParallelLayout(), 0, 16384) == log_probs


def test_a_mixture_holds_its_tokens_four_times_more_on_their_way() -> None:
    config = load_config("brorl_qwen3_30b_a3b", ["policy.recompute=null"])
    layout = ParallelLayout(tensor=4, pipeline=2, expert=8, data=8, sequence_parallel=True)
    sent = 8 * 2048 * 2 / 4  # bytes of a token at the eight experts of its choice, over tensor-parallel ranks
    assert backward_bytes(config, SHAPES["qwen3-30b-a3b"], layout, 0, 1) == 4 * sent + 2 * 2048 * 2 / 4


def test_selective_recomputation_keeps_the_inside_of_one_mlp() -> None:
    config = load_config("brorl_64gpu", ["policy.recompute=selective"])
    outside = 2 * (4 * 1536 + 3072 + 512 + 1792) + 48
    inside = 2 * 3 * 8960
    assert activation_bytes(config, SMALL, ParallelLayout(), 0, 1) == pytest.approx(28 * outside)
    assert backward_bytes(config, SMALL, ParallelLayout(pipeline=2), 0, 1) == inside + 2 * (1536 + 2 * 8960)


def test_the_first_stage_of_a_pipeline_holds_a_row_for_every_stage() -> None:
    config = load_config("brorl_64gpu", ["policy.recompute=null"])
    whole, *stages = (
        activation_bytes(config, SMALL, ParallelLayout(pipeline=size), stage, 1)
        for size, stage in ((1, 0), (4, 0), (4, 3))
    )
    assert stages == [pytest.approx(whole), pytest.approx(whole / 4)]


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_shipped_recipes_fit_on_80_gb(name: str) -> None:
    plan = planned(name)
    assert plan.fits, plan.refusal
    assert plan.summary().startswith("fits: GPU ")


@pytest.mark.parametrize("kind", ["h100", "h200"])
@pytest.mark.parametrize("name", GPU_RECIPES)
def test_sizes_that_are_chosen_fit_by_the_plan(name: str, kind: str) -> None:
    plan = planned(name, "policy.tokens_per_micro_batch=auto", "generation.gpu_memory_utilization=auto", kind=kind)
    assert plan.fits, plan.refusal


def test_two_responses_of_full_length_do_not_fit_beside_a_1_5b_model() -> None:
    plan = planned("brorl_64gpu", "policy.tokens_per_micro_batch=32768")
    assert not plan.fits
    assert "needs 84.9 at the moment 'update', most of it activations" in plan.refusal
    assert plan.summary().startswith("does not fit: a GPU has 79.6 GiB")
    assert planned("brorl_64gpu", "policy.tokens_per_micro_batch=32768", kind="h200").fits


def test_a_sleeping_engine_gives_its_cache_and_weights_to_the_policy() -> None:
    plans = {
        sleep: planned("brorl_64gpu", f"generation.sleep={sleep}", "generation.weight_bucket_mib=64")
        for sleep in ("discard", "cache", "off")
    }
    at_update = {sleep: plan.devices[0].peak("update", "engine") for sleep, plan in plans.items()}
    share = plans["off"].engine.share_gib
    weights = 2 * 1_777_088_000 / GIB
    assert at_update["cache"] - at_update["discard"] == pytest.approx(weights)
    assert at_update["off"] > share
    assert plans["off"].devices[0].worst_moment == "update"


def test_memory_that_torch_keeps_is_counted_where_the_policy_does_not_give_it_back() -> None:
    sleeping = planned("brorl_64gpu").devices[0]
    awake = planned("brorl_64gpu", "generation.sleep=off").devices[0]
    kept = awake.peak("publish", "policy") - sleeping.peak("publish", "policy")
    freed = sum(
        part.gib_at("update") for part in awake.terms if part.name in ("activations", "backward pass", "fragmentation")
    )
    assert kept == pytest.approx(freed)
    assert kept > 30


def test_the_object_store_holds_the_experts_that_a_replay_needs() -> None:
    plain, replayed = (
        planned("brorl_qwen3_30b_a3b", f"policy.moe.router_replay={replay}", "rollouts.num_per_prompt=512")
        for replay in ("false", "true")
    )
    added = replayed.node.object_store_gib - plain.node.object_store_gib
    tokens = plain.work.sampled * plain.work.response_tokens
    # 48 layers × 8 experts, a byte each, as often as the rollouts themselves, which have 8 bytes a token
    assert added / (tokens * 384 / GIB) == pytest.approx(round(added / (tokens * 384 / GIB)))
    assert added > 200


def test_quantised_engines_hold_more_tokens() -> None:
    plain = planned("brorl_64gpu").engine
    small = planned("brorl_64gpu", "+generation.engine_args.kv_cache_dtype=fp8").engine
    assert small.token_bytes == plain.token_bytes / 2
    assert small.cache_gib == plain.cache_gib
    lean = planned("brorl_64gpu", "+generation.engine_args.quantization=fp8").engine
    assert plain.weights_gib - lean.weights_gib == pytest.approx(28 * LAYER_MATRICES / GIB)


def test_offload_makes_room_for_engines() -> None:
    """Engines sleep before the policy loads, so both are never whole on a GPU."""
    kept, moved = (planned("brorl_64gpu", f"policy.offload={offload}").devices[0] for offload in ("none", "all"))
    policy = kept.peak("generate", "policy") - moved.peak("generate", "policy")
    assert policy == pytest.approx((2 + 4 + 12 / 64) * 1_777_088_000 / GIB)
    assert kept.moments == moved.moments == ("generate", "update", "publish")
    assert kept.peak("publish") == moved.peak("publish")


def test_roles_with_devices_of_their_own_are_planned_apart() -> None:
    plan = planned(
        "brorl_64gpu", "generation.placement=disaggregated", "generation.num_engines=32", "generation.sleep=off"
    )
    policy, engine = plan.devices
    assert (policy.role, policy.moments) == ("policy GPU", ("update",))
    assert (engine.role, engine.moments) == ("engine GPU", ("generate",))
    assert policy.peak("update", "engine") == 0


def test_a_cache_that_holds_no_sequence_is_refused() -> None:
    plan = planned("brorl_32b", "generation.gpu_memory_utilization=0.12")
    assert "less than one sequence of generation.max_model_len=34816" in plan.refusal


def test_a_checkpoint_has_weights_masters_moments_and_reference() -> None:
    config = load_config("brorl_64gpu", ["policy.model=qwen2.5-1.5b", "trainer.keep_checkpoints=2"])
    one, kept = checkpoint_gib(config, SMALL)
    assert one == pytest.approx((2 + 12 + 2) * NUM_SMALL / GIB)
    assert kept == pytest.approx(3 * one + 2 * NUM_SMALL / GIB)


def test_an_unknown_kind_of_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="--kind v100: is not known; pass one of h100, h200, a100"):
        gpu_hardware("v100", 1, 8)
