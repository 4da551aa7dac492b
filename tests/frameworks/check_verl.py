"""verl's reward loader and its naive reward manager grade with the README's example, as a package and as a file."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import numpy as np
import torch
from example import run_example
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from verl.trainer.ppo.reward import get_custom_reward_fn

FILE = subprocess.run([sys.executable, "-m", "brorl_graders.adapters"], capture_output=True, text=True, check=True)
RESPONSES = ["\\boxed{7}", "It is 8."]


class Letters:
    """A tokenizer that has a token for each character."""

    def decode(self, tokens: torch.Tensor, skip_special_tokens: bool) -> str:
        return "".join(map(chr, tokens.tolist()))


def data_of(text: str, source: str, truth: str) -> DataProto:
    """Build verl's batch of one response."""
    tokens = torch.tensor([list(map(ord, text))])
    batch = TensorDict({"responses": tokens, "attention_mask": torch.ones_like(tokens)}, batch_size=1)
    others = {"data_source": source, "reward_model": {"ground_truth": truth}, "extra_info": {}}
    return DataProto(
        batch=batch, non_tensor_batch={key: np.array([value], dtype=object) for key, value in others.items()}
    )


async def scores(function: object, source: str, truth: str) -> list[dict]:
    manager = NaiveRewardManager(OmegaConf.create({}), Letters(), function)
    return [await manager.run_single(data_of(text, source, truth)) for text in RESPONSES]


for path in (None, FILE.stdout.strip()):
    settings = OmegaConf.create({"reward": {"custom_reward_function": {"reward_kwargs": {}}}})
    run_example("verl", {"settings": settings})
    if path is not None:
        settings.reward.custom_reward_function.path = path
    found = asyncio.run(scores(get_custom_reward_fn(settings), "openai/gsm8k", "7"))
    assert [one["reward_score"] for one in found] == [1.0, 0.0]
    assert [one["reward_extra_info"]["answer"] for one in found] == ["7", "8"]
    assert len({tuple(one["reward_extra_info"]) for one in found}) == 1
    print("scores of verl:", [one["reward_extra_info"] for one in found])
settings.reward.custom_reward_function.reward_kwargs = {"verifier": "math", "extract": "boxed"}
found = asyncio.run(scores(get_custom_reward_fn(settings), "of my own", "8"))
assert [one["reward_score"] for one in found] == [0.0, 0.0]
