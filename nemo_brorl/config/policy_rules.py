"""Rules between settings of the policy's life: what resets need, and where offload frees something."""

from __future__ import annotations

from collections.abc import Iterator

from nemo_brorl.config.derived import num_gpus
from nemo_brorl.config.schema import BroRLConfig


def reference_resets(config: BroRLConfig) -> Iterator[str]:
    """Without a KL term there is no reference; a reset can then only clear the optimizer, and no KL can ask for it."""
    reset, has_reference = config.algorithm.reference_reset, config.algorithm.kl.coefficient > 0
    is_wanted = reset.interval > 0 or reset.patience > 0 or reset.kl_above is not None
    if has_reference or not is_wanted:
        return
    if reset.kl_above is not None:
        yield (
            f"algorithm.reference_reset.kl_above={reset.kl_above} never sees a KL, as algorithm.kl.coefficient=0 "
            f"trains without a "
            "reference: write kl_above=null, or a coefficient such as 1e-4"
        )
    if not reset.clear_optimizer:
        yield (
            "algorithm.reference_reset resets nothing, as algorithm.kl.coefficient=0 trains without a reference: "
            "write a coefficient "
            "such as 1e-4, clear_optimizer=true to reset the optimizer alone, or interval=0 patience=0 kl_above=null"
        )


def offload_frees_something(config: BroRLConfig) -> Iterator[str]:
    """Host memory is where everything is on CPU already, and disaggregated engines have GPUs of their own."""
    if config.policy.offload == "none":
        return
    if num_gpus(config) == 0:
        yield (
            f"policy.offload={config.policy.offload} moves GPU memory to the host and there is nothing to free on "
            f"CPU: write none"
        )
    elif config.generation.placement == "disaggregated":
        yield (
            f"policy.offload={config.policy.offload} makes room for engines on the policy's GPUs, and with "
            "generation.placement=disaggregated there are none: write policy.offload=none"
        )


def fp8_weights_have_no_reference(config: BroRLConfig) -> Iterator[str]:
    """A reference is exchanged with the weights bit for bit, and writing into FP8 weights rounds."""
    if config.policy.fp8 is not None and config.policy.fp8_params and config.algorithm.kl.coefficient > 0:
        yield (
            "policy.fp8_params=true keeps weights in FP8, which cannot be exchanged with a KL reference without "
            "rounding: write "
            "policy.fp8_params=false, or algorithm.kl.coefficient=0"
        )
