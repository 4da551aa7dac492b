"""What chunks cost an engine, in decoded tokens."""

from __future__ import annotations

from nemo_brorl.config.rollouts import PlacementConfig
from nemo_brorl.ports import Forecast
from nemo_brorl.types import RolloutRequest


class ChunkCosts:
    """A chunk costs its rollouts times the tokens forecast for one of them, each of which costs `context_cost` more for
    every token it attends to, and its prompt times `prefill_cost` on an engine that does not hold the prompt."""

    def __init__(self, config: PlacementConfig, forecast: Forecast) -> None:
        self._config = config
        self._forecast = forecast

    def of_rollout(self, request: RolloutRequest, age: float = 0.0) -> float:
        """Work that is left of one rollout of a request, which have `age` tokens."""
        tokens = self._forecast.tokens(request, age)
        num_before = age
        if request.partial is not None and not age:
            num_before = float(request.partial.lengths.mean())
        # Of a token, on average: half of those to come lie before it.
        context = len(request.prompt.token_ids) + num_before + tokens / 2
        return tokens * (1.0 + self._config.context_cost * context)

    def of_first_tokens(self, request: RolloutRequest) -> float:
        """Work of computing what a request begins with."""
        return self._config.prefill_cost * self.num_first_tokens(request)

    def num_first_tokens(self, request: RolloutRequest) -> int:
        """Return the tokens of the prompt, and of rollouts to go on with."""
        num_tokens = len(request.prompt.token_ids)
        if request.partial is not None:
            num_tokens += int(request.partial.lengths.sum())
        return num_tokens
