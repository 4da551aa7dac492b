"""Settings of the vLLM engines and of how weights reach them (`schema.py` puts the sections together)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class GenerationConfig:
    """vLLM engines."""

    num_engines: int | None = None  # null: one per tensor_parallel_size GPUs; 2 on CPU
    tensor_parallel_size: int = 1
    max_model_len: int = 256
    max_num_seqs: int = 512
    gpu_memory_utilization: float = 0.6
    kv_cache_gib: float = 0.25  # per engine, on CPU
    precision: str = "fp32"  # fp32, bf16
    block_size: int = 32  # tokens; a prompt needs more than one block for the prefix cache to hit
    enforce_eager: bool = True
    placement: str = "colocated"  # colocated: engines and policy take turns; disaggregated: separate devices
    # what colocated engines give up while the policy trains: off, cache, offload (weights to host), discard (GPU)
    sleep: str = "off"
    max_residual_gib: float | None = None  # per GPU, of a sleeping engine; one above it is restarted; null: never
    # object_store, collective (NCCL, Gloo on CPU), cuda_ipc; auto: object_store on CPU, else by placement
    weight_transport: str = "auto"
    weight_bucket_mib: float = 64.0  # weights travel in buckets of this size, a few at a time
    weight_timeout_s: float = 60.0  # for an engine or rank to join a transport, or to move one bucket
    keep_published: bool = True  # keep one copy of the weights in the object store, for engines that are started anew
    # rollouts that end before an engine tells how far its chunks are; it also tells with every chunk it finishes
    report_every: int = 32
    report_s: float = 5.0  # so often a busy engine tells, whatever has ended
    # an engine that has chunks and gets no further for longer is replaced; so is one that takes longer to start
    timeout_s: float = 600.0
    # of one engine before it returns a chunk, and losses of one chunk with its engine, before the run ends
    max_restarts: int = 3
