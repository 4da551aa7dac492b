"""Reckon what chunks cost an engine, in decoded tokens."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_brorl.ports import Forecast
from nemo_brorl.types import RolloutRequest


@dataclass(frozen=True)
class PlacementCosts:
    """Numbers of one placement. The defaults were tuned on seeds 0 and 1 of lab/studies/cluster_model."""

    prefill: float = 0.2  # work of one prompt token: a prompt on one more engine costs it
    context: float = 5e-4  # work of attending to one more token, over decoding one without context in a full batch
    concentration: float = 0.1  # share of a chunk's work added for each other chunk of its prompt on the engine
    cached_prompt_tokens: int = 200_000  # of prompts that an engine's prefix cache keeps, last used first
    can_steal: bool = True  # idle engines take over chunks that others have not begun


class ChunkCosts:
    """A chunk costs its rollouts times the tokens forecast for one of them, each of which costs `context` more for
    every token it attends to, and its prompt times `prefill` on an engine that does not hold the prompt."""

    def __init__(self, numbers: PlacementCosts, forecast: Forecast) -> None:
        self._numbers = numbers
        self._forecast = forecast

    def of_rollout(self, request: RolloutRequest, age: float = 0.0) -> float:
        """Work that is left of one rollout of a request, which have `age` tokens."""
        tokens = self._forecast.tokens(request, age)
        num_before = age
        if request.partial is not None and not age:
            num_before = float(request.partial.lengths.mean())
        # Of a token, on average: half of those to come lie before it.
        context = len(request.prompt.token_ids) + num_before + tokens / 2
        return tokens * (1.0 + self._numbers.context * context)

    def of_first_tokens(self, request: RolloutRequest) -> float:
        """Work of computing what a request begins with."""
        return self._numbers.prefill * self.num_first_tokens(request)

    def num_first_tokens(self, request: RolloutRequest) -> int:
        """Return the tokens of the prompt, and of rollouts to go on with."""
        num_tokens = len(request.prompt.token_ids)
        if request.partial is not None:
            num_tokens += int(request.partial.lengths.sum())
        return num_tokens
