"""Seconds and extra memory of a publication from a Megatron rank into vLLM engines, by transport.

    python bench/weight_sync.py [--sizes 2.5M 100M] [--transports object_store collective] [--engines 2] [--repeats 9]
    [--json FILE]

Random weights, fp32, one policy rank, CPU: what runs without a GPU. Every combination gets actors of its own; the first
publication, in which memory grows for good, is timed apart. *extra* is the most private memory of rank and engines
together while a publication runs, above what they have before it; *store* is how much of the object store the rank has
ever written to, where freed places are used again; *counted* is what the publication itself reports. *digest* is of
rollouts sampled after the last publication: the same in every row of a model, or a transport is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the models are those of the tests

import ray  # noqa: E402

from bench.run_watch import status_kib  # noqa: E402
from nemo_brorl.cluster.object_store import fetch  # noqa: E402
from nemo_brorl.config.rank_settings import RankSettings  # noqa: E402
from nemo_brorl.config.run_sizes import RunSizes  # noqa: E402
from nemo_brorl.config.schema import BroRLConfig  # noqa: E402
from nemo_brorl.core.console import format_table  # noqa: E402
from nemo_brorl.generation.pool import VllmPool  # noqa: E402
from nemo_brorl.policy.driver.megatron_policy import MegatronPolicy  # noqa: E402
from nemo_brorl.types import Prompt, RolloutRequest, Sampling  # noqa: E402
from nemo_brorl.weights.publication import SyncReport, publish  # noqa: E402

SIZES = {
    "2.5M": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
             "intermediate_size": 512,
             "vocab_size": 512},
    "100M": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 4,
             "intermediate_size": 2048,
             "vocab_size": 32000},
}  # fmt: skip
REQUEST = RolloutRequest(Prompt("a", "task", "verifier", tuple(range(3, 40)), {}), 0, 8, 1, Sampling(1.0, 1.0, 8))
MIB = 2**20
SAMPLE_S = 0.01


def status_bytes(process: int, field: str) -> int:
    """Return a process's resident bytes of one kind (`RssAnon`, `RssShmem`), or 0 if it has ended."""
    try:
        sizes = status_kib(process)
    except OSError:
        return 0
    return sizes.get(field, 0) * 1024


def our_processes() -> dict[int, str]:
    """Return all processes that this process has started, directly or not, with their titles."""
    found: dict[int, tuple[int, str]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            found[int(folder.name)] = (parent, (folder / "cmdline").read_text().replace("\0", " "))
        except (OSError, IndexError):
            continue
    ours = {os.getpid()}
    while more := {process for process, (parent, _) in found.items() if parent in ours} - ours:
        ours |= more
    return {process: found[process][1] for process in ours if process in found}


class PeakMemory:
    """A context: the most private memory of some processes together while it is open, above what they had before."""

    def __init__(self, processes: list[int]) -> None:
        self.processes = processes
        self.extra = 0
        self.ended = threading.Event()

    def total(self) -> int:
        return sum(status_bytes(process, "RssAnon") for process in self.processes)

    def watch(self, before: int) -> None:
        while not self.ended.wait(SAMPLE_S):
            self.extra = max(self.extra, self.total() - before)

    def __enter__(self) -> PeakMemory:
        self.thread = threading.Thread(target=self.watch, args=(self.total(),))
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        self.thread.join()


def digest(pool: VllmPool) -> str:
    """Return a checksum of the tokens and log-probs of a few rollouts."""
    (chunk,) = pool.generate([REQUEST])
    arrays = fetch(chunk.data)
    return f"{zlib.crc32(arrays.log_probs.tobytes(), zlib.crc32(arrays.token_ids.tobytes())):08x}"


def measure(folder: Path, other: Path, transport: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the weight sync of one transport from the policy's model into engines that started with another one."""
    config = BroRLConfig()
    config.generation.num_engines = options.engines
    config.generation.kv_cache_gib = 0.0625
    config.generation.weight_transport = transport
    config.algorithm.kl.coefficient = 0.0
    pool = VllmPool(config.generation, RunSizes.from_config(config), other)
    policy = MegatronPolicy(RankSettings.from_config(config), folder)
    try:
        policy.wait_ready()
        pool.wait_ready()
        titles = our_processes()
        (rank,) = (process for process, title in titles.items() if title.startswith("ray::PolicyWorker"))
        actors = [rank, *(process for process, title in titles.items() if title.startswith("ray::RolloutEngine"))]
        assert len(actors) == 1 + options.engines, titles
        reports: list[SyncReport] = []
        extra: list[int] = []
        for version in range(1, options.repeats + 2):
            with PeakMemory(actors) as peak:
                reports.append(publish(policy, pool, version))
            extra.append(peak.extra)
        return {
            "mib": reports[0].num_bytes / MIB,
            "first_s": reports[0].seconds,
            "seconds": statistics.median(report.seconds for report in reports[1:]),
            "extra_mib": statistics.median(extra[1:]) / MIB,
            "counted_mib": max(report.peak_extra_bytes for report in reports) / MIB,
            "store_mib": status_bytes(rank, "RssShmem") / MIB,
            "digest": digest(pool),
        }
    finally:
        policy.close()
        pool.close()


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument(
        "--transports", nargs="+", default=["object_store", "collective"], choices=["object_store", "collective"]
    )
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    """Measure every size over every transport."""
    options = parse_options()
    from tests.support.model_factory import make_model

    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as base:
        for size in options.sizes:
            folders = [
                make_model(Path(base) / f"{size}_{seed}", seed=seed, eos_token_id=1, **SIZES[size]) for seed in (0, 1)
            ]
            for transport in options.transports:
                ray.init(
                    num_cpus=2,
                    include_dashboard=False,
                    logging_level="ERROR",
                    log_to_driver=False,
                    object_store_memory=2**30,
                )
                row = {"size": size, "transport": transport}
                results.append(row | measure(folders[0], folders[1], transport, options))
                ray.shutdown()
    header = [
        "model",
        "MiB",
        "transport",
        "first s",
        "median s",
        "MiB/s",
        "extra MiB",
        "counted MiB",
        "store MiB",
        "digest",
    ]
    rows = [
        [row["size"], f"{row['mib']:.0f}", row["transport"], f"{row['first_s']:.2f}",
         f"{row['seconds']:.3f}", f"{row['mib'] / row['seconds']:.0f}", f"{row['extra_mib']:.0f}",
         f"{row['counted_mib']:.0f}",
         f"{row['store_mib']:.0f}", row["digest"]]
        for row in results
    ]  # fmt: skip
    print("\n".join(format_table(header, rows)))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
