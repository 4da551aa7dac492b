"""The PromptSource port: an endless stream of tokenised prompts, each handed out exactly once, resumed by its position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nemo_brorl.config.schema import DataConfig
from nemo_brorl.errors import CheckpointError, DataError
from nemo_brorl.prompts.sources import Source
from nemo_brorl.tokenizer import ChatTokenizer
from nemo_brorl.types import Prompt

MAX_CONSECUTIVE_SKIPS = 1000  # over-long prompts in a row before the setting counts as wrong


class PromptStream:
    """Prompts in the order of the source; those longer than `data.max_prompt_tokens` are skipped and counted."""

    def __init__(self, source: Source, tokenizer: ChatTokenizer, config: DataConfig, split: str = "train") -> None:
        self.source = source
        self.tokenizer = tokenizer
        self.config = config
        self.split = split
        self.next_index = 0
        self.num_skipped = 0

    def take(self, num: int) -> list[Prompt]:
        """The next `num` prompts; uid `train/17` is question 17 of the split. Raises DataError when (nearly) all are too long."""
        return [self._next() for _ in range(num)]

    def state_dict(self) -> dict[str, Any]:
        """Position and the number of prompts skipped so far."""
        return {"split": self.split, "next_index": self.next_index, "num_skipped": self.num_skipped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken. Raises CheckpointError when it is another stream's."""
        if set(state) != set(self.state_dict()):
            raise CheckpointError(f"a prompt stream's state has the keys {sorted(self.state_dict())}, the checkpoint has {sorted(state)}")
        if state["split"] != self.split:
            raise CheckpointError(f"the checkpoint's prompt stream is of split {state['split']!r}, this one of {self.split!r}")
        self.next_index = int(state["next_index"])
        self.num_skipped = int(state["num_skipped"])

    def _next(self) -> Prompt:
        for _ in range(MAX_CONSECUTIVE_SKIPS):
            prompt = self._prompt(self.next_index)
            self.next_index += 1
            if len(prompt.token_ids) <= self.config.max_prompt_tokens:
                return prompt
            self.num_skipped += 1
        raise DataError(
            f"{MAX_CONSECUTIVE_SKIPS} prompts in a row are longer than data.max_prompt_tokens={self.config.max_prompt_tokens} "
            f"(the last has {len(prompt.token_ids)} tokens); raise it, or generation.max_model_len with it"
        )

    def _prompt(self, index: int) -> Prompt:
        question = self.source.question(index)
        return Prompt(
            uid=f"{self.split}/{index}",
            task=question.task,
            verifier=question.verifier,
            token_ids=tuple(self.tokenizer.prompt_ids(question.text, self.config.system_prompt)),
            payload=question.payload,
        )
