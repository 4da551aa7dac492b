"""Kill -9 a random engine at a random moment in mid-generation, again and again, and look at what comes out.

    python -m bench.kill_engines [--kills 20] [--json FILE]

One pool, whose engines hold published weights that differ from those of their model folder. The same step is sampled
once undisturbed, then once per kill. Checked every time: every rollout of the step came once, with the tokens of the
undisturbed step (and its log-probabilities within 1e-4), sampled by the published version. Reported: from the kill
until the replacement is ready with the published weights (an upper bound: looked at when the step is over), how much
longer the step took, and how many rollouts were sampled again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import tempfile
import time
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import ray
from safetensors.numpy import load_file

from bench.generation import PromptMaker, make_model
from nemo_brorl.cluster.object_store import fetch_all, wait_any
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import format_table
from nemo_brorl.generation.pool import VllmPool
from nemo_brorl.rollouts.ledger import requests_for
from nemo_brorl.types import (
    Float32,
    Int32,
    RolloutChunk,
    RolloutRequest,
    Sampling,
    StreamedBucket,
    TensorInfo,
    WeightBucket,
)

VERSION = 1
TOLERANCE = 1e-4  # of log-probabilities: the company in a batch changes the last bits

Rollouts = dict[tuple[str, int], tuple[Int32, Float32]]  # (prompt, place in the group): tokens and log-probs


@dataclass(frozen=True)
class Kill:
    """What one kill did."""

    engine: int
    at_s: float  # after the step began
    num_arrived: int  # chunks that had come
    step_s: float
    recovery_s: float  # from the kill until all engines are ready again, at most
    num_resampled: int  # rollouts


class Killer:
    """Kills one engine when its time has come."""

    def __init__(self, pool: VllmPool, delay_s: float, draw: random.Random) -> None:
        self._processes = [ready.process for ready in pool.wait_ready()]
        self._delay_s = delay_s
        self._draw = draw
        self.engine: int | None = None
        self.killed_at = 0.0
        self.num_arrived = 0

    def look(self, seconds: float, busy: Sequence[int], num_arrived: int) -> None:
        """Kill a random one of the `busy` engines, once, after the step has run for the configured delay."""
        if self.engine is None and seconds >= self._delay_s and busy:
            self.engine, self.num_arrived, self.killed_at = self._draw.choice(busy), num_arrived, time.perf_counter()
            os.kill(self._processes[self.engine], signal.SIGKILL)


def publish(pool: VllmPool, folder: Path) -> None:
    """Load a model folder's weights into the engines."""
    tensors = load_file(folder / "model.safetensors")
    manifest = [TensorInfo(name, array.shape, str(array.dtype)) for name, array in tensors.items()]
    buckets = []
    for info in manifest:
        data = np.ascontiguousarray(tensors[info.name]).reshape(-1).view(np.uint8)
        buckets.append(StreamedBucket(ray.put(WeightBucket((info,), data, zlib.crc32(data.data))), data.nbytes))
    pool.load_weights(manifest, buckets, VERSION)


def run_step(
    pool: VllmPool, requests: Sequence[RolloutRequest], killer: Killer | None = None
) -> tuple[list[RolloutChunk], float]:
    """All chunks of a step, and its seconds."""
    session = pool.open_session()
    start = time.perf_counter()
    session.submit(requests)
    chunks: list[RolloutChunk] = []
    while len(chunks) < len(requests):
        wait_any(session.pending(), 0.02)
        chunks += session.poll()
        if killer is not None:
            killer.look(time.perf_counter() - start, sorted(session.busy_engines()), len(chunks))
    seconds = time.perf_counter() - start
    assert session.poll() == [], "a chunk came twice"
    session.close()
    return chunks, seconds


def read(chunks: Sequence[RolloutChunk]) -> Rollouts:
    """Every rollout by its name. Fails on one that came twice, or from other weights."""
    rollouts: Rollouts = {}
    for chunk, arrays in zip(chunks, fetch_all([chunk.data for chunk in chunks]), strict=True):
        assert (chunk.version, chunk.newest_version) == (VERSION, VERSION), (
            f"engine {chunk.engine} sampled with version {chunk.version}"
        )
        for row, index in enumerate(chunk.indices.tolist()):
            key = chunk.request.prompt.uid, index
            assert key not in rollouts, f"{key} came twice"
            part = slice(*arrays.offsets[row : row + 2])
            rollouts[key] = arrays.token_ids[part], arrays.log_probs[part]
    return rollouts


def check_same(rollouts: Rollouts, expected: Rollouts) -> None:
    """Fails unless both have the same rollouts with the same tokens."""
    assert rollouts.keys() == expected.keys(), f"{len(expected.keys() - rollouts.keys())} rollouts are lost"
    for key, (tokens, log_probs) in expected.items():
        assert np.array_equal(rollouts[key][0], tokens), f"{key} has other tokens than undisturbed"
        assert np.allclose(rollouts[key][1], log_probs, atol=TOLERANCE), (
            f"{key} has other log-probabilities than undisturbed"
        )


def kill_once(
    pool: VllmPool, requests: Sequence[RolloutRequest], expected: Rollouts, delay_s: float, draw: random.Random
) -> Kill | None:
    """One disturbed step; None when it was over before its kill was due."""
    before = sum(stats.num_resampled for stats in pool.stats())
    killer = Killer(pool, delay_s, draw)
    chunks, seconds = run_step(pool, requests, killer)
    if killer.engine is None:
        return None
    pool.wait_ready()
    recovery_s = time.perf_counter() - killer.killed_at
    check_same(read(chunks), expected)
    num_resampled = sum(stats.num_resampled for stats in pool.stats()) - before
    return Kill(killer.engine, delay_s, killer.num_arrived, seconds, recovery_s, num_resampled)


def kill_many(pool: VllmPool, requests: Sequence[RolloutRequest], num: int, seed: int) -> tuple[list[Kill], float]:
    """`num` kills in mid-generation, and the seconds of the undisturbed step."""
    run_step(pool, requests)  # warms up
    chunks, undisturbed_s = run_step(pool, requests)
    expected, draw = read(chunks), random.Random(seed)
    kills: list[Kill] = []
    while len(kills) < num:
        kill = kill_once(pool, requests, expected, draw.uniform(0.0, undisturbed_s), draw)
        if kill is not None:
            kills.append(kill)
            print(f"kill {len(kills)}: {kill}", flush=True)
    return kills, undisturbed_s


def report(kills: Sequence[Kill], undisturbed_s: float, num_rollouts: int) -> None:
    """Print medians and maxima."""
    columns = {
        "recovery, s": [kill.recovery_s for kill in kills],
        "step over undisturbed, s": [kill.step_s - undisturbed_s for kill in kills],
        f"sampled again, of {num_rollouts}": [float(kill.num_resampled) for kill in kills],
    }
    rows = [[name, f"{statistics.median(values):.1f}", f"{max(values):.1f}"] for name, values in columns.items()]
    print(
        f"{len(kills)} kills, undisturbed step {undisturbed_s:.1f} s: no rollout lost, none twice, all tokens as "
        "undisturbed"
    )
    print("\n".join(format_table(["", "median", "max"], rows)))


def parse_arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--rollouts", type=int, default=128, help="per prompt")
    parser.add_argument("--response-tokens", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0, help="of moments and victims")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    return parser.parse_args()


def main() -> None:
    """Run and print."""
    options = parse_arguments()
    config = BroRLConfig()
    config.generation.num_engines = options.engines
    config.generation.max_restarts = (
        options.kills
    )  # the next kill may hit the same engine before it has returned a chunk
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    with tempfile.TemporaryDirectory() as scratch:
        folder = make_model(Path(scratch) / "folder")
        pool = VllmPool(config.generation, RunSizes.from_config(config), folder)
        publish(pool, make_model(Path(scratch) / "published"))
        prompts = PromptMaker(json.loads((folder / "config.json").read_text())["vocab_size"]).make(options.prompts, 70)
        sampling = Sampling(temperature=1.0, top_p=1.0, max_tokens=options.response_tokens)
        requests = requests_for(prompts, options.rollouts, config.rollouts.chunk_size, sampling, run_seed=1)
        kills, undisturbed_s = kill_many(pool, requests, options.kills, options.seed)
        pool.close()
    ray.shutdown()
    report(kills, undisturbed_s, options.prompts * options.rollouts)
    if options.json is not None:
        options.json.write_text(
            json.dumps({"undisturbed_s": undisturbed_s, "kills": [asdict(kill) for kill in kills]}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
