"""Peak memory of the log-prob pass with a large vocabulary: the policy's output layer against torch's log_softmax.

    python bench/log_prob_memory.py [--tokens 16384] [--vocab-size 151936] [--hidden-size 64] [--json FILE]

Every case runs in a process of its own on one thread. Its figure is the highest resident memory during the pass above
what was resident before it (hidden states, weight, targets), so gradients and results count as well. One chunk is
policy.log_prob_chunk_tokens rows of logits in fp32. The bound to hold is one chunk, for scoring and for forward and
backward; the script ends with an error if it is broken. torch's log_softmax gets the first eighth of the tokens: as a
whole all of them would not fit, and in chunks of the same size, computed again in backward, its memory does not grow
with tokens but its time does. Entropy and collision mass come with the policy's side only.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.policy.model.log_probs import TokenScores, token_scores, vocab_slice

CHUNK = BroRLConfig().policy.log_prob_chunk_tokens
SHARE = 8  # torch's sides get one in so many tokens
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 0.1}  # nats; a bf16 logit is rounded to 3 digits


@dataclass(frozen=True)
class Case:
    """One measurement."""

    side: str  # key of SIDES
    dtype: torch.dtype
    with_backward: bool
    num_tokens: int
    vocab_size: int
    hidden_size: int


@dataclass(frozen=True)
class Measured:
    """What it took."""

    peak_bytes: int  # above the inputs
    cpu_s: float
    log_probs: Tensor  # [n]


def policy_side(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Compute log-probs with the policy's `token_scores`, and drop entropy and collision mass."""
    return TokenScores(
        *token_scores(hidden, weight, targets, vocab_slice(len(weight), len(weight), None), 1.0, CHUNK)
    ).log_probs


def whole_side(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """All logits at once."""
    return (hidden @ weight.T).float().log_softmax(-1).gather(1, targets[:, None])[:, 0]


def chunked_side(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Compute log-probs from one chunk of logits at a time, recomputed in the backward pass."""
    parts = zip(hidden.split(CHUNK), targets.split(CHUNK), strict=True)
    return torch.cat([checkpoint(whole_side, rows, weight, wanted, use_reentrant=False) for rows, wanted in parts])


SIDES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "policy": policy_side,
    "torch, chunks": chunked_side,
    "torch, whole": whole_side,
}


def run(case: Case, num_tokens: int) -> Measured:
    """Run the case's pass over `num_tokens` tokens in this process, and measure peak memory and CPU time."""
    hidden = _random(0, num_tokens, case).requires_grad_(case.with_backward)
    weight = (0.2 * _random(1, case.vocab_size, case)).requires_grad_(case.with_backward)
    targets = torch.arange(num_tokens) * 7919 % case.vocab_size
    before, start = reset_peak(), time.process_time()
    with torch.set_grad_enabled(case.with_backward):
        log_probs = SIDES[case.side](hidden, weight, targets)
    if case.with_backward:
        log_probs.sum().backward()
    return Measured(resident_bytes("VmHWM") - before, time.process_time() - start, log_probs.detach().float())


def _random(seed: int, num_rows: int, case: Case) -> Tensor:
    """[num_rows, hidden_size], the same first rows however many there are."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((num_rows, case.hidden_size), np.float32)).to(
        case.dtype
    )


def reset_peak() -> int:
    """Let the peak of resident memory start from now; bytes resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident_bytes("VmRSS")


def resident_bytes(field: str) -> int:
    """VmRSS: resident now; VmHWM: the peak."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


def serve(connection: Connection, case: Case) -> None:
    """Measure one case in a process of its own, and send the result over `connection`.

    A first pass over 8 tokens loads what libraries load once.
    """
    torch.set_num_threads(1)
    run(case, num_tokens=8)
    result = run(case, case.num_tokens)
    connection.send((result.peak_bytes, result.cpu_s, result.log_probs.numpy()))


def measure(case: Case) -> Measured:
    """Run a case in a fresh process."""
    context = mp.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, case), daemon=True)
    process.start()
    theirs.close()  # so that a process that dies ends the wait
    peak_bytes, cpu_s, log_probs = mine.recv()
    process.join()
    return Measured(peak_bytes, cpu_s, torch.from_numpy(log_probs))


def compare(dtype: torch.dtype, with_backward: bool, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All sides of one pass. Raises AssertionError where their log-probs differ."""
    chunk_bytes = CHUNK * options.vocab_size * 4
    rows = []
    expected: Tensor | None = None
    for side in SIDES:
        num_tokens = options.tokens if side == "policy" else options.tokens // SHARE
        measured = measure(Case(side, dtype, with_backward, num_tokens, options.vocab_size, options.hidden_size))
        expected = measured.log_probs if expected is None else expected
        torch.testing.assert_close(measured.log_probs, expected[:num_tokens], atol=CLOSE[dtype], rtol=0)
        kind = "forward and backward" if with_backward else "scoring"
        rows.append(
            {
                "precision": str(dtype).removeprefix("torch."),
                "pass": kind,
                "side": side,
                "tokens": num_tokens,
                "peak_mib": measured.peak_bytes / 2**20,
                "peak_chunks": measured.peak_bytes / chunk_bytes,
                "cpu_s": measured.cpu_s,
            }
        )
        row = rows[-1]
        print(
            f"{row['precision']:9} {kind:21} {side:14} {num_tokens:6} tokens {row['peak_mib']:8.0f} MiB "
            f"= {row['peak_chunks']:5.2f} chunks {measured.cpu_s:7.1f} CPU s",
            flush=True,
        )
    return rows


def main() -> None:
    """Run, print, check the bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--vocab-size", type=int, default=151936)
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    print(
        f"one chunk: {CHUNK} tokens x {options.vocab_size} x 4 bytes = {CHUNK * options.vocab_size * 4 / 2**20:.0f} MiB"
    )
    rows = [row for dtype in CLOSE for with_backward in (False, True) for row in compare(dtype, with_backward, options)]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    broken = [row for row in rows if row["side"] == "policy" and row["peak_chunks"] > 1]
    if broken:
        raise SystemExit(f"more than one chunk of logits: {broken}")


if __name__ == "__main__":
    main()
