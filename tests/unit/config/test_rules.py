"""Rules between settings: each wrong combination is refused with what to set instead."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from nemo_brorl.config import algorithm, rules
from nemo_brorl.config.load import is_free_form, load_config
from nemo_brorl.config.rules import check_demonstrations
from nemo_brorl.config.schema import BroRLConfig, settings
from nemo_brorl.core.errors import ConfigError

ON_GPUS = ["trainer.gpus_per_node=8", "policy.data_parallel_size=null"]
APART = ["generation.placement=disaggregated"]

SETTING_AND_VALUES = re.compile(r"([a-z]\w+(?:\.\w+)+)(?:=([\w' ]+)| above 0| other than \w+)?")

TEACHER = "algorithm.kl.teacher=models/sums"

WRONG = [
    (["rollouts.num_per_prompt=1"], "rollouts.num_per_prompt=1 is out of range: set a number of at least 2"),
    (["rollouts.temperature=0"], "rollouts.temperature=0.0 is out of range: set a number above 0"),
    (["rollouts.top_p=1.5"], "set a number above 0, at most 1"),
    (["policy.optim.lr=nan"], "policy.optim.lr=nan is out of range"),
    (["data.tasks.0.weight=-1"], "data.tasks.0.weight=-1.0 is out of range"),
    (["policy.precision=fp16"], "set one of fp32, bf16"),
    (["policy.fp8=e5m2"], "set one of null, hybrid, e4m3"),
    (["algorithm.advantage=gae"], "set one of reinforce_plus_plus_baseline, reinforce_plus_plus, grpo"),
    (["algorithm.loss=cross_entropy"], "set one of ppo_clip"),
    (["algorithm.kl.estimator=k4"], "set one of k1, k2, k3"),
    (["policy.optim.betas=[0.9]"], "set policy.optim.betas=[0.9,0.95]"),
    (["policy.optim.betas=[[0.9],[0.9]]"], "holds a list or a mapping: set plain values alone"),
    (["trainer.time_limit=1h"], 'set "04:00:00"'),
    (
        ["trainer.stall_timeout_s=60"],
        "trainer.stall_timeout_s=60 is before trainer.stall_warning_s=120: set at least 120, or null",
    ),
    (
        [*ON_GPUS, "+generation.engine_args.speculative_config={model: runs/nowhere, num_speculative_tokens: 2}"],
        "speculative_config.model=runs/nowhere is no folder here: set the folder or the name owner/name",
    ),
    (["algorithm.num_mini_batches=3"], "algorithm.num_mini_batches=3 does not divide"),
    (["policy.data_parallel_size=64", "rollouts.num_per_prompt=2"], "leaves 8 rollouts for 64 data-parallel ranks"),
    (["trainer.num_nodes=3", "policy.data_parallel_size=2"], "a node would have none of them"),
    (
        [*ON_GPUS, "policy.tensor_model_parallel_size=16"],
        "a policy replica needs TP × PP × CP = 16 GPUs and the run has 8",
    ),
    ([*ON_GPUS, "policy.tensor_model_parallel_size=3"], "8 GPUs cannot be filled by 2 policy replicas"),
    ([*ON_GPUS, "generation.num_engines=16"], "16 GPUs and 8 are there for generation"),
    ([*ON_GPUS, "generation.placement=disaggregated"], "set generation.num_engines or policy.data_parallel_size"),
    (
        [*ON_GPUS, "generation.placement=disaggregated", "generation.num_engines=8"],
        "8 GPUs and 7 are there for generation",
    ),
    (
        [
            *ON_GPUS,
            "generation.placement=disaggregated",
            "generation.num_engines=2",
            "policy.tensor_model_parallel_size=4",
        ],
        "leaves 2 of 8 idle",
    ),
    (["generation.tensor_parallel_size=2"], "generation.tensor_parallel_size=2 is of GPUs"),
    (
        [*ON_GPUS, "generation.tensor_parallel_size=3"],
        "generation.tensor_parallel_size=3 does not divide trainer.gpus_per_node=8",
    ),
    (
        [
            *ON_GPUS,
            *APART,
            "generation.tensor_parallel_size=4",
            "generation.num_engines=1",
            "policy.data_parallel_size=2",
        ],
        "only after a multiple of 4",
    ),
    (
        ["dynamic_sampling.fill=samples", "dynamic_sampling.enabled=false"],
        "needs dynamic_sampling.enabled=true (now false): set that, or dynamic_sampling.fill=full",
    ),
    (
        ["dynamic_sampling.min_groups=4"],
        "needs dynamic_sampling.fill=at_least (now full)",
    ),
    (
        ["dynamic_sampling.fill=at_least", "dynamic_sampling.min_groups=40"],
        "dynamic_sampling.min_groups=40 is more than the 16 groups",
    ),
    (
        ["algorithm.kl.placement=reward"],
        "needs algorithm.kl.estimator=k1 (now k2)",
    ),
    (
        [TEACHER, "algorithm.kl.coefficient=0"],
        "to the last, and needs algorithm.kl.coefficient above 0 (now 0.0): set that, or algorithm.kl.teacher=null",
    ),
    (
        ["algorithm.kl.teachers={gcd: models/sums}", "algorithm.kl.coefficient=0"],
        "set that, or algorithm.kl.teachers={}",
    ),
    (
        [TEACHER, "algorithm.reference_reset.interval=3"],
        "and needs algorithm.reference_reset.interval=0 (now 3)",
    ),
    (
        [TEACHER, "algorithm.reference_reset.kl_above=0.1"],
        "and needs algorithm.reference_reset.kl_above=null (now 0.1)",
    ),
    (
        ["algorithm.kl.teachers={gcd: models/sums}", "algorithm.reference_reset.patience=2"],
        "and needs algorithm.reference_reset.patience=0 (now 2)",
    ),
    (
        [TEACHER, "algorithm.kl.teachers={gcd: models/sums}"],
        "needs algorithm.kl.teacher=null (now models/sums): set that, or algorithm.kl.teachers={}",
    ),
    (
        [*ON_GPUS, "policy.precision=bf16", "policy.fp8=hybrid", "policy.fp8_params=true", TEACHER],
        "to the last, and needs policy.fp8_params=false",
    ),
    (["algorithm.advantage=none", TEACHER], "needs dynamic_sampling.enabled=false (now true)"),
    (
        ["algorithm.advantage=none", "dynamic_sampling.enabled=false"],
        "trains on a teacher alone, and needs algorithm.kl.teacher=MODEL (now null)",
    ),
    ([*APART, "generation.sleep=cache"], "needs generation.placement=colocated (now disaggregated)"),
    (["generation.sleep=deep"], "set one of off, cache, offload, discard"),
    (
        ["generation.weight_transport=cuda_ipc"],
        "set that, or generation.weight_transport=auto",
    ),
    (
        [*ON_GPUS, *APART, "generation.num_engines=4", "generation.weight_transport=cuda_ipc"],
        "needs generation.placement=colocated (now disaggregated)",
    ),
    (
        [*ON_GPUS, "generation.weight_transport=collective"],
        "needs generation.placement=disaggregated (now",
    ),
    (["generation.weight_bucket_mib=0"], "generation.weight_bucket_mib=0.0 is out of range: set a number above 0"),
    (
        ["profile.memory_snapshot=true"],
        "set that, or profile.memory_snapshot=false",
    ),
    (["policy.attention=flex"], "policy.attention=flex has kernels for GPUs"),
    (["policy.attention=flash"], "policy.attention=flash has kernels for GPUs"),
    (
        ["policy.context_parallel_size=2", "policy.tokens_per_micro_batch=90"],
        "policy.tokens_per_micro_batch=90 × policy.context_parallel_size=2 cannot hold",
    ),
    (
        ["policy.expert_model_parallel_size=3", "policy.data_parallel_size=2"],
        "must divide the TP × CP × DP = 2 ranks of a pipeline stage",
    ),
    (
        ["policy.moe.freeze_router=true", "policy.moe.aux_loss_coefficient=0.01"],
        "needs policy.moe.freeze_router=false (now true): set that, or policy.moe.aux_loss_coefficient=0.0",
    ),
    (
        ["policy.sequence_parallel=true"],
        "set that, or policy.sequence_parallel=false",
    ),
    (["policy.virtual_pipeline_model_parallel_size=2"], "needs policy.pipeline_model_parallel_size above 1 (now 1)"),
    (["exp_manager.create_wandb_logger=true"], "exp_manager.wandb_logger_kwargs.project=brorl"),
    (["exp_manager.create_wandb_loger=true"], "Did you mean exp_manager.create_wandb_logger"),
    (["exp_manager.create_wandb_logger=maybe"], "exp_manager.create_wandb_logger=maybe must be true or false"),
    (["exp_manager.create_trackio_logger=true"], "exp_manager.trackio_logger_kwargs.project=brorl"),
    (["exp_manager.create_dllogger_logger=true"], "pip install git"),
    (
        ["exp_manager.create_neptune_logger=true", "exp_manager.neptune_logger_kwargs.api_key=x"],
        "leave it out, and set neptune's environment variable",
    ),
    (["policy.fp8=hybrid", "policy.fp8_params=true", "algorithm.kl.coefficient=0"], "is emulated on CPU"),
    (["policy.moe.fused_permutation=true"], "kernels, and needs trainer.gpus_per_node above 0 (now 0)"),
    (
        ["policy.fp8=hybrid", "policy.fp8_recipe=delayed", "policy.fp8_bf16_first_layers=1"],
        "or policy.fp8_recipe=tensorwise",
    ),
    ([*ON_GPUS, "policy.fp8=hybrid"], "needs policy.precision=bf16 (now fp32): set that, or policy.fp8=null"),
    (["rollouts.max_response_tokens=200", "generation.max_model_len=256"], "set generation.max_model_len=360"),
    (["evaluation.max_response_tokens=200", "generation.max_model_len=256"], "set generation.max_model_len=360"),
    (["policy.tokens_per_micro_batch=100"], "cannot hold one prompt and response of 192 tokens"),
    (
        ["rollouts.top_p=0.9"],
        "set that, or rollouts.top_p=1.0",
    ),
    (
        ["policy.old_log_probs=sampler"],
        "needs algorithm.importance_correction.enabled=false (now true): set that",
    ),
    (
        ["policy.old_log_probs=sampler", "algorithm.importance_correction.enabled=false", "rollouts.top_p=0.9"],
        "rollouts.top_p=0.9 cuts the distribution that the ratio",
    ),
    (
        ["rollouts.min_fraction=0.5"],
        "needs rollouts.deadline_s other than null",
    ),
    (
        ["rollouts.overlap=true", "dynamic_sampling.max_staleness=0"],
        "max_staleness above 0",
    ),
    (
        ["rollouts.unfinished=resume", "algorithm.importance_correction.enabled=false"],
        "or rollouts.unfinished=finish",
    ),
    (["rollouts.overlap=true", "generation.sleep=cache"], "generation.sleep='off' (now cache)"),
    (["algorithm.loss_params.covariance.kind=cov"], "algorithm.loss_params.covariance.kind=cov is not known"),
    (["algorithm.loss_params.covariance.shar=1"], "covariance takes kind: str = 'none', share: float"),
    (["algorithm.loss_params.covariance=2"], "set a mapping of kind, share, low, high, coefficient"),
    (["algorithm.advantage_params={train_rollouts: 1}"], "algorithm.advantage_params.train_rollouts=1 is out of range"),
    (["algorithm.advantage_params={train_rollouts: '8'}"], "train_rollouts='8' is a text: set 8"),
    (["algorithm.dual_clip=1.1"], "must be above 1 + algorithm.clip_high = 1.28"),
    (["algorithm.credit=turn", "algorithm.advantage=maxrl"], "(now maxrl): set that, or algorithm.credit=outcome"),
    (
        ["algorithm.turn_discount=0.9"],
        "needs algorithm.credit=return or turn (now outcome)",
    ),
    (["data.held_out_fraction=1"], "leaves nothing to train on"),
    (["data.tasks=[]"], "data.tasks is empty"),
    (["data.source=jsonl"], "data.source=jsonl needs data.path"),
    (["data.source=jsonl", "data.path=nowhere.jsonl"], "data.path=nowhere.jsonl: there is no such file"),
    (["data.tasks=[{name: a},{name: a}]"], "data.tasks names a 2 times"),
    (
        ["policy.precision=bf16", "parity.max_mean_abs_diff=0.001"],
        "parity.max_mean_abs_diff=0.001 is tighter than bf16 can meet",
    ),
    (["sft.new.num_attention_heads=3"], "sft.new.hidden_size=256 is not divisible by sft.new.num_attention_heads=3"),
    (["sft.new.num_attention_heads=16"], "gives heads of 16, and vLLM's CPU build needs 32, 64,"),
    (["sft.new.target_pass_at_1=0.9"], "set a target between them"),
    (["data.success_reward=nan"], "data.success_reward=nan is out of range"),
]


@pytest.mark.parametrize(("overrides", "fragment"), WRONG)
def test_a_wrong_combination_is_refused(overrides: list[str], fragment: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("brorl_cpu", overrides)
    assert fragment in str(caught.value)


@pytest.mark.parametrize("path", Path(rules.__file__).parent.glob("*rules.py"), ids=lambda path: path.stem)
def test_every_need_names_settings_and_values_that_there_are(path: Path) -> None:
    texts = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
    named = [found.groups() for text in texts if (found := SETTING_AND_VALUES.fullmatch(str(text)))]
    sections = tuple(f"{field.name}." for field in dataclasses.fields(BroRLConfig))
    for name, written in (pair for pair in named if pair[0].startswith(sections) and not is_free_form(pair[0])):
        declared = settings()[name].declared
        values = written.split(" or ") if written and declared.choices else []
        assert not any(declared.refusal(name, yaml.safe_load(value)) for value in values)


def test_all_violated_rules_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("brorl_cpu", ["rollouts.top_p=0.9", "generation.tensor_parallel_size=2", "policy.attention=flex"])
    message = str(caught.value)
    assert message.startswith("3 settings are wrong:")
    assert all(name in message for name in ("top_p", "tensor_parallel_size", "attention"))


RIGHT = [
    [TEACHER, "algorithm.advantage=none", "dynamic_sampling.enabled=false"],
    ["algorithm.kl.teachers={gcd: models/sums}"],
    ["rollouts.top_p=0.9", "algorithm.importance_correction.enabled=false"],
    ["policy.old_log_probs=sampler", "algorithm.importance_correction.enabled=false"],
    ["policy.precision=bf16", "parity.max_mean_abs_diff=0.05"],
    ["policy.tensor_model_parallel_size=2", "policy.pipeline_model_parallel_size=2", "policy.sequence_parallel=true"],
    ["trainer.gpus_per_node=8", "generation.placement=disaggregated", "policy.data_parallel_size=4"],
    ["dynamic_sampling.max_staleness=0"],
    ["algorithm.dual_clip=0"],
    ["algorithm.credit=turn", "algorithm.turn_discount=0.9"],
    ["generation.placement=disaggregated"],
    ["generation.sleep=discard"],
    ["generation.weight_transport=collective"],
]


@pytest.mark.parametrize("overrides", RIGHT)
def test_what_fits_is_accepted(overrides: list[str]) -> None:
    assert load_config("brorl_cpu", overrides) != load_config("brorl_cpu")


def test_names_in_the_rules_are_those_of_the_algorithms() -> None:
    from nemo_brorl.algorithm.advantages import ADVANTAGES
    from nemo_brorl.algorithm.losses import KL_ESTIMATORS, LOSSES, SUPERVISED

    assert set(algorithm.ADVANTAGES) == set(ADVANTAGES)
    assert set(algorithm.REINFORCEMENT_LOSSES) == set(LOSSES) - SUPERVISED
    assert set(algorithm.KL_ESTIMATORS) == set(KL_ESTIMATORS)


def test_demonstrated_calls_need_a_calculator() -> None:
    config = load_config("brorl_cpu", ["sft.demonstrations.calling_rate=0.1"])
    with pytest.raises(
        ConfigError, match=r"sft.demonstrations.calling_rate=0.1 .*needs data.environment=calculator \(now null\)"
    ):
        check_demonstrations(config)


def test_a_time_limit_becomes_seconds() -> None:
    assert load_config("brorl_cpu", ["trainer.time_limit=01:02:03"]).trainer.time_limit_s == 3723.0
    assert load_config("brorl_cpu").trainer.time_limit_s is None
