"""A training loop to fork: sample N rollouts of each prompt, score them, train, sync the weights to the engines.

    make train ARGS="trainer.max_steps=1"                                   # once: installs, makes the small base model
    .venv/bin/python examples/rl_loop.py trainer.max_steps=3 rollouts.num_per_prompt=32

It uses the parts of `brorl train`: a Megatron policy, vLLM engines and verifier processes, all on Ray. The trainer
(`nemo_brorl/training/trainer.py`) adds carried-over groups, deadlines, overlap with training, and validation.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nemo_brorl import Session
from nemo_brorl.config.load import parse_command_line
from nemo_brorl.core.console import Console


def main(argv: Sequence[str]) -> list[float]:
    """Train for `trainer.max_steps` steps. Return the mean raw reward of each."""
    line = parse_command_line(argv, "train", (__doc__ or "").strip())
    recipe, console, rewards = Path(line.config_path or "", line.config_name), Console(), []
    with Session(recipe=recipe, settings=line.overrides) as session:
        for step in range(session.step + 1, session.config.trainer.max_steps + 1):
            groups = session.sample()  # N rollouts of each prompt, scored
            metrics = session.update(groups)  # trains on the informative groups, and sends the weights to the engines
            rewards.append(float(np.mean([group.rewards.mean() for group in groups])))
            console.line(f"step {step}: reward {rewards[-1]:.3f}, loss {metrics.get('policy/loss', 0.0):.4f}")
    return rewards


if __name__ == "__main__":
    main(sys.argv[1:])
