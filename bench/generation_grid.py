"""What a large group is worth to one engine: N = 512 against N = 16 at equal samples, over prompt and response lengths.

    python -m bench.generation_grid [--raw inside|apart] [--tiny] [--json FILE]

Every cell samples the same number of rollouts of the same lengths (a random model hardly stops) in four ways, in turns,
medians:

    wide       one prompt, N = 512
    narrow     32 prompts, N = 16, all of them in flight together
    one_by_one 32 prompts, N = 16, a group at a time: as few in flight as a small group has by itself
    scattered  512 prompts, N = 1: nothing is found in the prefix cache

wide over narrow is what the prompt saved (equally many in flight), narrow over one_by_one what fuller batches gave, and
wide over one_by_one both. From scattered and narrow comes the seconds of a prompt token, and from it what wide over
narrow should be.

With `--raw` the engine pool and raw `vllm.LLM.generate` take turns instead, at N = 512, 16 and 1 with all rollouts in
flight. Each pair of runs gives a ratio of samples/s; the table has the median, the least and the largest. vLLM's core
is `inside` the process that calls it, or `apart` in a second one, vLLM's default.

A repeat takes two to seven minutes on two idle cores. With several the order alternates and medians are shown.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray
from brorl_lab.theory.batching import prompt_tokens_computed

from bench.generation import PromptMaker, make_model, start_raw, time_pool
from nemo_brorl.config.generation import BLOCK_TOKENS
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import format_table
from nemo_brorl.generation import device
from nemo_brorl.generation.pool import VllmPool
from nemo_brorl.types import Prompt, Sampling

WIDE, NARROW = 512, 16
SIDES = ("wide", "narrow", "one_by_one", "scattered")


@dataclass(frozen=True)
class Run:
    """One side of one cell, once."""

    seconds: float
    prompt_tokens: int  # looked up in the prefix cache
    found_tokens: int


@dataclass(frozen=True)
class Cell:
    """Medians of one pair of lengths, in seconds per rollout."""

    prompt_tokens: int
    response_tokens: int
    num_samples: int
    seconds: dict[str, float]  # by side, per rollout
    computed: dict[str, float]  # prompt tokens per rollout that were computed, by side
    hit_rate: dict[str, float]

    @property
    def gain(self) -> float:
        """N = 512 over N = 16, equally many rollouts in flight."""
        return self.seconds["narrow"] / self.seconds["wide"]

    @property
    def gain_of_batching(self) -> float:
        """All groups of 16 together over one at a time."""
        return self.seconds["one_by_one"] / self.seconds["narrow"]

    @property
    def prompt_token_s(self) -> float:
        """Seconds that an engine takes to compute one prompt token.

        Scattered and narrow runs differ only in the number of computed prompt tokens. 0 where that number is equal.
        """
        if self.computed["scattered"] == self.computed["narrow"]:
            return 0.0
        return (self.seconds["scattered"] - self.seconds["narrow"]) / (
            self.computed["scattered"] - self.computed["narrow"]
        )

    @property
    def gain_expected(self) -> float:
        """N = 512 over N = 16 if prompt tokens were all that differs."""
        saved = self.prompt_token_s * (self.computed["narrow"] - self.computed["wide"])
        return self.seconds["narrow"] / (self.seconds["narrow"] - saved)


def run_side(
    pool: VllmPool, side: str, maker: PromptMaker, prompt_tokens: int, num_samples: int, sampling: Sampling
) -> Run:
    """Sample once, with prompts that were never seen."""
    size = {"wide": num_samples, "scattered": 1}.get(side, min(NARROW, num_samples))
    prompts = maker.make(num_samples // size, prompt_tokens)
    batches: list[Sequence[Prompt]] = [[prompt] for prompt in prompts] if side == "one_by_one" else [prompts]
    before = pool.stats()
    seconds = sum(time_pool(pool, batch, size, min(size, 64), sampling).seconds for batch in batches)
    after = pool.stats()
    queries, hits = (sum(getattr(new, name) - getattr(old, name) for old, new in zip(before, after, strict=True))
                     for name in ("prefix_cache_queries", "prefix_cache_hits"))  # fmt: skip
    return Run(seconds, queries, hits)


def measure_cell(
    pool: VllmPool, maker: PromptMaker, prompt_tokens: int, response_tokens: int, num_samples: int, repeats: int
) -> Cell:
    """Measure all sides of one cell of the grid.

    The sides take turns, and their order is reversed in every repeat.
    """
    sampling = Sampling(temperature=1.0, top_p=1.0, max_tokens=response_tokens)
    runs: dict[str, list[Run]] = {side: [] for side in SIDES}
    for repeat in range(repeats):
        for side in SIDES if repeat % 2 else reversed(SIDES):
            runs[side].append(run_side(pool, side, maker, prompt_tokens, num_samples, sampling))
    seconds = {side: statistics.median(run.seconds for run in runs[side]) / num_samples for side in SIDES}
    queries = {side: sum(run.prompt_tokens for run in runs[side]) for side in SIDES}
    found = {side: sum(run.found_tokens for run in runs[side]) for side in SIDES}
    computed = {side: (queries[side] - found[side]) / (num_samples * repeats) for side in SIDES}
    return Cell(
        prompt_tokens,
        response_tokens,
        num_samples,
        seconds,
        computed,
        {side: found[side] / queries[side] for side in SIDES},
    )


def time_pair(
    pool: VllmPool, raw: Any, prompts: Sequence[Prompt], num_per_prompt: int, sampling: Sampling, repeat: int
) -> float:
    """Return samples/s of the pool over those of raw vLLM, for prompts that neither has seen.

    The order of the two alternates with `repeat`.
    """
    seconds = {}
    for side in ("raw", "pool") if repeat % 2 else ("pool", "raw"):
        if side == "raw":
            timed = ray.get(raw.generate.remote(prompts, num_per_prompt, repeat, sampling))
        else:
            timed = time_pool(pool, prompts, num_per_prompt, min(num_per_prompt, 64), sampling)
        seconds[side] = timed.seconds
    return seconds["raw"] / seconds["pool"]


def compare_with_raw(
    pool: VllmPool, raw: Any, maker: PromptMaker, prompt_tokens: int, response_tokens: int, options: argparse.Namespace
) -> dict[int, list[float]]:
    """Return a ratio of samples/s for each pair of runs, by N."""
    sampling = Sampling(temperature=1.0, top_p=1.0, max_tokens=response_tokens)
    ratios = {}
    for num_per_prompt in sorted({options.samples, min(NARROW, options.samples), 1}, reverse=True):
        batches = [maker.make(options.samples // num_per_prompt, prompt_tokens) for _ in range(options.repeats)]
        ratios[num_per_prompt] = [
            time_pair(pool, raw, prompts, num_per_prompt, sampling, repeat) for repeat, prompts in enumerate(batches)
        ]
    return ratios


def run_against_raw(pool: VllmPool, raw: Any, maker: PromptMaker, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare all cells with raw vLLM, and print each as it ends."""
    lengths = [(prompt, response) for prompt in options.prompt_tokens for response in options.response_tokens]
    warm_up = argparse.Namespace(samples=options.samples, repeats=1)
    compare_with_raw(pool, raw, maker, *lengths[0], warm_up)
    rows = []
    for prompt_tokens, response_tokens in lengths:
        for num, ratios in compare_with_raw(pool, raw, maker, prompt_tokens, response_tokens, options).items():
            rows.append({"prompt": prompt_tokens, "response": response_tokens, "num": num, "ratios": ratios})
            print(
                f"prompt {prompt_tokens:4}, response {response_tokens:4}, N = {num:3}: "
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) times raw vLLM's samples/s",
                flush=True,
            )
    return rows


def settings(options: argparse.Namespace) -> BroRLConfig:
    """Build the settings of one engine with room for all rollouts at once, so that no side waits for memory."""
    config = BroRLConfig()
    longest = max(options.prompt_tokens) + max(options.response_tokens)
    config.generation.num_engines, config.generation.max_model_len = 1, longest + 1
    config.generation.max_num_seqs, config.generation.kv_cache_gib = options.samples, options.kv_cache_gib
    return config


def show(cells: Sequence[Cell], block_size: int) -> list[str]:
    """Return the lines of a table with a row for each cell of the grid."""
    rows = [
        [f"{cell.prompt_tokens} / {cell.response_tokens}", *(f"{1 / cell.seconds[side]:,.1f}" for side in SIDES),
         *(f"{cell.hit_rate[side]:.1%}" for side in ("narrow", "wide")), f"{cell.gain:.2f}",
         f"{cell.gain_expected:.2f}",
         f"{bound(cell, block_size):.2f}", f"{cell.gain_of_batching:.2f}", f"{cell.gain * cell.gain_of_batching:.2f}"]
        for cell in cells
    ]  # fmt: skip
    header = ["prompt / response", "N = 512", "N = 16", "16 alone", "N = 1", "hits 16", "hits 512", "512 over 16",
              "by the prompt",
              "at most", "by batching", "both"]  # fmt: skip
    return format_table(header, rows)


def bound(cell: Cell, block_size: int) -> float:
    """Return the gain of N = 512 over N = 16 that a cell would have if responses took no time."""
    few, many = (
        prompt_tokens_computed(cell.prompt_tokens, num, block_size)
        for num in (min(NARROW, cell.num_samples), cell.num_samples)
    )
    return few / many


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[20, 200, 448])
    parser.add_argument("--response-tokens", type=int, nargs="+", default=[8, 16, 32, 128])
    parser.add_argument("--samples", type=int, default=WIDE, help="rollouts of every run")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--raw", choices=("inside", "apart"), help="compare with raw vLLM, its core inside or apart")
    parser.add_argument("--kv-cache-gib", type=float, default=1.5)
    parser.add_argument("--tiny", action="store_true", help="a proof that it runs: two cells of 64 rollouts, once")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    if options.tiny:
        options.prompt_tokens, options.response_tokens, options.samples, options.repeats = [20, 100], [4], 64, 1
        options.kv_cache_gib = 0.25
    return options


def main() -> None:
    """Run and print."""
    options = parse_arguments()
    config = settings(options)
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    with tempfile.TemporaryDirectory() as scratch:
        folder = make_model(Path(scratch), config.generation.max_model_len)
        maker = PromptMaker(json.loads((folder / "config.json").read_text())["vocab_size"])
        pool = VllmPool(config.generation, RunSizes.from_config(config), folder)
        pool.wait_ready()
        if options.raw:
            arguments = device.engine_settings(config.generation, RunSizes.from_config(config), folder, 0).arguments
            raw = start_raw(RunSizes.from_config(config), arguments, is_core_apart=options.raw == "apart")
            rows = run_against_raw(pool, raw, maker, options)
            ray.shutdown()
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1) + "\n")
            return
        measure_cell(pool, maker, options.prompt_tokens[0], options.response_tokens[0], options.samples, 1)  # warms up
        cells = []
        for prompt_tokens in options.prompt_tokens:
            for response_tokens in options.response_tokens:
                cells.append(
                    measure_cell(pool, maker, prompt_tokens, response_tokens, options.samples, options.repeats)
                )
                print("\n".join(show(cells[-1:], BLOCK_TOKENS)[2:]), flush=True)
        pool.close()
        ray.shutdown()
    print(f"\nsamples/s, one engine, {options.samples} rollouts a run, medians of {options.repeats}")
    print("\n".join(show(cells, BLOCK_TOKENS)))
    if options.json:
        options.json.write_text(json.dumps([asdict(cell) for cell in cells], indent=1) + "\n")


if __name__ == "__main__":
    main()
