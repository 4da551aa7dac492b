"""Costs of chunks for an engine, in decoded tokens."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_brorl.ports import Forecast
from nemo_brorl.types import RolloutRequest


@dataclass(frozen=True)
class PlacementCosts:
    """Cost parameters of one placement. The defaults were tuned on seeds 0 and 1 of lab/studies/cluster_model."""

    prefill: float = 0.2  # work of one prompt token, in decoded tokens, on each engine that computes the prompt
    context: float = (
        5e-4  # work of attending to one more token, over decoding one token without context in a full batch
    )
    concentration: float = 0.1  # share of a chunk's work added for each other chunk of its prompt on the engine
    cached_prompt_tokens: int = 200_000  # prompt tokens that an engine's prefix cache keeps, last used first
    can_steal: bool = True  # idle engines take over chunks that other engines have not started


class ChunkCosts:
    """Cost model of chunks, in decoded tokens.

    A chunk costs its number of rollouts times the forecast tokens of one rollout. Each token costs `context` more for
    every token that it attends to. On an engine that does not hold the prompt, the prompt's tokens cost `prefill` each.
    """

    def __init__(self, numbers: PlacementCosts, forecast: Forecast) -> None:
        self._numbers = numbers
        self._forecast = forecast

    def of_rollout(self, request: RolloutRequest, age: float = 0.0) -> float:
        """Return the remaining work of a rollout that has sampled `age` tokens, counted in decoded tokens."""
        tokens = self._forecast.tokens(request, age)
        num_before = age
        if request.partial is not None and not age:
            num_before = float(request.partial.lengths.mean())
        # Mean context of a token: half of the remaining tokens precede it.
        context = len(request.prompt.token_ids) + num_before + tokens / 2
        return tokens * (1.0 + self._numbers.context * context)

    def of_first_tokens(self, request: RolloutRequest) -> float:
        """Return the work of prefilling a request's prompt and the tokens that its rollouts resume from.

        The work is counted in decoded tokens.
        """
        return self._numbers.prefill * self.num_first_tokens(request)

    def num_first_tokens(self, request: RolloutRequest) -> int:
        """Return the number of tokens in a request's prompt and in the partial rollouts that it resumes."""
        num_tokens = len(request.prompt.token_ids)
        if request.partial is not None:
            num_tokens += int(request.partial.lengths.sum())
        return num_tokens
