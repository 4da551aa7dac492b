"""Part d: compare vLLM with N = 16 and N = 512 at equal numbers of samples.

Prompts have 2,000 tokens and responses 200. The model has the 1.5B shape and random weights.

    python -m bench.gpu.generation [--tiny] [--results FOLDER] [--samples 1024] [--repeats 3] [--in-flight 512]

Through the pool, as training samples: chunks of 64, seeds, sampled log-probs. Nothing ends a response before its
length. Prompts are never used twice, and the sides take turns. Floors: every prompt computed once, weights and caches
read once an engine step.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass

from bench.generation import PromptMaker, time_pool
from bench.gpu.ceilings import measure_once
from bench.gpu.colocated import config_for, start
from bench.gpu.floors import GenerationWork, generation_seconds
from bench.gpu.record import Row
from bench.gpu.setting import Setting, open_setting
from bench.gpu.shapes import QWEN_1_5B, TINY, make_model, with_tokenizer
from nemo_brorl.core.model_shape import read_model_shape
from nemo_brorl.generation.pool import VllmPool
from nemo_brorl.types import Sampling

GAIN = 1.9  # target: samples/s of the large N over the small one
SHARE = 0.85  # of the GPU; the policy is not there


@dataclass(frozen=True)
class Sizes:
    """Tokens, and N of the two sides."""

    prompt: int
    response: int
    group_sizes: tuple[int, int]
    chunk: int


SIZES = Sizes(2000, 200, (16, 512), 64)
TINY_SIZES = Sizes(100, 4, (4, 16), 4)


def run_once(pool: VllmPool, maker: PromptMaker, sizes: Sizes, group_size: int, samples: int) -> tuple[float, float]:
    """Seconds, and the share of prompt tokens that the prefix cache had."""
    before = pool.stats()
    sampling = Sampling(1.0, 1.0, sizes.response)
    seconds = time_pool(
        pool, maker.make(samples // group_size, sizes.prompt), group_size, min(sizes.chunk, group_size), sampling
    ).seconds
    hits = queries = 0
    for old, new in zip(before, pool.stats(), strict=True):
        hits += new.prefix_cache_hits - old.prefix_cache_hits
        queries += new.prefix_cache_queries - old.prefix_cache_queries
    return seconds, hits / max(1, queries)


def compare(setting: Setting, pool: VllmPool, sizes: Sizes, samples: int, in_flight: int, named: str) -> None:
    """Both sides in turns; the first round warms up."""
    shape = read_model_shape(setting.models / ("tiny" if setting.is_tiny else "1.5B_shape"))
    maker = PromptMaker(shape.vocab_size)
    taken: dict[int, list[tuple[float, float]]] = {size: [] for size in sizes.group_sizes}
    for repeat in range(setting.extra.repeats + 1):
        for size in sizes.group_sizes if repeat % 2 else reversed(sizes.group_sizes):
            taken[size].append(run_once(pool, maker, sizes, size, samples))
    rates = {}
    for size, runs in taken.items():
        seconds = statistics.median(run[0] for run in runs[1:])
        rates[size] = samples / seconds
        work = GenerationWork(samples // size, size, sizes.prompt, sizes.response, in_flight)
        floor = generation_seconds(shape, work, setting.ceilings)
        setting.results.add(Row(f"{named}N = {size}: {samples} samples", seconds, "s", floor=floor))
        setting.results.add(Row(f"{named}N = {size}: samples", rates[size], "samples/s", floor=samples / floor))
        setting.results.add(
            Row(f"{named}N = {size}: prefix-cache hits", statistics.mean(run[1] for run in runs[1:]), "")
        )
    small, large = sizes.group_sizes
    setting.results.add(Row(f"{named}N = {large} over N = {small}", rates[large] / rates[small], "×", at_least=GAIN))
    setting.results.detail(
        f"{named}seconds and hit rate of every run, the first not counted",
        {str(size): runs for size, runs in taken.items()},
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the generation part to its parser."""
    parser.add_argument("--samples", type=int, default=1024, help="of one run")
    parser.add_argument("--in-flight", type=int, default=512, help="generation.max_num_seqs")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--batch-tokens",
        type=int,
        nargs="+",
        default=[None],
        help="generation.max_num_batched_tokens, one after another",
    )


def main() -> None:
    """One engine for everything."""
    setting = open_setting("generation", __doc__, add_arguments)
    measure_once(setting)
    sizes, samples, in_flight = SIZES, setting.extra.samples, setting.extra.in_flight
    if setting.is_tiny:
        sizes, samples, in_flight = TINY_SIZES, 32, 16
    shape = TINY if setting.is_tiny else QWEN_1_5B
    folder = with_tokenizer(make_model(setting.models / ("tiny" if setting.is_tiny else "1.5B_shape"), shape))
    longest = sizes.prompt + sizes.response + 16
    for batch_tokens in setting.extra.batch_tokens:
        config = config_for(
            setting, SHARE, max_num_seqs=in_flight, max_model_len=longest, max_num_batched_tokens=batch_tokens
        )
        named = f"{batch_tokens:,} tokens a step, " if batch_tokens else ""
        with setting.results.attempt(f"{named}generation"), start(config, folder) as pair:
            compare(setting, pair.pool, sizes, samples, in_flight, named)
    setting.results.finish()


if __name__ == "__main__":
    main()
