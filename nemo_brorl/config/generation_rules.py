"""Rules between settings of generation: what sleeps where, and which transport weights can take."""

from __future__ import annotations

from collections.abc import Iterator

from nemo_brorl.config.derived import num_gpus
from nemo_brorl.config.device_plan import engines_on_one_node
from nemo_brorl.config.schema import BroRLConfig


def sleep_frees_something(config: BroRLConfig) -> Iterator[str]:
    """Engines with devices of their own have nobody to make room for. On CPU sleeping frees nothing, but is allowed:
    the same calls are made and measured."""
    generation = config.generation
    if generation.sleep != "off" and generation.placement == "disaggregated":
        yield (
            f"generation.sleep={generation.sleep} makes room for the policy on the engines' devices, and with "
            "generation.placement=disaggregated it has its own: write generation.sleep=off"
        )
    if generation.sleep == "off" and generation.max_residual_gib is not None:
        yield (
            f"generation.max_residual_gib={generation.max_residual_gib} limits what sleeping engines hold and "
            f"generation.sleep=off lets "
            "none sleep: write max_residual_gib=null, or sleep=discard"
        )


def transport_reaches_engines(config: BroRLConfig) -> Iterator[str]:
    """CUDA IPC needs a policy rank on every engine's GPU, NCCL needs a GPU for every process; Ray's object store
    reaches everything."""
    transport, placement = config.generation.weight_transport, config.generation.placement
    if transport == "cuda_ipc" and num_gpus(config) == 0:
        yield "generation.weight_transport=cuda_ipc shares GPU memory and there are no GPUs: write auto"
    elif transport == "cuda_ipc" and placement == "disaggregated":
        yield (
            "generation.weight_transport=cuda_ipc needs engines on the policy's GPUs and "
            "generation.placement=disaggregated gives them "
            "others: write auto, or collective"
        )
    if transport == "collective" and num_gpus(config) > 0 and placement == "colocated":
        yield (
            "generation.weight_transport=collective is NCCL, which refuses two processes on one GPU, and "
            "generation.placement=colocated "
            "puts an engine beside every policy rank: write auto, or cuda_ipc"
        )


GENERATION_RULES = (engines_on_one_node, sleep_frees_something, transport_reaches_engines)
