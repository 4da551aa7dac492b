"""Probe of this machine's cores, in seconds: a layer of the model's own shape forward and backward, its
output layer, memory, and Python itself. Run as a program (`python -m brorl_launcher.planner.cpu_probe`, one copy
for each rank, side by side); torch is imported there only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from nemo_brorl.core.errors import ResourceError
from nemo_brorl.core.model_shape import ModelShape

REPEATS = 5
PYTHON_LOOP = 200_000
COPIED_BYTES = 64 * 2**20
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class ProbeSize:
    """Sizes that a copy of the probe measures."""

    hidden: int
    heads: int
    groups: int  # key-value heads
    head_size: int
    ffn: int  # that one token goes through
    vocab: int
    tokens: int  # of a row
    length: int  # of a sequence in it


@dataclass(frozen=True)
class CpuSpeed:
    """Speed of one thread while as many others work, in processor seconds, which other programs on the machine disturb
    little."""

    forward_s: float  # of a token through one layer
    train_s: float  # of a token through one layer and back
    head_forward_s: float  # of a token through the output layer and its softmax
    head_train_s: float
    matrix_flops: float  # of a large square product
    copy_bytes_per_s: float  # read and written, each counted
    python_s: float  # of one turn of a small loop


def probe_size(shape: ModelShape, tokens: int, length: int) -> ProbeSize:
    """The size of a model's layer; of a mixture, the experts that a token is sent to."""
    ffn = shape.ffn_size
    if shape.moe is not None:
        ffn = shape.moe.experts_per_token * shape.moe.ffn_size
    return ProbeSize(
        hidden=shape.hidden_size,
        heads=shape.num_heads,
        groups=shape.num_key_value_heads,
        head_size=shape.head_size,
        ffn=ffn,
        vocab=shape.vocab_size,
        tokens=max(64, tokens),
        length=max(1, length),
    )


def measure_cpu(size: ProbeSize, copies: int) -> CpuSpeed:
    """Run so many copies side by side; the mean of what they say. Raises ResourceError where torch is not installed."""
    command = [sys.executable, "-m", "brorl_launcher.planner.cpu_probe", json.dumps(asdict(size))]
    root = Path(__file__).parents[3]
    environment = dict(os.environ)
    environment["OMP_NUM_THREADS"] = "1"
    environment["PYTHONPATH"] = os.pathsep.join([str(root), *sys.path])
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    running = []
    for _ in range(copies):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        running.append(process)
    answers = []
    for process in running:
        output, errors = process.communicate(timeout=TIMEOUT_S)
        if process.returncode:
            lines = errors.strip().splitlines() or ["no message"]
            raise ResourceError(
                f"the speed of this machine could not be measured ({lines[-1]}): give what --probe-json wrote elsewhere"
            )
        answers.append(json.loads(output.splitlines()[-1]))
    means = {}
    for name in answers[0]:
        means[name] = mean([answer[name] for answer in answers])
    return CpuSpeed(**means)


def read_speed(path: Path) -> CpuSpeed:
    """Speed that `write_speed` wrote. Raises ResourceError."""
    try:
        return CpuSpeed(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ResourceError(f"{path} holds no speed of a machine: {error}") from error


def write_speed(speed: CpuSpeed, path: Path) -> None:
    """Write a speed for `read_speed`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(speed), indent=1) + "\n", encoding="utf-8")


def _timed(run: Callable[[], Any]) -> float:
    """Processor seconds of a call, the median of a few runs after one that warms up."""
    run()
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return median(seconds)


class _Layer:
    """One decoder layer of random weights in plain torch."""

    def __init__(self, size: ProbeSize) -> None:
        import torch

        self.torch = torch
        self.size = size
        width = size.hidden
        queries = size.heads * size.head_size
        groups = size.groups * size.head_size
        shapes = {
            "qkv": (queries + 2 * groups, width),
            "out": (width, queries),
            "up": (2 * size.ffn, width),
            "down": (width, size.ffn),
        }
        self.weights = {}
        for name, shape in shapes.items():
            self.weights[name] = torch.randn(*shape).mul_(0.02).requires_grad_()
        self.norm = torch.ones(width, requires_grad=True)
        rows = max(1, size.tokens // size.length) * size.length
        self.hidden = torch.randn(rows, width, requires_grad=True)

    def forward(self) -> Any:
        functional = self.torch.nn.functional
        size = self.size
        queries = size.heads * size.head_size
        groups = size.groups * size.head_size
        normed = functional.rms_norm(self.hidden, (size.hidden,), self.norm)
        heads = []  # queries, keys, values: [sequences, heads, length, head size]
        for part in functional.linear(normed, self.weights["qkv"]).split([queries, groups, groups], -1):
            by_head = part.unflatten(-1, (-1, size.head_size))
            heads.append(by_head.unflatten(0, (-1, size.length)).transpose(1, 2))
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        flat = attended.transpose(1, 2).flatten(0, 1).flatten(1)
        hidden = self.hidden + functional.linear(flat, self.weights["out"])
        normed = functional.rms_norm(hidden, (size.hidden,), self.norm)
        gate, up = functional.linear(normed, self.weights["up"]).chunk(2, -1)
        return hidden + functional.linear(functional.silu(gate) * up, self.weights["down"])

    def seconds(self) -> tuple[float, float]:
        """(forward, forward and backward) of a token."""
        with self.torch.no_grad():
            forward = _timed(self.forward)
        train = _timed(lambda: self.forward().sum().backward())
        return forward / len(self.hidden), train / len(self.hidden)


def _head_seconds(size: ProbeSize) -> tuple[float, float]:
    """(forward, forward and backward) of a token through the output layer; backward computes logits again."""
    import torch

    rows = max(16, min(size.tokens, 2**22 // size.vocab))
    hidden = torch.randn(rows, size.hidden)
    weight = torch.randn(size.vocab, size.hidden).mul_(0.02)

    def forward() -> Any:
        logits = hidden @ weight.T
        return logits.sub_(logits.amax(1, keepdim=True)).exp_().sum(1)

    def train() -> None:
        forward()
        share = (hidden @ weight.T).exp_()
        torch.mm(share, weight)
        torch.mm(share.T, hidden)

    return _timed(forward) / rows, _timed(train) / rows


def _python_seconds() -> float:
    """Seconds of one turn of a loop with a few lookups, calls and additions."""

    def loop() -> int:
        table = {number: number for number in range(64)}
        total = 0
        for number in range(PYTHON_LOOP):
            total += table.get(number & 63, 0)
        return total

    return _timed(loop) / PYTHON_LOOP


def main() -> None:
    """Run one copy: JSON of a `CpuSpeed` on standard output."""
    size = ProbeSize(**json.loads(sys.argv[1]))
    import torch

    torch.set_num_threads(1)
    forward, train = _Layer(size).seconds()
    head_forward, head_train = _head_seconds(size)
    square = torch.randn(768, 768)
    source = torch.ones(COPIED_BYTES // 4)
    target = torch.empty_like(source)
    speed = CpuSpeed(
        forward_s=forward,
        train_s=train,
        head_forward_s=head_forward,
        head_train_s=head_train,
        matrix_flops=2 * 768**3 / _timed(lambda: square @ square),
        copy_bytes_per_s=2 * COPIED_BYTES / _timed(lambda: target.copy_(source)),
        python_s=_python_seconds(),
    )
    sys.stdout.write(json.dumps(asdict(speed)) + "\n")


if __name__ == "__main__":
    main()
