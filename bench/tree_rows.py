"""Trajectories of several turns that share some, forward and backward: trees against a shared prompt and plain rows.

    python bench/tree_rows.py [--branches 8 4] [--turns 4] [--trajectories 512] [--prompt 200] [--json FILE]

Trajectories take one of 8 first turns, one of 4 second ones after it, and then each its own: of four turns half
coincide. A turn is 24 to 72 sampled tokens and 16 observed ones. All sides compute the gradient of the mean of ratio ×
advantage over sampled tokens with the same weights, in fp32, on one thread, in micro-batches planned to the same
budget; every gradient is compared. Tokens per second are those of the trajectories, prompts apart, however often they
are computed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import policy_packing  # opens the device before megatron is imported
import torch

from nemo_brorl.algorithm.packing import Packer, Sharing
from nemo_brorl.config.parallel_layout import layout_of
from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.policy.model.log_probs import TokenScores
from nemo_brorl.policy.process import process_groups
from nemo_brorl.policy.rank.learner import Learner
from nemo_brorl.policy.rank.pipeline import train_rows
from nemo_brorl.policy.rows.packed_rows import GroupArrays, Row, build_packed_groups
from nemo_brorl.scoring.response_arrays import turn_ends
from nemo_brorl.types import ChunkArrays, Int32, MicroBatch, PlannedGroup, UpdatePlan

MIN_SHARED_TOKENS = 32
NUM_OBSERVED = 16
SIDES = {
    "tree": Sharing(min_tokens=MIN_SHARED_TOKENS),
    "prompt": Sharing(),
    "plain": Sharing(prompt=False),
}


@dataclass(frozen=True)
class Trajectories:
    """A group of trajectories, and the lengths [N] of its responses."""

    group: PlannedGroup
    data: ChunkArrays
    lengths: Int32
    num_turns: int


def draw(arguments: argparse.Namespace) -> Trajectories:
    """Draw random trajectories whose first turns are equal where the branches are."""
    random = np.random.default_rng(0)
    num = arguments.trajectories
    turns: dict[tuple[int, int], np.ndarray] = {}  # by number of the turn and of its branch
    texts: list[np.ndarray] = []
    masks: list[np.ndarray] = []
    for trajectory in range(num):
        num_branches = 1
        for turn in range(arguments.turns):
            num_branches = num_branches * arguments.branches[turn] if turn < len(arguments.branches) else num
            branch = trajectory % num_branches
            if (turn, branch) not in turns:
                num_tokens = random.integers(24, 73) + NUM_OBSERVED
                turns[turn, branch] = random.integers(0, policy_packing.VOCAB_SIZE, num_tokens, dtype=np.int32)
            text = turns[turn, branch]
            texts.append(text)
            masks.append(np.arange(len(text)) < len(text) - NUM_OBSERVED)
    ends = np.cumsum([0, *map(len, texts)])
    token_ids = np.concatenate(texts)
    log_probs = random.normal(-5, 0.1, len(token_ids)).astype(np.float32)
    data = ChunkArrays(token_ids, log_probs, ends[:: arguments.turns], np.concatenate(masks))
    prompt = random.integers(0, policy_packing.VOCAB_SIZE, arguments.prompt, dtype=np.int32)
    advantages = random.normal(size=num).astype(np.float32)
    group = PlannedGroup(prompt, (data,), advantages, staleness=0)
    return Trajectories(group, data, np.diff(data.offsets).astype(np.int32), arguments.turns)


def make_rows(learner: Learner, drawn: Trajectories, sharing: Sharing, budget: int) -> tuple[list[Row], int]:
    """Plan one mini-batch on one rank, and return its rows and the number of tokens that the plan counts."""
    counts = drawn.data.num_sampled
    assert counts is not None
    packer = Packer(
        [len(drawn.group.prompt_ids)],
        [drawn.lengths],
        budget,
        sharing,
        [counts],
        [turn_ends(drawn.data, drawn.num_turns)],
    )
    micro_batches: tuple[MicroBatch, ...]
    (micro_batches,) = packer.pack([(0, rollout) for rollout in range(len(drawn.lengths))], 1)
    plan = UpdatePlan(1, "ppo_clip", 0.0, (drawn.group,), ((micro_batches,),))
    arrays = {0: GroupArrays([drawn.data])}
    rows = [learner.state.row(build_packed_groups(plan, micro, arrays), 1.0) for micro in micro_batches]
    return rows, sum(micro.num_tokens for micro in micro_batches)


def policy_gradient(index: int, row: Row, scores: TokenScores) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    ratios = (scores.log_probs - row.sampled_log_probs).clamp(-2, 2).exp()
    return -(ratios * row.advantages).sum(), {}


def measure(learner: Learner, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure the gradient of all kinds of rows, and return medians and their ratios.

    The sides take turns, so that a busy machine slows all of them.
    """
    drawn = draw(arguments)
    sides: dict[str, policy_packing.Side] = {}
    counted: dict[str, dict[str, int]] = {}
    gradients: dict[str, policy_packing.Gradients] = {}
    for name, sharing in SIDES.items():
        settings = learner.state.row_settings
        learner.state.row_settings = replace(settings, min_shared_tokens=sharing.min_tokens)
        rows, num_planned = make_rows(learner, drawn, sharing, arguments.budget)
        counted[name] = {
            "micro_batches": len(rows),
            "tokens_planned": num_planned,
            "tokens_computed": sum(row.token_ids.size(1) for row in rows),
            "loss_tokens": sum(row.num_loss_tokens for row in rows),
        }
        work = partial(train_rows, learner.state.chunks, rows, policy_gradient)
        sides[name] = policy_packing.Side(work, partial(policy_packing.megatron_gradients, learner), arguments.repeats)
    for _ in range(arguments.repeats):
        for name, side in sides.items():
            side.run()
            gradients.setdefault(name, side.gradients())
    num_tokens = int(drawn.lengths.sum())
    cpu = {name: statistics.median(side.cpu) for name, side in sides.items()}
    differences = {}
    for name in ("tree", "prompt"):
        differences[name] = policy_packing.largest_difference(gradients[name], gradients["plain"])
    return {
        "trajectories": len(drawn.lengths),
        "response_tokens": num_tokens,
        "counted": counted,
        "cpu_s": cpu,
        "tokens_per_cpu_s": {name: num_tokens / seconds for name, seconds in cpu.items()},
        "tree_over": {name: cpu[name] / cpu["tree"] for name in ("prompt", "plain")},
        "largest_gradient_difference": differences,
    }


def table(result: dict[str, Any]) -> str:
    lines = ["side      micro-batches   planned  computed    CPU s  tokens/s  tree over it  gradients differ by"]
    for name, counted in result["counted"].items():
        ratio = result["tree_over"].get(name)
        difference = result["largest_gradient_difference"].get(name)
        lines.append(
            f"{name:8}{counted['micro_batches']:15}{counted['tokens_planned']:10}{counted['tokens_computed']:10}"
            f"{result['cpu_s'][name]:9.2f}{result['tokens_per_cpu_s'][name]:10.0f}"
            f"{'' if ratio is None else f'{ratio:.2f}':>14}{'' if difference is None else f'{difference:.1e}':>21}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--branches", type=int, nargs="*", default=[8, 4], help="of each turn that trajectories share")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--trajectories", type=int, default=512)
    parser.add_argument("--prompt", type=int, default=200, help="tokens")
    parser.add_argument("--budget", type=int, default=8192, help="tokens of a micro-batch")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    config = BroRLConfig()
    layout = layout_of(config)
    process_groups.open_groups(layout, 0, torch.distributed.HashStore(), policy_packing.DEVICE, seed=1)
    with tempfile.TemporaryDirectory() as name:
        folder = policy_packing.make_model_folder(Path(name))
        learner = Learner(RankSettings.from_config(config), folder, policy_packing.DEVICE)
        result = measure(learner, arguments)
    print(table(result))
    process_groups.close_groups()
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))
    worst = max(result["largest_gradient_difference"].values())
    assert worst < policy_packing.TOLERANCE, f"gradients differ by {worst:.1e}, more than {policy_packing.TOLERANCE:g}"


if __name__ == "__main__":
    main()
