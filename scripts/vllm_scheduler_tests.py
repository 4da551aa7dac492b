"""Run vLLM's own scheduler tests with the lean scheduler, and name the tests that only vLLM's scheduler passes.

    python scripts/vllm_scheduler_tests.py FOLDER

FOLDER gets the source archive of the pinned vLLM (45 MB, from the package index), configurations of two models without
weights, and the output of both runs. Nothing of it is committed. It takes one to three minutes on two idle cores.

Two tests fail with the lean scheduler alone, both named `test_abort_request_when_structured_output_fsm_cannot_advance`:
they make a scheduler without calling its constructor. Tests that need a package that is missing fail with either one.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tarfile
from abc import ABCMeta
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

from nemo_brorl.generation.vllm_adapter import VERSION

ROOT = Path(__file__).resolve().parents[1]
FILES = ("tests/v1/core/test_scheduler.py", "tests/v1/core/test_async_scheduler.py")
LEAN = "BRORL_LEAN_SCHEDULER"  # set in the run that replaces vLLM's classes

# Models that the tests name: they need a configuration and a tokenizer, and no weights.
MODELS: dict[str, dict[str, Any]] = {
    "facebook/opt-125m": {
        "model_type": "opt", "architectures": ["OPTForCausalLM"], "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12, "ffn_dim": 3072, "max_position_embeddings": 2048, "vocab_size": 50272,
        "word_embed_proj_dim": 768,
    },
    "llava-hf/llava-1.5-7b-hf": {
        "model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "image_token_index": 32000,
        "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
        "vision_config": {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14},
    },
}  # fmt: skip


def download(folder: Path) -> Path:
    """Fetch and unpack vLLM's source archive, and return its folder."""
    tools = folder / "build_tools"
    pip = [sys.executable, "-m", "pip"]
    needed = ["setuptools_rust", "setuptools_scm", "vcs_versioning", "tblib"]
    subprocess.run([*pip, "install", "-q", "--target", str(tools), *needed], check=True)
    environment = os.environ | {
        "VLLM_VERSION_OVERRIDE": VERSION,
        "VLLM_TARGET_DEVICE": "empty",
        "PYTHONPATH": str(tools),
    }
    options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "-d", str(folder)]
    subprocess.run([*pip, "download", "-q", *options, f"vllm=={VERSION}"], check=True, env=environment)
    with tarfile.open(folder / f"vllm-{VERSION}.tar.gz") as archive:
        members = [member for member in archive if f"vllm-{VERSION}/tests/" in member.name]
        archive.extractall(folder, members, filter="data")
    source = folder / f"vllm-{VERSION}"
    # It imports much that these tests do not need.
    (source / "tests" / "conftest.py").unlink()
    return source


def write_models(hub: Path) -> None:
    """Write the models' configurations as a Hugging Face cache has them."""
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    for name, config in MODELS.items():
        model = hub / f"models--{name.replace('/', '--')}"
        snapshot = model / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True, exist_ok=True)
        (model / "refs").mkdir(exist_ok=True)
        (model / "refs" / "main").write_text("0" * 40)
        (snapshot / "config.json").write_text(json.dumps(config))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "</s>"}
        (snapshot / "tokenizer_config.json").write_text(json.dumps(settings))
        tokenizer.save(str(snapshot / "tokenizer.json"))


def failing_tests(folder: Path, source: Path, is_lean: bool) -> set[str]:
    """Run the tests in a process of their own, and return those that do not pass."""
    paths = [source, ROOT, ROOT / "graders", folder / "build_tools"]
    environment = os.environ | {
        "PYTHONPATH": ":".join(map(str, paths)),
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_OFFLINE": "1",
        "VLLM_PLUGINS": "",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "TORCHDYNAMO_DISABLE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        LEAN: str(int(is_lean)),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "scripts.vllm_scheduler_tests", "-p", "no:cacheprovider"]
    run = subprocess.run([*command, *FILES], cwd=source, env=environment, capture_output=True, text=True, check=False)
    (folder / f"{'lean' if is_lean else 'vllm'}.txt").write_text(run.stdout + run.stderr)
    print(run.stdout.splitlines()[-1])
    return set(re.findall(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE))


def replace_schedulers() -> None:
    """Put the lean classes in place of vLLM's, where the settings allow them, and let every request be lean."""
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.core.sched import async_scheduler, scheduler

    from nemo_brorl.generation import lean_scheduler as lean

    own = {lean.LeanScheduler: scheduler.Scheduler, lean.LeanAsyncScheduler: async_scheduler.AsyncScheduler}
    find_stop_tokens = lean.stop_tokens_of

    class Choosing(ABCMeta):
        """Makes vLLM's scheduler where the lean one does not support the settings."""

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            unsupported = lean.why_unsupported(kwargs["vllm_config"], kwargs["kv_cache_config"])
            made = own[cls.__base__] if unsupported and cls.__base__ in own else cls
            return ABCMeta.__call__(made, *args, **kwargs)

    def stop_tokens_of(request: Any) -> list[int] | None:
        if request.sampling_params is not None:
            request.sampling_params.output_kind = RequestOutputKind.FINAL_ONLY
        return find_stop_tokens(request)

    lean.stop_tokens_of = stop_tokens_of
    scheduler.Scheduler = Choosing("Scheduler", (lean.LeanScheduler,), {})
    async_scheduler.AsyncScheduler = Choosing("AsyncScheduler", (lean.LeanAsyncScheduler,), {})


def main() -> int:
    """Run both, and print the tests that only vLLM's scheduler passes."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    source = download(folder)
    write_models(folder / "hf" / "hub")
    only_vllm = failing_tests(folder, source, is_lean=True) - failing_tests(folder, source, is_lean=False)
    print("passed by vLLM's scheduler alone:", *sorted(only_vllm), sep="\n  ")
    return int(any("structured_output_fsm_cannot_advance" not in name for name in only_vllm))


if os.environ.get(LEAN) == "1":
    importlib.import_module("vllm")
    replace_schedulers()

if __name__ == "__main__":
    sys.exit(main())
