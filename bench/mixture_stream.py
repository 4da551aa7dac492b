"""The weight stream of a mixture with 18,000 small tensors, bucket by bucket: is the last bucket as fast as the first?

    python bench/mixture_stream.py [--layers 48] [--experts 128] [--buckets 40] [--without-engine]

Per-expert names are what Hugging Face has and what vLLM's loader is fed with. Measured on one rank, without sending:
cutting the stream into buckets with their bytes and checksums, checking them against the manifest, taking them apart;
then a real engine of the CPU build that loads them (its layerwise reload). Reported: seconds of the first and of the
last quarter of the buckets, and their ratio; something that looks through all it has seen would make it grow.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from nemo_brorl.core.model_shape import ModelShape, hf_shapes, read_model_shape
from nemo_brorl.types import WeightBucket
from nemo_brorl.weights.arrivals import on_host
from nemo_brorl.weights.flat import unflatten
from nemo_brorl.weights.incoming import IncomingWeights, check_manifest
from nemo_brorl.weights.sender import buckets, weight_manifest

HIDDEN, EXPERT = 64, 32  # sizes of a layer, and of one expert's inside


def make_folder(folder: Path, layers: int, experts: int) -> Path:
    """Make a Qwen3 mixture of experts with random weights and a tokenizer, and return its folder."""
    from bench.gpu.shapes import FAMILIES, make_model, with_tokenizer

    config = FAMILIES["qwen3 mixture"] | {
        "num_hidden_layers": layers,
        "num_experts": experts,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * EXPERT,
        "moe_intermediate_size": EXPERT,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "vocab_size": 128,
    }
    return with_tokenizer(make_model(folder, config))


def tensors(shape: ModelShape) -> Iterator[tuple[str, torch.Tensor]]:
    """Random numbers under the stream's names."""
    for name, size in hf_shapes(shape).items():
        yield name, torch.randn(size)


def timed(work: Iterator[Any]) -> Iterator[tuple[float, Any]]:
    """(seconds, item) of an iterator."""
    while True:
        start = time.perf_counter()
        item = next(work, None)
        if item is None:
            return
        yield time.perf_counter() - start, item


def report(what: str, seconds: list[float]) -> None:
    """Medians of both ends."""
    quarter = max(1, len(seconds) // 4)
    first, last = statistics.median(seconds[:quarter]), statistics.median(seconds[-quarter:])
    print(f"{what}: {len(seconds)} buckets, {sum(seconds):.2f} s; first quarter {1e3 * first:.1f} ms a bucket, last "
          f"{1e3 * last:.1f} ms, ratio {last / first:.2f}", flush=True)  # fmt: skip


def measure_stream(folder: Path, num_buckets: int) -> list[WeightBucket]:
    """Made, checked and taken apart; the buckets."""
    shape = read_model_shape(folder)
    manifest = weight_manifest(shape, torch.float32)
    check_manifest(manifest, hf_shapes(shape), shape.is_tied)
    limit = sum(info.num_bytes for info in manifest) // num_buckets
    incoming = IncomingWeights(manifest)
    made, making, checking, parting = [], [], [], []
    for seconds, bucket in timed(buckets(tensors(shape), limit)):
        making.append(seconds)
        start = time.perf_counter()
        incoming.accept(bucket)
        checking.append(time.perf_counter() - start)
        start = time.perf_counter()
        for _ in unflatten(bucket.tensors, on_host(bucket)):
            pass
        parting.append(time.perf_counter() - start)
        made.append(bucket)
    print(f"{len(manifest):,} tensors")
    report("made", making)
    report("checked", checking)
    report("taken apart", parting)
    return made


def measure_engine(folder: Path, made: list[WeightBucket]) -> None:
    """Two loads of all buckets into a real engine: the second finds everything in place."""
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_PLUGINS="", TORCHDYNAMO_DISABLE="1", OMP_NUM_THREADS="1")
    from vllm import EngineArgs, LLMEngine

    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(folder),
            dtype="float32",
            max_model_len=128,
            max_num_seqs=4,
            block_size=32,
            kv_cache_memory_bytes=2**26,
            enforce_eager=True,
            worker_extension_cls="nemo_brorl.generation.vllm_worker.WeightReceiver",
        )
    )
    call = engine.collective_rpc
    for number in (1, 2):
        call("start_load")
        loading = []
        for bucket in made:
            start = time.perf_counter()
            call("load_bucket", args=(bucket,))
            loading.append(time.perf_counter() - start)
        call("finish_load")
        report(f"loaded, time {number}", loading)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--buckets", type=int, default=40)
    parser.add_argument("--without-engine", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = make_folder(Path(scratch) / "model", options.layers, options.experts)
        print(json.dumps({"layers": options.layers, "experts": options.experts}))
        made = measure_stream(folder, options.buckets)
        if not options.without_engine:
            measure_engine(folder, made)


if __name__ == "__main__":
    main()
