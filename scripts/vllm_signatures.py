"""Record the signatures of vLLM's GPU build in tests/data/vllm_signatures.json.

They are the fields of EngineArgs and SamplingParams, the parameters of the methods that this package calls, and
checksums of the files whose internals it uses. `tests/unit/generation/test_vllm_adapter.py` compares.

    pip download --no-deps vllm==VERSION -d FOLDER && unzip FOLDER/vllm-*.whl '*.py' -d SOURCES
    python scripts/vllm_signatures.py SOURCES/vllm VERSION

Tests run with the wheel for CPUs. The wheel for GPUs cannot be imported without one, so it is read as text.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from nemo_brorl.generation.engine_arguments import fields_of

ROOT = Path(__file__).resolve().parents[1]
SIGNATURES = ROOT / "tests" / "data" / "vllm_signatures.json"

CLASSES = {"EngineArgs": "engine/arg_utils.py", "SamplingParams": "sampling_params.py"}

# Methods and functions that the package calls, as file:class.name, with the number of positional arguments (without
# self) and the names of keyword arguments.
CALLS: dict[str, tuple[int, tuple[str, ...]]] = {
    "v1/engine/llm_engine.py:LLMEngine.from_engine_args": (1, ()),
    "v1/engine/llm_engine.py:LLMEngine.get_supported_tasks": (0, ()),
    "v1/engine/input_processor.py:InputProcessor.process_inputs": (3, ("supported_tasks",)),
    "v1/engine/core.py:EngineCore.preprocess_add_request": (1, ()),
    "v1/engine/core.py:EngineCore.add_request": (2, ()),
    "v1/engine/core_client.py:InprocClient.get_output": (0, ()),
    "v1/engine/core_client.py:InprocClient.abort_requests": (1, ()),
    "v1/engine/llm_engine.py:LLMEngine.collective_rpc": (1, ("args",)),
    "v1/engine/llm_engine.py:LLMEngine.reset_prefix_cache": (0, ("reset_running_requests",)),
    "v1/engine/llm_engine.py:LLMEngine.sleep": (1, ()),
    "v1/engine/llm_engine.py:LLMEngine.wake_up": (1, ()),
    "v1/engine/llm_engine.py:LLMEngine.release_kv_cache_memory": (0, ()),
    "v1/engine/llm_engine.py:LLMEngine.step": (0, ()),
    "v1/request.py:Request.__init__": (4, ("arrival_time",)),
    "v1/core/sched/scheduler.py:Scheduler.has_requests": (0, ()),
    "v1/core/sched/scheduler.py:Scheduler.schedule": (1, ()),
    "v1/core/sched/scheduler.py:Scheduler.update_from_output": (2, ()),
    "v1/core/sched/scheduler.py:Scheduler.finish_requests": (2, ()),
    "v1/core/sched/scheduler.py:Scheduler.reset_prefix_cache": (2, ()),
    "v1/core/sched/utils.py:.check_stop": (2, ()),
    "v1/core/kv_cache_manager.py:KVCacheManager.cache_blocks": (2, ()),
    "v1/core/block_pool.py:BlockPool.get_new_blocks": (1, ()),
    "model_executor/model_loader/reload/layerwise.py:.initialize_layerwise_reload": (1, ()),
    "model_executor/model_loader/reload/layerwise.py:.finalize_layerwise_reload": (2, ()),
}

# Files whose internals the package uses. If both wheels have equal text, a test on CPU tests the GPU wheel, too.
SAME_TEXT = (
    "engine/arg_utils.py",
    "sampling_params.py",
    "v1/core/block_pool.py",
    "v1/core/kv_cache_coordinator.py",
    "v1/core/kv_cache_manager.py",
    "v1/core/sched/async_scheduler.py",
    "v1/core/sched/interface.py",
    "v1/core/sched/output.py",
    "v1/core/sched/scheduler.py",
    "v1/core/sched/utils.py",
    "v1/core/single_type_kv_cache_manager.py",
    "v1/engine/core.py",
    "v1/engine/core_client.py",
    "v1/engine/llm_engine.py",
    "v1/engine/input_processor.py",
    "v1/executor/uniproc_executor.py",
    "v1/request.py",
    "model_executor/layers/logits_processor.py",
    "model_executor/model_loader/reload/layerwise.py",
)


def signatures(package: Path, version: str) -> dict[str, Any]:
    """Return the contents of the JSON file for a vLLM package's sources."""
    classes = {}
    for name, file in CLASSES.items():
        source = (package / file).read_text(encoding="utf-8")
        classes[name] = list(fields_of(source, name))
    calls = {}
    for place in CALLS:
        file, _, function = place.partition(":")
        class_name, _, name = function.partition(".")
        source = (package / file).read_text(encoding="utf-8")
        calls[place] = _parameters(source, class_name, name)
    checksums = {}
    for file in SAME_TEXT:
        content = (package / file).read_bytes()
        checksums[file] = hashlib.sha256(content).hexdigest()
    return {"version": version, "classes": classes, "calls": calls, "checksums": checksums}


def _parameters(source: str, class_name: str, name: str) -> list[str]:
    """Return the parameters of a function, those with a default as `name=`. Raises KeyError for a missing function."""
    body: list[ast.stmt] = ast.parse(source).body
    if class_name:
        classes = [node for node in body if isinstance(node, ast.ClassDef) and node.name == class_name]
        body = classes[0].body
    for node in reversed(body):  # the implementation follows its overloads
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return _names(node.args)
    raise KeyError(f"{class_name}.{name}")


def _names(arguments: ast.arguments) -> list[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    num_required = len(positional) - len(arguments.defaults)
    names = []
    for number, argument in enumerate(positional):
        names.append(argument.arg if number < num_required else f"{argument.arg}=")
    if arguments.vararg is not None:
        names.append(f"*{arguments.vararg.arg}")
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        names.append(argument.arg if default is None else f"{argument.arg}=")
    if arguments.kwarg is not None:
        names.append(f"**{arguments.kwarg.arg}")
    return names


if __name__ == "__main__":
    found = signatures(Path(sys.argv[1]), sys.argv[2])
    SIGNATURES.parent.mkdir(exist_ok=True)
    SIGNATURES.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
