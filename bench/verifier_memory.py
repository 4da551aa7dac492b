"""Memory of a verifier worker over thousands of chunks: does it settle?

    python -m bench.verifier_memory --calls 12000

An actor stands in for the engine: each chunk of eight random responses is its own, as in a run, and is scored by the
product's pool with one worker. Four chunks are under way at a time, as in `bench/soak.py`, of which 400 calls are 100
steps. Prints the worker's anonymous memory after every thousand.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import ray

from bench.run_watch import MIB, status_kib
from nemo_brorl.cluster.ray_cluster import RayCluster
from nemo_brorl.config.schema import RewardsConfig, TrainerConfig
from nemo_brorl.tasks.scoring.pool import VerifierPool
from nemo_brorl.types import ChunkArrays, Prompt, RolloutChunk, RolloutRequest, Sampling

MODEL = Path("models/sums")
RESPONSES = 8  # of a chunk
TOKENS = 32  # of a response
CALLS_A_STEP = 4
EVERY = 1000
NAME = "VerifierWorker"


class Engine:
    """An actor that has sampled chunks."""

    def sample(self, number: int) -> RolloutChunk:
        """One chunk; its data stays here."""
        random = np.random.default_rng(number)
        tokens = random.integers(5, 200, RESPONSES * TOKENS).astype(np.int32)
        offsets = np.arange(0, len(tokens) + 1, TOKENS)
        data = ChunkArrays(tokens, random.random(len(tokens)).astype(np.float32), offsets)
        prompt = Prompt(f"train/{number}", "sums", "exact_match", tuple(range(40)), {"answer": str(number)})
        request = RolloutRequest(prompt, 0, RESPONSES, number, Sampling(1.0, 1.0, TOKENS))
        lengths = np.full(RESPONSES, TOKENS, np.int32)
        return RolloutChunk(request, request.indices, lengths, np.ones(RESPONSES, bool), 0, 0, 0, ray.put(data))


def main() -> None:
    """A line for every thousand chunks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=12_000)
    options = parser.parse_args()
    with RayCluster(TrainerConfig()):
        engine = ray.remote(num_cpus=0.01)(Engine).remote()
        verifier = VerifierPool(RewardsConfig(num_workers=1), MODEL, ["exact_match"])
        verifier.wait_ready()
        worker = next(process for process in psutil.Process().children(recursive=True) if NAME in process.name())
        num_done = 0
        before = anonymous_mib(worker)
        while num_done < options.calls:
            num_done += len(list(verifier.score(chunks(engine, num_done))))
            if num_done % EVERY == 0:
                now = anonymous_mib(worker)
                per_100_steps = (now - before) * 100 * CALLS_A_STEP / EVERY
                print(f"{num_done:,} chunks: {now:.2f} MiB, {per_100_steps:+.2f} in 100 steps", flush=True)
                before = now
        verifier.close()


def chunks(engine: ray.actor.ActorHandle, first: int) -> Iterator[RolloutChunk]:
    """A step's."""
    yield from ray.get([engine.sample.remote(first + place) for place in range(CALLS_A_STEP)])


def anonymous_mib(process: psutil.Process) -> float:
    """Memory that is the process's own."""
    return status_kib(process.pid)["RssAnon"] * 1024 / MIB


if __name__ == "__main__":
    main()
