"""Measures an engine's step by how many sequences it decodes: milliseconds, and the line (constant, slope) of them.

    python -m bench.engine_host_time [--device cuda] [--model FOLDER | --shape 0.5B] [--sequences 64 128 256 512 1024]
        [--context 70] [--scheduler package.module.Class]

One engine in this process, as a run's engine actor has it: core and workers inside, CUDA graphs, seeds, sampled
log-probs. Every sequence decodes for as long as the rest, so that each step has them all; prompts are computed before
the clock starts. On a GPU the step is the longer of the host's time and the GPU's: the line is the host's where it
rises with the sequences at a short context. `--shape` has random weights; `--own-prompts` gives each sequence a prompt
of its own, where memory of a long context is to be read for each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.gpu.shapes import QWEN_0_5B, QWEN_1_5B, TINY

SHAPES = {"tiny": TINY, "0.5B": QWEN_0_5B, "1.5B": QWEN_1_5B}
SETTLE = 8  # steps after the last prompt, not timed


def open_engine(options: argparse.Namespace, folder: Path, on_gpu: bool) -> Any:
    """A `vllm.LLM` with its core in this process."""
    from nemo_brorl.generation import device

    device.prepare_process(on_cpu=not on_gpu)
    from vllm import LLM

    arguments: dict[str, Any] = {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "max_num_seqs": max(options.sequences),
        "max_model_len": options.context + options.steps + 2 * SETTLE + 16,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
    }
    if options.model is None:
        arguments["load_format"] = "dummy"
    if options.scheduler:
        arguments["scheduler_cls"] = options.scheduler
    if on_gpu:
        arguments |= {"gpu_memory_utilization": options.share, "dtype": "bfloat16"}
        arguments["compilation_config"] = {"max_cudagraph_capture_size": max(options.sequences)}
    else:
        arguments |= {"dtype": "float32", "kv_cache_memory_bytes": 2**30, "enforce_eager": True}
    return LLM(**arguments)


def step_seconds(llm: Any, num: int, options: argparse.Namespace, first_seed: int) -> list[float]:
    """Seconds of every step that decodes `num` sequences."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    engine = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    tokens = options.steps + 2 * SETTLE
    for number in range(num):
        params = SamplingParams(
            seed=first_seed + number,
            max_tokens=tokens,
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        own = divmod(number if options.own_prompts else 0, 100)
        prompt = [5 + own[0], 5 + own[1], *(place * 31 % 100 + 5 for place in range(2, options.context))]
        engine.add_request(f"{first_seed}-{number}", {"prompt_token_ids": prompt}, params)
    while len(scheduler.waiting) or any(request.num_output_tokens == 0 for request in scheduler.running):
        engine.step()
    for _ in range(SETTLE):
        engine.step()
    taken = []
    for _ in range(options.steps):
        began = time.perf_counter()
        engine.step()
        taken.append(time.perf_counter() - began)
    while scheduler.has_unfinished_requests():
        engine.step()
    engine.step()  # what is still in flight
    return taken


def line_through(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Constant and slope of the least squares line through (sequences, seconds)."""
    if len(points) < 2:
        return points[0][1], 0.0
    slope, constant = statistics.linear_regression(*zip(*points, strict=True))
    return constant, slope


def main() -> None:
    """Measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a Hugging Face folder; without it --shape")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--sequences", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--context", type=int, default=70, help="tokens of a prompt")
    parser.add_argument("--own-prompts", action="store_true", help="each sequence has its own")
    parser.add_argument("--steps", type=int, default=60, help="timed ones")
    parser.add_argument("--repeats", type=int, default=3, help="the first one warms up")
    parser.add_argument("--share", type=float, default=0.85, help="of a GPU's memory")
    parser.add_argument("--scheduler", help="dotted name of a class, vllm's scheduler_cls")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = options.model or Path(made)
        if options.model is None:
            (folder / "config.json").write_text(json.dumps(dict(SHAPES[options.shape])))
        llm = open_engine(options, folder, on_gpu=options.device == "cuda")
        points = []
        seed = 0
        print(f"{options.model or options.shape}, {options.context} tokens of context, {options.scheduler or 'vLLM'}")
        for num in options.sequences:
            medians = []
            for _ in range(options.repeats):
                seed += 1_000_000
                medians.append(statistics.median(step_seconds(llm, num, options, seed)))
            best = statistics.median(medians[1:])
            points.append((num, best))
            runs = ", ".join(f"{1e3 * one:.2f}" for one in medians)
            print(f"{num:6d} sequences: {1e3 * best:7.2f} ms a step, {num / best:9,.0f} tokens/s ({runs})", flush=True)
    constant, slope = line_through(points)
    print(f"line: {1e3 * constant:.2f} ms + {1e6 * slope:.1f} µs a sequence")


if __name__ == "__main__":
    main()
