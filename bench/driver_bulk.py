"""Measure what the driver holds and calls while a large step passes through it.

The figures are memory above idle, Ray calls and the seconds of every part.

    python -m bench.driver_bulk [--prompts 128] [--rollouts 512] [--tokens 2048] [--verifier real] [--json FILE]

The real code of the driver runs: collection, session, placement, verifier pool, dynamic sampling, advantages, packing
plan. Only the engines are stand-ins: Ray actors that answer with random arrays of long-tailed lengths, in the object
store as always. With `--verifier real` the workers detokenise and score; the stand-ins read the arrays and throw dice.
Idle is what the driver holds when all actors are up and one small batch has passed, without its objects.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from brorl_lab.bases.initial_model import build_tokenizer

from bench.stand_ins import PROMPT_TOKENS, VOCAB_SIZE, BulkPrompts, StandInGenerator, StandInVerifier
from nemo_brorl.algorithm.packing import Sharing, plan_update
from nemo_brorl.algorithm.train_batch import make_train_batch
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.clock import Stopwatch
from nemo_brorl.core.console import Console, format_table
from nemo_brorl.rollouts.batches import Batches
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.scoring.pool import VerifierPool

LONGEST = 8  # times the mean: where responses are cut
MAX_CALLS_PER_1000, MAX_BYTES = 300, 2**30  # what issue 4 asks for


class CallCounter:
    """Counter of this process's calls of Ray.

    It counts actor calls, and calls of `get`, `wait` and `put`. Each call counts as one, whatever its arguments.
    """

    NAMES = ("get", "wait", "put")

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Replace Ray's functions by ones that count, inside the context."""
        method = ray.actor.ActorMethod
        originals = {name: getattr(ray, name) for name in self.NAMES}
        original_remote = method._remote
        for name, function in originals.items():
            setattr(ray, name, self._counted(name, function))
        method._remote = self._counted("actor_call", original_remote)
        try:
            yield
        finally:
            method._remote = original_remote
            for name, function in originals.items():
                setattr(ray, name, function)

    def _counted(self, name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.counts[name] += 1
            return function(*args, **kwargs)

        return call


class MemoryWatch:
    """The largest resident size of this process, looked at every 20 ms by a thread. A context."""

    def __enter__(self) -> MemoryWatch:
        gc.collect()
        self.idle = self.peak = resident_bytes()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self.peak = max(self.peak, resident_bytes())

    def _run(self) -> None:
        while not self._ended.wait(0.02):
            self.peak = max(self.peak, resident_bytes())


def resident_bytes() -> int:
    """Return this process's resident bytes, including shared memory that it has mapped and touched."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@dataclass(frozen=True)
class Load:
    """One step."""

    prompts: int
    rollouts: int
    tokens: int  # mean length of a response
    engines: int = 4
    verifier: str = "stand-in"  # real: the workers of `rewards.num_workers`


def settings(load: Load) -> BroRLConfig:
    """Build the configuration of a step with the given load."""
    config = BroRLConfig()
    config.rollouts.num_per_prompt, config.rollouts.prompts_per_step = load.rollouts, load.prompts
    config.rollouts.max_response_tokens = LONGEST * load.tokens
    config.generation.max_model_len = PROMPT_TOKENS + LONGEST * load.tokens
    config.generation.num_engines = load.engines
    config.policy.tokens_per_micro_batch = config.generation.max_model_len + 1
    return config


def batches_of(config: BroRLConfig, sampler: Sampler) -> Batches:
    """Build the `Batches` that a run has before its first step."""
    sizes = RunSizes.from_config(config)
    return Batches(config.rollouts, config.dynamic_sampling, config.policy.optim, sizes, BulkPrompts(), sampler)


def one_step(batches: Batches, config: BroRLConfig, data_parallel_size: int = 8) -> dict[str, float]:
    """Run one step as the trainer does: collect, train, plan. Return the seconds of each part and its result."""
    watch, cpu_before = Stopwatch(), time.process_time()
    with watch.measure("collect"):
        filled = batches.take_batch(0, lambda: None, lambda: None)
    with watch.measure("learning_batch"):
        batch = make_train_batch(
            filled.batch, 1, config.algorithm, config.rewards.shaping, config.rollouts.max_response_tokens,
            min_reward_range=config.dynamic_sampling.least_range,
        )  # fmt: skip
    with watch.measure("plan"):
        plan = plan_update(
            batch, num_mini_batches=config.algorithm.num_mini_batches, data_parallel_size=data_parallel_size,
            token_budget=config.policy.tokens_per_micro_batch, sharing=Sharing(), version=1, learning_rate=1e-6,
            objective="ppo_clip",
            seed=1,
        )  # fmt: skip
    with watch.measure("put_plan"):
        ray.put(plan)
    cpu = time.process_time() - cpu_before
    num_sampled = sum(group.group.num_rollouts for group in filled.sampled)
    num_tokens = sum(int(group.group.lengths.sum()) for group in filled.sampled)
    micro_batches = 0
    for mini_batch in plan.mini_batches:
        micro_batches += sum(map(len, mini_batch))
    counts = {
        "groups": len(batch.groups),
        "sampled_rollouts": num_sampled,
        "sampled_tokens": num_tokens,
        "micro_batches": micro_batches,
    }
    return {**counts, "driver_cpu_s": cpu, **{f"{name}_s": seconds for name, seconds in watch.seconds.items()}}


def measure(load: Load, folder: Path) -> dict[str, Any]:
    """Pass one step through the driver; Ray is up. `folder` takes the tokenizer."""
    config = settings(load)
    build_tokenizer(["answer 0123456789"], VOCAB_SIZE).save_pretrained(folder)
    verifier, generator = VerifierPool(config.rewards, folder), StandInGenerator(config, load.tokens)
    verifier.wait_ready()
    if load.verifier != "real":
        actor: Any = ray.remote(num_cpus=0.1)(StandInVerifier)
        verifier.workers += [actor.remote() for _ in range(config.rewards.num_workers)]
        for _ in range(config.rewards.num_workers):
            ray.kill(verifier.workers.pop(0))
    sampler = Sampler(generator, verifier, Console(), config.rollouts.chunk_size, seed=1)  # type: ignore[arg-type]  # what it uses is there
    calls = CallCounter()
    try:
        small = settings(Load(2, 64, 8))
        one_step(batches_of(small, sampler), small, data_parallel_size=1)
        with MemoryWatch() as memory, calls.counting():
            step = one_step(batches_of(config, sampler), config)
    finally:
        generator.close()
        verifier.close()
    num = step["sampled_rollouts"]
    return {
        **step,
        "bytes_in_object_store": 8 * int(step["sampled_tokens"]),
        "idle_bytes": memory.idle,
        "bytes_above_idle": memory.peak - memory.idle,
        "calls": dict(calls.counts),
        "calls_per_1000_rollouts": 1000 * sum(calls.counts.values()) / num,
    }


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--rollouts", type=int, default=512)
    parser.add_argument(
        "--tokens", type=int, default=2048, help="mean length of a response; 8 bytes of the object store for each"
    )
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--verifier", choices=("stand-in", "real"), default="stand-in")
    parser.add_argument(
        "--store-gib", type=float, default=3.0, help="of the object store; what does not fit is spilled to disk"
    )
    parser.add_argument("--json", type=Path, help="write the numbers here")
    return parser.parse_args()


def main() -> None:
    """Run and print."""
    options = parse_arguments()
    load = Load(options.prompts, options.rollouts, options.tokens, options.engines, options.verifier)
    ray.init(
        num_cpus=2, include_dashboard=False, logging_level="ERROR", object_store_memory=int(options.store_gib * 2**30)
    )
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(load, Path(folder))
    ray.shutdown()
    rows = [[name, f"{value:,.2f}" if isinstance(value, float) else f"{value}"] for name, value in result.items()]
    print("\n".join(format_table(["measure", "value"], rows)))
    is_met = result["bytes_above_idle"] < MAX_BYTES and result["calls_per_1000_rollouts"] < MAX_CALLS_PER_1000
    memory, calls = result["bytes_above_idle"] / 2**20, result["calls_per_1000_rollouts"]
    print(
        f"\n{memory:.0f} MiB above idle (below {MAX_BYTES >> 20}), {calls:.0f} Ray calls per 1,000 rollouts (at most "
        f"{MAX_CALLS_PER_1000})"
    )
    print(f"both {'met' if is_met else 'NOT met'}; {time.monotonic() - start:.0f} s in all")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
