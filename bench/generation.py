"""Tokens per second through the pool, over raw `vllm.LLM.generate` with the same settings, in one run.

    python bench/generation.py [--json FILE]

Both sides have one engine in one Ray actor with the same environment, get the same new prompts each time, and take
turns. The raw side is timed inside its actor; the pool from the driver, until the last chunk has arrived. Then the pool
alone, at equal samples: N = 16 and N = 512 rollouts per prompt (`generation_grid.py` does this over many lengths), and
two engines over one. The model is random with the sizes of the warm-up model, unless `--model`. The sides draw
different responses, so tokens are counted. About three minutes on two idle cores; says how far it is.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray

from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.generation import device
from nemo_brorl.generation.pool import VllmPool
from nemo_brorl.rollouts.ledger import requests_for
from nemo_brorl.types import Prompt, Sampling

SAMPLING = Sampling(temperature=1.0, top_p=1.0, max_tokens=32)
LONG_PROMPT = 200  # tokens


class Timed(NamedTuple):
    """What a side did."""

    seconds: float
    num_tokens: int  # sampled


class RawVllm:
    """`vllm.LLM` as anyone would call it, with vLLM's own scheduler."""

    def __init__(self, arguments: dict[str, Any], is_core_apart: bool = False) -> None:
        """Load the engine. With `is_core_apart` vLLM's core has a second process, as is vLLM's default."""
        device.prepare_process(on_cpu=True)
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(is_core_apart))
        from vllm import LLM

        self._llm = LLM(**arguments | {"scheduler_cls": None})
        self._llm.collective_rpc("apply_device_fixes")

    def process(self) -> int:
        """Return the process id of the actor."""
        return os.getpid()

    def generate(
        self, prompts: Sequence[Prompt], num_per_prompt: int, seed: int, sampling: Sampling = SAMPLING
    ) -> Timed:
        """Generate `num_per_prompt` rollouts of each prompt with vLLM alone, and time it."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            n=num_per_prompt,
            seed=seed,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        inputs = [{"prompt_token_ids": list(prompt.token_ids)} for prompt in prompts]
        start = time.perf_counter()
        outputs = self._llm.generate(inputs, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        return Timed(seconds, sum(len(completion.token_ids) for output in outputs for completion in output.outputs))


def start_raw(sizes: RunSizes, arguments: dict[str, Any], is_core_apart: bool = False) -> Any:
    """Start a `RawVllm` with an engine's arguments as a Ray actor, and return its handle."""
    options = device.actor_options(sizes) | {"max_concurrency": 1}
    return ray.remote(**options)(RawVllm).remote(arguments, is_core_apart)


class PromptMaker:
    """Random prompts that were never seen before."""

    def __init__(self, vocab_size: int) -> None:
        self._random = np.random.default_rng(0)
        self._vocab_size = vocab_size
        self._num_made = 0

    def make(self, num: int, length: int) -> list[Prompt]:
        """Make `num` random prompts of `length` tokens."""
        self._num_made += num
        return [
            Prompt(
                f"{self._num_made}/{i}",
                "bench",
                "none",
                tuple(self._random.integers(3, self._vocab_size, length).tolist()),
                {},
            )
            for i in range(num)
        ]


def make_model(folder: Path, max_positions: int | None = None) -> Path:
    """Save a random model of the warm-up's sizes in `folder`, and return the folder.

    `max_positions` is the longest sequence in tokens. None means that of the warm-up.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = BroRLConfig().sft.new
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=sizes.vocab_size,
            hidden_size=sizes.hidden_size,
            intermediate_size=sizes.intermediate_size,
            num_hidden_layers=sizes.num_layers,
            num_attention_heads=sizes.num_attention_heads,
            num_key_value_heads=sizes.num_key_value_heads,
            max_position_embeddings=max_positions or sizes.max_position_embeddings,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=1,
        )
    )
    model.save_pretrained(folder)
    return folder


def time_pool(
    pool: VllmPool, prompts: Sequence[Prompt], num_per_prompt: int, chunk_size: int, sampling: Sampling = SAMPLING
) -> Timed:
    """Measure the seconds from the requests until the driver has every chunk."""
    requests = requests_for(prompts, num_per_prompt, chunk_size, sampling, run_seed=1)
    start = time.perf_counter()
    lengths = np.concatenate([chunk.lengths for chunk in pool.generate(requests)])
    seconds = time.perf_counter() - start
    assert len(lengths) == len(prompts) * num_per_prompt, f"{len(lengths)} samples arrived"
    return Timed(seconds, int(lengths.sum()))


def cpu_seconds(processes: Sequence[int]) -> float:
    """Return the CPU seconds that the processes have used, which other jobs hardly change."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def compare_with_raw(pool: VllmPool, raw: Any, maker: PromptMaker, options: argparse.Namespace) -> dict[str, Any]:
    """Return medians of tokens per second of the pool and of raw vLLM over alternating repeats.

    The first pair warms up and is not counted.
    """
    tokens_per_s: dict[str, list[float]] = {"raw": [], "pool": []}
    tokens_per_cpu_s: dict[str, list[float]] = {"raw": [], "pool": []}
    processes = {"raw": [ray.get(raw.process.remote())], "pool": [pool.wait_ready()[0].process, os.getpid()]}
    for repeat in range(options.repeats + 1):
        prompts = maker.make(options.prompts, options.prompt_tokens)
        sides = {
            "raw": lambda prompts=prompts, seed=10_000 * repeat: ray.get(
                raw.generate.remote(prompts, options.rollouts, seed)
            ),
            "pool": lambda prompts=prompts: time_pool(pool, prompts, options.rollouts, options.chunk_size),
        }
        for side in ("raw", "pool") if repeat % 2 else ("pool", "raw"):
            start = cpu_seconds(processes[side])
            seconds, num_tokens = sides[side]()
            if repeat:
                tokens_per_s[side].append(num_tokens / seconds)
                tokens_per_cpu_s[side].append(num_tokens / (cpu_seconds(processes[side]) - start))
    rates = {side: statistics.median(values) for side, values in tokens_per_s.items()}
    cpu_rates = {side: statistics.median(values) for side, values in tokens_per_cpu_s.items()}
    return {
        "tokens_per_s": rates,
        "tokens_per_cpu_s": cpu_rates,
        "ratio": rates["pool"] / rates["raw"],
        "cpu_ratio": cpu_rates["pool"] / cpu_rates["raw"],
        "all": {"tokens_per_s": tokens_per_s, "tokens_per_cpu_s": tokens_per_cpu_s},
    }


def compare_group_sizes(pool: VllmPool, maker: PromptMaker, options: argparse.Namespace) -> list[dict[str, float]]:
    """Measure N = 16 and the largest N at equal samples with long prompts, to see what a larger group saves."""
    rows = []
    for num_per_prompt in (16, options.rollouts):
        rates, hits, queries = [], 0, 0
        for _ in range(options.repeats):
            before = pool.stats()
            prompts = maker.make(options.rollouts // num_per_prompt, LONG_PROMPT)
            rates.append(options.rollouts / time_pool(pool, prompts, num_per_prompt, options.chunk_size).seconds)
            for old, new in zip(before, pool.stats(), strict=True):
                hits += new.prefix_cache_hits - old.prefix_cache_hits
                queries += new.prefix_cache_queries - old.prefix_cache_queries
        rows.append(
            {"num_per_prompt": num_per_prompt, "hit_rate": hits / queries, "samples_per_s": statistics.median(rates)}
        )
    return rows


def compare_engines(
    one: VllmPool, config: BroRLConfig, folder: Path, maker: PromptMaker, options: argparse.Namespace
) -> dict[str, Any]:
    """Measure samples per second of two engines against one, with twice as many prompts as the other measurements.

    The sides take turns. Only a machine with two idle cores shows what a second engine is worth.
    """
    config = replace(config, generation=replace(config.generation, num_engines=2))
    two = VllmPool(config.generation, RunSizes.from_config(config), folder)
    two.wait_ready()
    rates: dict[str, list[float]] = {"one": [], "two": []}
    for repeat in range(options.repeats + 1):
        for name, pool in (("one", one), ("two", two)) if repeat % 2 else (("two", two), ("one", one)):
            prompts = maker.make(2 * options.prompts, options.prompt_tokens)
            rate = (
                len(prompts) * options.rollouts / time_pool(pool, prompts, options.rollouts, options.chunk_size).seconds
            )
            rates[name] += [rate] if repeat else []
    two.close()
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {"samples_per_s": medians, "ratio": medians["two"] / medians["one"], "rates": rates}


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="Hugging Face folder (default: random weights)")
    parser.add_argument("--prompts", type=int, default=2, help="prompts per repeat")
    parser.add_argument("--rollouts", type=int, default=512, help="rollouts per prompt")
    parser.add_argument("--prompt-tokens", type=int, default=70)
    parser.add_argument("--chunk-size", type=int, default=BroRLConfig().rollouts.chunk_size)
    parser.add_argument("--repeats", type=int, default=5, help="that count; before them is one to warm up")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    return parser.parse_args()


def main() -> None:
    """Run and print."""
    options = parse_arguments()
    config = BroRLConfig()
    config.generation.num_engines = 1
    room = max(LONG_PROMPT, options.prompt_tokens) + SAMPLING.max_tokens
    config.generation.max_model_len = room
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.model or make_model(Path(scratch), room)
        arguments = device.engine_settings(config.generation, RunSizes.from_config(config), folder, 0).arguments
        pool = VllmPool(config.generation, RunSizes.from_config(config), folder)
        raw = start_raw(RunSizes.from_config(config), arguments)
        maker = PromptMaker(json.loads((folder / "config.json").read_text())["vocab_size"])
        pool.wait_ready()
        print("engines are ready: pool and raw vLLM in turns", flush=True)
        result: dict[str, Any] = {"raw": compare_with_raw(pool, raw, maker, options)}
        print("N = 16 and large N in turns", flush=True)
        result["group_size"] = compare_group_sizes(pool, maker, options)
        ray.kill(raw)
        print("one engine and two in turns", flush=True)
        result["engines"] = compare_engines(pool, config, folder, maker, options)
        pool.close()
        ray.shutdown()
    compared = result["raw"]
    print(
        f"{options.prompts} prompts x {options.rollouts} rollouts x {SAMPLING.max_tokens} tokens, medians of "
        f"{options.repeats}"
    )
    for side, name in (("raw", "vllm.LLM.generate"), ("pool", "pool, one engine")):
        wall, cpu = compared["tokens_per_s"][side], compared["tokens_per_cpu_s"][side]
        print(f"  {name:18s} {wall:8.1f} tokens/s {cpu:8.1f} tokens/CPU-s")
    print(f"  {'ratio':18s} {compared['ratio']:8.3f} (at least 0.95) {compared['cpu_ratio']:6.3f}")
    engines = result["engines"]["samples_per_s"]
    ratio = result["engines"]["ratio"]
    print(
        f"  two engines {engines['two']:.1f}, one {engines['one']:.1f} samples/s: {ratio:.3f} (at least 1.8 on two "
        "idle cores)"
    )
    for row in result["group_size"]:
        print(
            f"  N = {row['num_per_prompt']:3d}: {row['samples_per_s']:7.1f} samples/s, prefix cache hit rate "
            f"{row['hit_rate']:.3f}"
        )
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
