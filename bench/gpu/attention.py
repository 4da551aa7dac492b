"""Attention over packed rows: seconds of a training step of four layers of the 1.5B shape, by every way there is.

    python -m bench.gpu.attention [--tiny] [--results FOLDER] [--repeats 5]

Rows that are one document: the case in which attention takes most. The first step of each way is told apart: it
compiles. Block by block is left out at 16,384 tokens, where it takes minutes.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from bench.gpu.one_rank import OneRank, TrainingStep, config_for, open_rank, packed_group
from bench.gpu.record import Row
from bench.gpu.setting import Setting, median_seconds, open_setting, synchronize
from bench.gpu.shapes import QWEN_1_5B, TINY, make_model
from nemo_brorl.config.policy import PolicyConfig

LENGTHS, TINY_LENGTHS = (4096, 16384), (64, 96)
LAYERS = 4


def backends(setting: Setting) -> list[str]:
    """Return the attention backends of a GPU without the block-by-block one, or the only one of a CPU."""
    if setting.is_tiny:
        return ["auto"]
    choices = PolicyConfig.__dataclass_fields__["attention"].metadata["declaration"].choices
    return [choice for choice in choices if choice not in ("auto", "sdpa")]


def document(length: int, vocab_size: int) -> np.ndarray:
    """Draw `length` random token ids."""
    return np.random.default_rng(length).integers(0, vocab_size, length, dtype=np.int32)


def one_step(learner: Any, length: int) -> TrainingStep:
    """Build a training step on a row that is one document of `length` tokens."""
    tokens = document(length, learner.state.shape.vocab_size)
    row = learner.state.row([packed_group(tokens[:1], [tokens[1:]])], 1.0)
    return TrainingStep(learner, [row])


def measure(rank: OneRank, folder: Any, attention: str, length: int) -> None:
    """Measure a training step with one attention backend at one length."""
    setting = rank.setting
    config = config_for(setting, attention=attention, tokens_per_micro_batch=length)
    config.policy.recompute = None
    with rank.learner(folder, config) as learner:
        step = one_step(learner, length)
        start = time.perf_counter()
        step()
        synchronize(setting.device)
        first_s = time.perf_counter() - start
        seconds = median_seconds(step, setting.device, setting.extra.repeats)
    setting.results.add(Row(f"{attention}, {length:,} tokens: step", seconds, "s", note=f"the first {first_s:.1f} s"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the attention part to its parser."""
    parser.add_argument("--repeats", type=int, default=5)


def main() -> None:
    """Measure all attention backends, shortest rows first."""
    setting = open_setting("attention", __doc__, add_arguments)
    shape = TINY if setting.is_tiny else QWEN_1_5B | {"num_hidden_layers": LAYERS}
    folder = make_model(setting.models / ("tiny" if setting.is_tiny else f"1.5B_{LAYERS}_layers"), shape)
    lengths = TINY_LENGTHS if setting.is_tiny else LENGTHS
    cases = [(attention, length) for length in lengths for attention in backends(setting)]
    if not setting.is_tiny:
        cases.insert(0, ("sdpa", LENGTHS[0]))
    with open_rank(setting) as rank:
        for attention, length in cases:
            with setting.results.attempt(f"{attention}, {length:,} tokens"):
                measure(rank, folder, attention, length)
    setting.results.finish()


if __name__ == "__main__":
    main()
