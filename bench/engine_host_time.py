"""Host time of one engine by part and by how many sequences it decodes: raw `vllm.LLM` against this package's engine.

    python -m bench.engine_host_time [--device cuda] [--model FOLDER | --shape 0.5B] [--sequences 64 128 256 512 1024]
        [--sides raw own lean] [--tensor-parallel 1] [--context 70] [--tokens 48] [--repeats 5]

Each side has a process of its own, with an engine whose core is inside: `raw` is `LLM.generate`, `apart` the same with
vLLM's core in a second process, `own` our chunks over vLLM's scheduler, `lean` our chunks over the lean scheduler. All
sequences are siblings of one prompt, with the same seeds and no end before `--tokens`, so that every step has them all.
Digests of all tokens and log-probs are compared.

Parts are charged with the CPU time of the engine's thread, less that of the parts inside them, so other load changes
little. `device` is the forward pass, the output layer and the sampler, which are the GPU's where there is one. Tokens a
second are by wall time, medians of `--repeats`. The line is host time of a step over its sequences. Parts in
other processes are not measured (`apart`, `--tensor-parallel 2`).
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

SHAPES = ("tiny", "0.5B", "1.5B")
SIDES = ("raw", "apart", "own", "lean")
CHUNK = 64  # rollouts of a request to our engine
SEED = 5

# Functions of vLLM that are charged to a part: owner, name.
PARTS = {
    "schedule": [("scheduler", "schedule")],
    "update": [("scheduler", "update_from_output")],
    "output processor": [("output_processor", "process_outputs")],
    "adding": [("engine", "add_request"), ("core", "preprocess_add_request"), ("core", "add_request")],
    "runner": [("runner", "execute_model"), ("runner", "sample_tokens")],
    "device": [("runner", "_model_forward"), ("runner", "_sample"), ("model", "compute_logits")],
    "loops": [("engine", "step"), ("core", "step_fn")],
}


class Meter:
    """CPU time of functions, each less what measured functions inside it took."""

    def __init__(self) -> None:
        self.nanoseconds: dict[str, int] = defaultdict(int)
        self._inner: list[int] = []

    def wrap(self, owner: Any, name: str, part: str) -> None:
        """Charge calls of `owner.name` to a part."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def measured(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0)
            start = time.thread_time_ns()
            try:
                return original(*args, **kwargs)
            finally:
                taken = time.thread_time_ns() - start
                self.nanoseconds[part] += taken - self._inner.pop()
                if self._inner:
                    self._inner[-1] += taken

        setattr(owner, name, measured)


def measure_engine(engine: Any, meter: Meter) -> None:
    """Charge an engine's functions, whose core is in this process, to their parts."""
    core = engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    owners = {
        "engine": engine,
        "core": core,
        "scheduler": core.scheduler,
        "output_processor": engine.output_processor,
        "runner": runner,
        "model": runner.model,
    }
    for part, functions in PARTS.items():
        for owner, name in functions:
            if hasattr(owners[owner], name):
                meter.wrap(owners[owner], name, part)


def engine_arguments(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the arguments of the engine, as a run has them."""
    arguments: dict[str, Any] = {
        "model": str(folder),
        "max_num_seqs": max(options.sequences),
        "tensor_parallel_size": options.tensor_parallel,
        "max_model_len": options.context + options.tokens,
        "block_size": 32,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
        "worker_extension_cls": "nemo_brorl.generation.vllm_worker.WeightReceiver",
    }
    if options.side == "lean":
        arguments["scheduler_cls"] = "nemo_brorl.generation.lean_scheduler.make_scheduler"
    if options.shape:
        arguments |= {"load_format": "dummy", "skip_tokenizer_init": True}
    if options.device == "cuda":
        arguments |= {"gpu_memory_utilization": options.share, "dtype": "bfloat16"}
        arguments["compilation_config"] = {"max_cudagraph_capture_size": max(options.sequences)}
    else:
        arguments |= {"dtype": "float32", "kv_cache_memory_bytes": 2**30, "enforce_eager": True}
    return arguments


def write_shape(folder: Path, shape: str) -> None:
    """Write the configuration of a model with random weights."""
    # It imports torch, which has to wait for the settings of the engine's process.
    from bench.gpu.shapes import QWEN_0_5B, QWEN_1_5B, TINY

    shapes = {"tiny": TINY, "0.5B": QWEN_0_5B, "1.5B": QWEN_1_5B}
    (folder / "config.json").write_text(json.dumps(dict(shapes[shape])))


def raw_side(llm: Any, options: argparse.Namespace) -> Callable[[list[int], int], str]:
    """Return a function that samples siblings of a prompt by `LLM.generate`, and returns their digest."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    def sample(prompt: list[int], num: int) -> str:
        params = SamplingParams(
            n=num,
            seed=SEED,
            max_tokens=options.tokens,
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        (output,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        digest = hashlib.sha256()
        for completion in sorted(output.outputs, key=lambda completion: completion.index):
            digest.update(np.array(completion.token_ids, np.int32).tobytes())
            digest.update(np.array(completion.logprobs.logprobs, np.float32).tobytes())
        return digest.hexdigest()[:16]

    return sample


def own_side(llm: Any, options: argparse.Namespace, meter: Meter) -> Callable[[list[int], int], str]:
    """Return the same by chunks of our engine."""
    from vllm import SamplingParams

    from nemo_brorl.generation import vllm_adapter
    from nemo_brorl.generation.chunk_batch import ChunkBatch
    from nemo_brorl.generation.chunk_task import ChunkTask
    from nemo_brorl.generation.vllm_requests import VllmRequests
    from nemo_brorl.types import Prompt, RolloutRequest, Sampling

    requests = VllmRequests(llm.llm_engine, vllm_adapter.lean_scheduler(llm.llm_engine))
    requests._new_params = functools.partial(SamplingParams, ignore_eos=True)
    batch = ChunkBatch(requests)
    meter.wrap(batch, "add", "adding")
    meter.wrap(batch, "step", "loops")

    def sample(prompt: list[int], num: int) -> str:
        answers = []
        for first in range(0, num, CHUNK):
            question = Prompt("0", "bench", "none", tuple(prompt), {})
            sampling = Sampling(temperature=1.0, top_p=1.0, max_tokens=options.tokens)
            request = RolloutRequest(question, first, min(CHUNK, num - first), SEED, sampling)
            answers.append(Future[Any]())
            batch.add(ChunkTask(first, request, None, answers[-1]))
        while not batch.is_idle:
            batch.step()
        digest = hashlib.sha256()
        for answer in answers:
            _, arrays, _ = answer.result()
            for start, end in zip(arrays.offsets, arrays.offsets[1:], strict=False):
                digest.update(arrays.token_ids[start:end].tobytes())
                digest.update(arrays.log_probs[start:end].tobytes())
        return digest.hexdigest()[:16]

    return sample


def run_side(options: argparse.Namespace) -> None:
    """Measure one side in this process, and print its rows as one line of JSON."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if options.side == "apart" else "0"
    from nemo_brorl.generation import device

    if options.side != "apart":
        device.prepare_process(on_cpu=options.device == "cpu")
    if options.device == "cpu" and options.tensor_parallel > 1:
        # Without it vLLM wants a NUMA node for each worker.
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(options.tensor_parallel)))
    from vllm import LLM

    rows = []
    with tempfile.TemporaryDirectory() as made:
        folder = options.model
        if options.shape:
            folder = Path(made)
            write_shape(folder, options.shape)
        llm = LLM(**engine_arguments(options, folder))
        if options.device == "cpu":
            llm.collective_rpc("apply_device_fixes")
        if options.side == "lean":
            llm.collective_rpc("sample_by_arrays")
        meter = Meter()
        if options.side != "apart" and options.tensor_parallel == 1:
            measure_engine(llm.llm_engine, meter)
        sample = own_side(llm, options, meter) if options.side in ("own", "lean") else raw_side(llm, options)
        prompt = np.random.default_rng(7).integers(3, 20, options.context).tolist()
        for num in options.sequences:
            seconds, parts = [], []
            for _ in range(options.repeats + 1):
                llm.reset_prefix_cache()
                meter.nanoseconds.clear()
                start = time.perf_counter()
                digest = sample(prompt, num)
                seconds.append(time.perf_counter() - start)
                parts.append(dict(meter.nanoseconds))
            tokens = num * options.tokens
            us = {part: min(run[part] for run in parts[1:]) / 1000 / tokens for part in parts[-1]}
            rows.append({"num": num, "per_s": tokens / statistics.median(seconds[1:]), "us": us, "digest": digest})
    print(json.dumps(rows))


def print_side(side: str, rows: list[dict[str, Any]]) -> None:
    """Print one line for each number of sequences, and the line through their host time."""
    points = []
    for row in rows:
        host = sum(us for part, us in row["us"].items() if part != "device")
        parts = ", ".join(f"{part} {us:.1f}" for part, us in row["us"].items())
        points.append((row["num"], host * row["num"] / 1000))
        print(
            f"{side:6} {row['num']:5} sequences: {row['per_s']:9,.0f} tokens/s, host {host:5.1f} µs a token ({parts})"
        )
    if len(points) > 1 and points[0][1]:
        slope, constant = statistics.linear_regression(*zip(*points, strict=True))
        print(f"{side:6} host time of a step: {constant:.2f} ms + {1000 * slope:.1f} µs a sequence")


def read_options(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("models/sums"), help="a Hugging Face folder")
    parser.add_argument("--shape", choices=SHAPES, help="random weights instead")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--sequences", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=["raw", "own", "lean"])
    parser.add_argument("--tensor-parallel", type=int, default=1, help="ranks of the engine")
    parser.add_argument("--context", type=int, default=70, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=48, help="tokens of a response")
    parser.add_argument("--repeats", type=int, default=5, help="after one that warms up")
    parser.add_argument("--share", type=float, default=0.85, help="of a GPU's memory")
    parser.add_argument("--json", type=Path, help="write all rows there")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main() -> None:
    """Run every side in a process of its own, and print the table."""
    options = read_options(sys.argv[1:])
    if options.side:
        run_side(options)
        return
    measured: dict[str, list[dict[str, Any]]] = {}
    for side in options.sides:
        command = [sys.executable, "-m", "bench.engine_host_time", *sys.argv[1:], "--side", side]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        # vLLM's other processes may print after the rows.
        (rows_line,) = (line for line in output.splitlines() if line.startswith('[{"num"'))
        measured[side] = json.loads(rows_line)
        print_side(side, measured[side])
    for rows in zip(*measured.values(), strict=True):
        ratios = ", ".join(
            f"{side} {row['per_s'] / rows[0]['per_s']:.2f}" for side, row in zip(measured, rows, strict=True)
        )
        same = "same tokens" if len({row["digest"] for row in rows}) == 1 else "OTHER TOKENS"
        print(f"{rows[0]['num']:5} sequences, tokens/s over {options.sides[0]}: {ratios}; {same}")
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
