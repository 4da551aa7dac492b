"""Measure a step of one vLLM engine by batch and context, and its prefill, and fit them for the cluster model.

    python -m lab.studies.engine_curve --json runs/engine_curve.json [--model FOLDER] [--batches 1 8 64 256] [--prompts
    32 128 448]

One engine runs in one Ray actor, started as the pool starts its own. Every point is a batch of responses that do not
stop, to prompts of one length. The median over the steps after the prefill counts. The fit is
`a + b · batch + c · context`, with the context summed over the batch, by relative least squares. The prefill rate is
that of new prompts of the longest length.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray

from bench.generation import PromptMaker, make_model
from lab.studies.cluster_model.curve import EngineCurve, fit
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import format_table
from nemo_brorl.generation import device
from nemo_brorl.types import Prompt


@dataclass(frozen=True)
class Point:
    """The measured step time of an engine at one batch and one prompt length."""

    batch: int
    prompt_tokens: int
    context: int  # context summed over the batch, in the middle of the steps
    step_s: float  # median seconds


class StepTimer:
    """One vLLM engine, stepped by hand."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        device.prepare_process(on_cpu=True)
        from vllm import EngineArgs, LLMEngine

        self._engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        self._engine.collective_rpc("apply_device_fixes")
        self._num_requests = 0

    def decode(self, prompt: Prompt, batch: int, num_steps: int) -> list[float]:
        """Return the seconds of each of `num_steps` decoding steps, in which each response to a prompt gets a token."""
        self._add(prompt, batch, num_steps + 1)
        self._step()  # the prompt, and each response's first token
        seconds = [self._step() for _ in range(num_steps)]
        while self._engine.has_unfinished_requests():
            self._step()
        return seconds

    def prefill(self, prompts: list[Prompt]) -> float:
        """Return the seconds in which the engine computes all prompts, with one response token each."""
        for prompt in prompts:
            self._add(prompt, 1, 1)
        start = time.perf_counter()
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return time.perf_counter() - start

    def _step(self) -> float:
        start = time.perf_counter()
        self._engine.step()
        return time.perf_counter() - start

    def _add(self, prompt: Prompt, num: int, max_tokens: int) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        for row in range(num):
            params = SamplingParams(
                seed=row, max_tokens=max_tokens, ignore_eos=True, logprobs=0, flat_logprobs=True, detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )  # fmt: skip
            self._num_requests += 1
            self._engine.add_request(str(self._num_requests), {"prompt_token_ids": list(prompt.token_ids)}, params)


def measure(timer: Any, maker: PromptMaker, options: argparse.Namespace) -> list[Point]:
    """Measure an engine's step time at every batch size and prompt length that the command line gives."""
    points = []
    for prompt_tokens in options.prompts:
        for batch in options.batches:
            prompt = maker.make(1, prompt_tokens)[0]
            seconds = [
                time
                for _ in range(options.repeats)
                for time in ray.get(timer.decode.remote(prompt, batch, options.steps))
            ]
            context = batch * (prompt_tokens + 1 + options.steps // 2)
            points.append(Point(batch, prompt_tokens, context, statistics.median(seconds)))
    return points


def curve_of(points: list[Point], prefill_tokens_per_s: float, source: str) -> EngineCurve:
    """Return the curve of an engine's step times that fits all measured points."""
    return fit([point.batch for point in points], [point.context for point in points],
               [point.step_s for point in points],
               prefill_tokens_per_s, source)  # fmt: skip


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=Path, help="Hugging Face folder (default: random weights of the warm-up's sizes)"
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 128, 256, 512])
    parser.add_argument("--prompts", type=int, nargs="+", default=[32, 128, 448], help="tokens")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the curve and the points here")
    return parser.parse_args()


def main() -> None:
    """Measure an engine's step times, fit a curve, and print and write it."""
    options = parse_arguments()
    config = BroRLConfig()
    config.generation.num_engines = 1
    config.generation.max_model_len = max(options.prompts) + options.steps + 2
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.model or make_model(Path(scratch), config.generation.max_model_len)
        arguments = device.engine_settings(config.generation, RunSizes.from_config(config), folder, 0).arguments
        timer = ray.remote(**(device.actor_options(RunSizes.from_config(config)) | {"max_concurrency": 1}))(
            StepTimer
        ).remote(arguments)
        maker = PromptMaker(json.loads((folder / "config.json").read_text())["vocab_size"])
        points = measure(timer, maker, options)
        prompts = [maker.make(16, max(options.prompts)) for _ in range(options.repeats)]
        seconds = statistics.median(ray.get(timer.prefill.remote(batch)) for batch in prompts)
        ray.shutdown()
    curve = curve_of(
        points,
        16 * max(options.prompts) / seconds,
        f"measured, {folder.name if options.model else 'random warm-up model'}",
    )
    rows = [
        [str(point.batch), str(point.prompt_tokens), f"{1000 * point.step_s:.2f}",
         f"{1000 * curve.decode_s(point.batch, point.context, 1):.2f}"]
        for point in points
    ]  # fmt: skip
    print("\n".join(format_table(["batch", "prompt", "step, ms", "fit, ms"], rows)))
    print(f"{1000 * curve.step_s:.3f} ms + {1e6 * curve.rollout_s:.2f} µs · batch + {1e9 * curve.context_s:.2f} ns · "
          f"context, "
          f"prefill {curve.prefill_tokens_per_s:.0f} tokens/s")  # fmt: skip
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(
            json.dumps({"curve": asdict(curve), "points": [asdict(point) for point in points]}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
