"""Model how long an engine takes: seconds of a step by batch and context, and tokens a second of prefill."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from nemo_brorl.core.errors import DataError


@dataclass(frozen=True)
class EngineCurve:
    """The seconds of a step that decodes one token of each rollout of the batch.

    They are `step_s + rollout_s · batch + context_s · context`.
    """

    step_s: float  # fixed cost: reading weights, launching kernels, scheduling
    rollout_s: float  # cost per rollout of the batch: matrix products and sampling
    context_s: float  # cost per attended token, summed over the batch: reading keys and values
    prefill_tokens_per_s: float
    source: str  # source of the numbers

    def decode_s(self, batch: int, context: int, num_steps: int) -> float:
        """Return the seconds of `num_steps` decoding steps of an engine with the same rollouts.

        The attended context grows by `batch` tokens a step.
        """
        grown = batch * num_steps * (num_steps - 1) / 2
        return num_steps * (self.step_s + self.rollout_s * batch) + self.context_s * (num_steps * context + grown)

    def write(self, path: Path) -> None:
        """Write the engine's curve of step times as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")


def read_curve(path: Path) -> EngineCurve:
    """Read an engine's curve of step times from a JSON file, which may hold other keys too.

    Raises DataError when a key of the curve is missing.
    """
    content = json.loads(path.read_text())
    content = content.get("curve", content)
    missing = EngineCurve.__dataclass_fields__.keys() - content.keys()
    if missing:
        raise DataError(
            f"{path} is no engine curve: {', '.join(sorted(missing))} missing; write one with python -m "
            "lab.studies.engine_curve"
        )
    return EngineCurve(**{name: content[name] for name in EngineCurve.__dataclass_fields__})


def fit(
    batches: Sequence[int], contexts: Sequence[int], seconds: Sequence[float], prefill_tokens_per_s: float, source: str
) -> EngineCurve:
    """Fit an engine's curve of step times by least squares of relative errors, with coefficients of at least zero.

    A negative coefficient is left out and the others are fitted again. `contexts` are attended tokens, summed over the
    batch.
    """
    measured = np.asarray(seconds, dtype=np.float64)
    columns = np.stack(
        [np.ones(len(measured)), np.asarray(batches, np.float64), np.asarray(contexts, np.float64)], axis=1
    )
    weighted = columns / measured[:, None]
    used = [0, 1, 2]
    while True:
        solution, *_ = np.linalg.lstsq(weighted[:, used], np.ones(len(measured)), rcond=None)
        if (solution >= 0).all():
            break
        used.pop(int(solution.argmin()))
    values = np.zeros(3)
    values[used] = solution
    return EngineCurve(float(values[0]), float(values[1]), float(values[2]), prefill_tokens_per_s, source)


# A 1.5 B model (Qwen2.5-1.5B: 1.54e9 parameters, 28 layers, 2 key-value heads of 128) in bf16 on an H100 SXM (HBM
# 3.35e12 B/s, 989e12 dense bf16 FLOP/s). Derived, not measured. The two shares of the peaks and the overhead are
# assumptions.
_PARAMETERS = 1.54e9
_KEY_VALUE_BYTES = 28 * 2 * 2 * 128 * 2  # per token: layers × (key, value) × heads × head size × bytes = 28,672
_BYTES_PER_S = 0.8 * 3.35e12
_FLOPS = 0.5 * 989e12
_OVERHEAD_S = 1e-3  # unhidden scheduling and launches of a step

ASSUMED_H100 = EngineCurve(
    step_s=2 * _PARAMETERS / _BYTES_PER_S + _OVERHEAD_S,  # each weight is read once: 1.15 ms, plus the overhead
    rollout_s=2 * _PARAMETERS / _FLOPS,  # a multiplication and an addition per parameter: 6.2 µs
    context_s=_KEY_VALUE_BYTES / _BYTES_PER_S,  # 10.7 ns
    prefill_tokens_per_s=_FLOPS / (2 * _PARAMETERS),  # 160,000, without attention
    source="derived for Qwen2.5-1.5B in bf16 on an H100, not measured",
)
