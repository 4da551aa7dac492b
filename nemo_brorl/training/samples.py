"""A few rollouts of a step as text, to read what the model does."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from nemo_brorl.cluster.object_store import fetch
from nemo_brorl.core.files import naming, write_whole
from nemo_brorl.types import TrainBatch


def write_samples(
    run_folder: Path,
    step: int,
    batch: TrainBatch,
    num: int,
    decode: Callable[[Sequence[int]], str],
) -> None:
    """Write the first rollout of `num` groups as text to `rollouts/step_K.jsonl`, to read what the model does; 0: no
    file. Raises ResourceError."""
    if not num:
        return
    path = run_folder / "rollouts" / f"step_{step}.jsonl"
    text = ""
    for group, advantages in zip(batch.groups[:num], batch.advantages[:num], strict=True):
        arrays = fetch(group.group.chunks[0].data)
        response_ids = arrays.token_ids[: arrays.offsets[1]]
        row = {
            "prompt": decode(group.prompt.token_ids),
            "response": decode(response_ids.tolist()),
            "reward": float(group.rewards[0]),
            "advantage": float(advantages[0]),
            "group_mean": float(group.rewards.mean()),
        }
        text += json.dumps(row) + "\n"
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
