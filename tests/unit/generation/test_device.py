"""What generation asks of vLLM and Ray, by device."""

import os
import sys
from pathlib import Path

import pytest

from nemo_brorl.config.generation import GenerationConfig
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.generation import device


def settings_of(config: BroRLConfig, index: int = 0) -> device.EngineSettings:
    return device.engine_settings(config.generation, RunSizes.from_config(config), Path("model"), index)


def test_tensor_parallel_engines_on_cpu_are_refused() -> None:
    config = BroRLConfig()
    config.generation.tensor_parallel_size = 2
    with pytest.raises(ConfigError, match="tensor_parallel_size=2 needs GPUs"):
        device.check(config.generation, RunSizes.from_config(config))


def test_cpu_engines_share_cores_and_get_an_explicit_cache() -> None:
    config = BroRLConfig()
    options = device.actor_options(RunSizes.from_config(config))
    assert options["num_cpus"] == 0.1
    assert "num_gpus" not in options
    assert "runtime_env" not in options, "it would keep engines out of Ray's prestarted workers"
    arguments = settings_of(config).arguments
    assert arguments["kv_cache_memory_bytes"] == 2**28
    assert "gpu_memory_utilization" not in arguments


def test_what_the_user_has_set_in_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"})
    device.prepare_process(False, {})
    assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert os.environ["TORCH_LOGS"] == "-all"
    assert os.environ["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    assert os.environ["TRITON_F32_DEFAULT"] == "ieee", "fp32 attention would be in TF32"
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0", "the engine core must be in the actor's process"


@pytest.mark.parametrize(("on_cpu", "threads"), [(True, "1"), (False, "7")])
def test_only_cpu_engines_are_held_to_one_thread(monkeypatch: pytest.MonkeyPatch, on_cpu: bool, threads: str) -> None:
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": "7"})
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    device.prepare_process(on_cpu, {})
    assert os.environ["OMP_NUM_THREADS"] == threads
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert not sys.dont_write_bytecode


@pytest.mark.parametrize(
    ("on_cpu", "before", "after"),
    [(True, {}, "64"), (True, {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "1024"}, "1024"), (False, {}, None)],
)
def test_onednn_keeps_few_products_in_a_cpu_engine(
    monkeypatch: pytest.MonkeyPatch, on_cpu: bool, before: dict[str, str], after: str | None
) -> None:
    monkeypatch.setattr(os, "environ", before)
    device.prepare_process(on_cpu, {})
    assert os.environ.get("ONEDNN_PRIMITIVE_CACHE_CAPACITY") == after


def test_gpu_engines_see_none_of_the_cpu_settings() -> None:
    config = BroRLConfig()
    config.trainer.gpus_per_node = 8
    config.generation.tensor_parallel_size = 2
    config.generation.precision = "bf16"
    device.check(config.generation, RunSizes.from_config(config))
    arguments = settings_of(config, 3).arguments
    assert arguments["distributed_executor_backend"] == "ray", "its workers share their GPUs with policy ranks"
    assert arguments["enable_sleep_mode"] is False
    assert arguments["dtype"] == "bfloat16"
    assert arguments["gpu_memory_utilization"] == RunSizes.from_config(config).gpu_share
    assert "kv_cache_memory_bytes" not in arguments
    assert arguments["max_num_batched_tokens"] == 8192, "vLLM's own for an engine of ours is 2,048"
    assert arguments["hf_overrides"] == {"head_dtype": "float32"}


def test_the_largest_cuda_graph_follows_the_number_of_sequences() -> None:
    config = BroRLConfig()
    config.trainer.gpus_per_node = 1
    config.generation.enforce_eager = False
    config.generation.max_num_seqs = 512
    assert "compilation_config" not in settings_of(config).arguments, "512 is vLLM's own"
    config.generation.max_num_seqs = 1024
    assert settings_of(config).arguments["compilation_config"] == {"max_cudagraph_capture_size": 1024}
    config.generation.engine_args = {"compilation_config": {"max_cudagraph_capture_size": 768}}
    assert settings_of(config).arguments["compilation_config"] == {"max_cudagraph_capture_size": 768}
    config.generation.enforce_eager = True
    config.generation.engine_args = {}
    assert "compilation_config" not in settings_of(config).arguments


LEAN = "nemo_brorl.generation.lean_scheduler.make_scheduler"


@pytest.mark.parametrize(
    ("gpus", "setting", "scheduler"),
    [(0, "auto", LEAN), (0, "on", LEAN), (0, "off", None), (8, "auto", None), (8, "on", LEAN), (8, "off", None)],
)
def test_the_lean_scheduler_is_on_by_default_where_it_was_measured(
    gpus: int, setting: str, scheduler: str | None
) -> None:
    config = BroRLConfig()
    config.trainer.gpus_per_node = gpus
    config.generation.lean_scheduler = setting
    assert settings_of(config).arguments.get("scheduler_cls") == scheduler


@pytest.mark.parametrize("own", [None, "my.module.Scheduler", LEAN])
@pytest.mark.parametrize("setting", ["auto", "off"])
def test_a_scheduler_that_the_user_names_is_taken(own: str | None, setting: str) -> None:
    config = BroRLConfig()
    config.generation.lean_scheduler = setting
    config.generation.engine_args = {"scheduler_cls": own}
    assert settings_of(config).arguments["scheduler_cls"] == own
    assert device.choose_scheduler(config.generation, on_cpu=True)[1].endswith(f"engine_args.scheduler_cls={own}")
    assert list(config.generation.violations()) == []


def test_a_named_scheduler_and_the_lean_one_exclude_each_other() -> None:
    generation = GenerationConfig(lean_scheduler="on", engine_args={"scheduler_cls": None})
    (message,) = generation.violations()
    assert message.startswith(
        "generation.lean_scheduler=on and generation.engine_args.scheduler_cls exclude each other"
    )


@pytest.mark.parametrize(
    ("on_cpu", "setting", "words"),
    [
        (True, "auto", "the lean scheduler (it was measured on a CPU)"),
        (False, "auto", "vLLM's own scheduler (on GPUs nobody has compared tokens and speed of the lean one)"),
        (False, "on", "the lean scheduler (generation.lean_scheduler=on)"),
        (True, "off", "vLLM's own scheduler (generation.lean_scheduler=off)"),
    ],
)
def test_the_log_says_which_scheduler_was_chosen_and_why(on_cpu: bool, setting: str, words: str) -> None:
    generation = GenerationConfig(lean_scheduler=setting)
    assert device.choose_scheduler(generation, on_cpu)[1] == f"engines have {words}"


def test_another_vllm_has_its_own_scheduler_and_refuses_the_lean_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_vllm_version", lambda: (0, 33))
    config = BroRLConfig()
    assert "scheduler_cls" not in settings_of(config).arguments
    config.generation.lean_scheduler = "on"
    with pytest.raises(ConfigError, match=r"generation.lean_scheduler=on needs vLLM 0.32. Install it, or set auto"):
        device.check(config.generation, RunSizes.from_config(config))


def test_the_number_of_tokens_in_a_step_can_be_set_and_holds_every_response() -> None:
    config = BroRLConfig()
    assert "max_num_batched_tokens" not in settings_of(config).arguments
    config.trainer.gpus_per_node = 1
    config.generation.max_num_seqs = 10_000
    assert settings_of(config).arguments["max_num_batched_tokens"] == 10_000
    config.generation.max_num_batched_tokens = 500
    (message,) = config.generation.violations()
    assert "max_num_batched_tokens=500 is less than one token for each of generation.max_num_seqs=10000" in message
    config.generation.max_num_batched_tokens = 16_384
    assert settings_of(config).arguments["max_num_batched_tokens"] == 16_384


def test_an_engine_in_anothers_place_asks_for_its_cache_and_not_for_a_share_of_the_card() -> None:
    """The policy has its memory by then, and may change it while vLLM would measure."""
    config = BroRLConfig()
    on_cpu = settings_of(config)
    assert device.with_cache(on_cpu, 5 * 2**30) == on_cpu
    config.trainer.gpus_per_node = 1
    first = settings_of(config)
    second = device.with_cache(first, 5 * 2**30)
    assert second.arguments["kv_cache_memory_bytes"] == 5 * 2**30
    assert second.arguments["gpu_memory_utilization"] < 0.05
    assert "kv_cache_memory_bytes" not in first.arguments


def test_engines_with_gpus_of_their_own_run_their_workers_beside_them() -> None:
    config = BroRLConfig()
    config.trainer.gpus_per_node = 8
    config.generation.placement = "disaggregated"
    config.generation.tensor_parallel_size = 2
    assert settings_of(config).arguments["distributed_executor_backend"] == "mp"


def test_workers_that_vllm_starts_through_ray_learn_their_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"CUDA_VISIBLE_DEVICES": ""})
    device.prepare_process(False, {"VLLM_RAY_BUNDLE_INDICES": "2,3"})
    assert os.environ["VLLM_RAY_BUNDLE_INDICES"] == "2,3"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


@pytest.mark.parametrize(
    ("version", "sleeps", "runner"), [("0.26.0", True, "0"), ("0.26.0", False, None), ("0.32.0", True, None)]
)
def test_an_older_vllm_sleeps_with_its_first_model_runner(
    version: str, sleeps: bool, runner: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(device.metadata, "version", lambda package: version)
    device.prepare_process(False, {}, sleeps=sleeps)
    assert os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == runner
