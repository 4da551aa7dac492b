"""What a minute tells: whether the rest is worth running.

    python -m bench.gpu.smoke [--tiny] [--results FOLDER] [--only policy|turn]

A small model of random weights. One rank of the policy (NCCL, Transformer Engine's layers, the packed attention, the
compiled kernels of log-probs): log-probs and one optimizer step at two row lengths by every way of attention, against
the block-by-block one. Then an engine without CUDA graphs beside the policy: sleep, new weights, awake, sample, and
both roles' log-probs of the same tokens. On CPU one way of attention, and engines that keep their memory asleep.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from bench.gpu.attention import backends, document, one_step
from bench.gpu.colocated import config_for as pair_config
from bench.gpu.colocated import disagreement, start
from bench.gpu.one_rank import OneRank, config_for, open_rank
from bench.gpu.record import Row
from bench.gpu.setting import Setting, open_setting
from bench.gpu.shapes import FAMILIES, TINY, make_model, with_tokenizer
from nemo_brorl.core.clock import Stopwatch
from nemo_brorl.training.device_handover import DeviceHandover

LENGTHS, TINY_LENGTHS = (1024, 4096), (64, 96)
SHARE = 0.2  # of the GPU for the engine
AGREE = 0.05  # nats, in bf16


def log_probs_by(rank: OneRank, folder: Path, attention: str, length: int) -> np.ndarray:
    """Return the log-probs of one random document, after checking that a training step on it is finite."""
    config = config_for(rank.setting, attention=attention, tokens_per_micro_batch=length)
    with rank.learner(folder, config) as learner:
        tokens = document(length, learner.state.shape.vocab_size)
        found = learner.log_probs([tokens[:1].tolist()], [tokens[1:].tolist()])
        one_step(learner, length)()
    return np.concatenate(found)


def check_policy(rank: OneRank, folder: Path) -> None:
    """Every way of attention against the slow one."""
    setting = rank.setting
    for length in TINY_LENGTHS if setting.is_tiny else LENGTHS:
        exact = log_probs_by(rank, folder, "sdpa", length)
        for attention in backends(setting):
            row = f"{attention}, {length:,} tokens: from block by block"
            with setting.results.attempt(row):
                difference = np.abs(log_probs_by(rank, folder, attention, length) - exact).mean()
                setting.results.add(Row(row, float(difference), "nats", at_most=AGREE))


def check_turn(setting: Setting, engine_model: Path, policy_model: Path) -> None:
    """Check that an engine with other weights agrees with the policy after one handover.

    The engine sleeps, loads the policy's weights and wakes. The row has |Megatron − vLLM| after and before.
    """
    config = pair_config(setting, SHARE, sleep="discard", enforce_eager=True)
    with start(config, engine_model, policy_model) as pair:
        assert pair.policy is not None
        before = disagreement(pair)
        handover = DeviceHandover(pair.policy, pair.pool)
        with handover.policy_phase(Stopwatch()) as phase:
            phase.set_version(1)
        pair.policy.onload()
        after = disagreement(pair)
    note = f"before {before:.3f}"
    setting.results.add(Row("slept, loaded, awake: |Megatron − vLLM|", after, "nats", at_most=AGREE, note=note))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the smoke part to its parser."""
    parser.add_argument("--only", choices=("policy", "turn"), help="one half: the policy alone, or the colocated pair")


def main() -> None:
    """Check a policy rank alone, then a policy and an engine that share the GPU."""
    setting = open_setting("smoke", __doc__, add_arguments)
    shape = TINY if setting.is_tiny else FAMILIES["qwen2"]
    name = "tiny" if setting.is_tiny else "qwen2"
    folder = make_model(setting.models / name, shape)
    if setting.extra.only != "turn":
        with setting.results.attempt("one policy rank"), open_rank(setting) as rank:
            check_policy(rank, folder)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    if setting.extra.only != "policy":
        engine_model = with_tokenizer(make_model(setting.models / f"{name}_other", shape, seed=1))
        with setting.results.attempt("one turn"):
            check_turn(setting, engine_model, folder)
    setting.results.finish()


if __name__ == "__main__":
    main()
