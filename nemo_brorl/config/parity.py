"""Declare settings of the parity gate before the first step, and of the mismatch warnings of later steps."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_brorl.config.declare import auto, setting


@dataclass
class ParityConfig:
    """The parity gate at the start: it compares Hugging Face's, Megatron's and vLLM's log-probs of the same tokens."""

    enabled: bool = setting(True, "compare log-probs before the first step")
    max_mean_abs_diff: float | None = auto(
        "largest mean absolute difference of log-probs, in nats; auto: 1e-3, or 0.05 if policy or engines use bf16",
        above=0,
    )
    max_step_mismatch: float = setting(
        0.05, "mean |Megatron - vLLM| log-prob difference of a step above which a warning is logged, in nats", above=0
    )
    max_fp8_mismatch: float = setting(
        0.02, "mean |FP8 - bf16| log-prob difference of a step above which a warning is logged, in nats", above=0
    )
