"""How long responses will be, from how long they were. Pure: no clock, no randomness."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nemo_brorl.types import Bool, Int32, RolloutRequest

_BINS_PER_OCTAVE = 4  # bins of lengths are 19 % wide
_NUM_BINS = 25 * _BINS_PER_OCTAVE  # up to 2^25 tokens
_EDGES = 2.0 ** (np.arange(1, _NUM_BINS + 1) / _BINS_PER_OCTAVE)  # upper ends


@dataclass(frozen=True)
class LengthForecast:
    """Response tokens of one rollout."""

    expected: float
    upper: float  # exceeded with the probability that was asked for


class LengthHistory:
    """What is known about the lengths of responses, by task and by prompt.

    A task has a histogram over bins that grow by 19 %, with the tokens in each, so that means are exact. Old rollouts fade: each
    counts half after `half_life` more of its task. A prompt has its mean alone, of its last `half_life` rollouts or so; the
    `max_prompts` seen last are kept. A forecast takes the prompt's mean as far as rollouts support it, `task_weight` rollouts of
    the task beside it. Before anything was seen, half of what is allowed is expected.

    A response that was cut off is longer than what was seen of it: it counts with what the task's longer ones came to on average.
    """

    def __init__(self, half_life: float = 16_384, max_prompts: int = 4096, task_weight: float = 8.0) -> None:
        self._half_life = half_life
        self._max_prompts = max_prompts
        self._task_weight = task_weight
        self._counts: dict[str, NDArray[np.float64]] = {}  # task → [bins] rollouts
        self._tokens: dict[str, NDArray[np.float64]] = {}  # task → [bins] their tokens
        self._prompts: OrderedDict[str, tuple[float, float]] = OrderedDict()  # prompt → (rollouts, tokens), last seen last

    def observe(self, task: str, prompt: str, lengths: Int32, is_cut: Bool | None = None) -> None:
        """Responses of a prompt came to an end. is_cut: [n] the ones ended before they had to, by a deadline or a cut."""
        if len(lengths) == 0:
            return
        tokens = lengths.astype(np.float64)
        if is_cut is not None and is_cut.any():
            tokens[is_cut] = [length + self._remaining(task, length) for length in tokens[is_cut]]
        counts = self._counts.setdefault(task, np.zeros(_NUM_BINS))
        sums = self._tokens.setdefault(task, np.zeros(_NUM_BINS))
        fading = 0.5 ** (len(tokens) / self._half_life)
        counts *= fading
        sums *= fading
        bins = np.searchsorted(_EDGES, tokens, side="right").clip(0, _NUM_BINS - 1)
        np.add.at(counts, bins, 1.0)
        np.add.at(sums, bins, tokens)
        num, total = self._prompts.pop(prompt, (0.0, 0.0))
        self._prompts[prompt] = (num * fading + len(tokens), total * fading + float(tokens.sum()))
        while len(self._prompts) > self._max_prompts:
            self._prompts.popitem(last=False)

    def predict(self, task: str, prompt: str, max_tokens: int, quantile: float = 0.95) -> LengthForecast:
        """Of a whole response that may take `max_tokens`."""
        counts = self._counts.get(task)
        if counts is None or not counts.any():
            return LengthForecast(max_tokens / 2, float(max_tokens))
        mean = float(self._tokens[task].sum() / counts.sum())
        num, total = self._prompts.get(prompt, (0.0, 0.0))
        expected = (self._task_weight * mean + total) / (self._task_weight + num)
        place = int(np.searchsorted(np.cumsum(counts), quantile * counts.sum()))
        upper = float(_EDGES[min(place, _NUM_BINS - 1)]) * expected / mean
        return LengthForecast(min(expected, max_tokens), min(max(upper, expected), max_tokens))

    def forecast(self, request: RolloutRequest) -> float:
        """Tokens still to be sampled for one rollout of a request, on average; for `ChunkPlacement`."""
        prompt, limit = request.prompt, request.sampling.max_tokens
        if request.resumed is None:
            return self.predict(prompt.task, prompt.uid, limit).expected
        left = [min(self._remaining(prompt.task, float(length), limit), limit - float(length)) for length in request.resumed.lengths]
        return float(np.mean(left))

    def state_dict(self) -> dict[str, Any]:
        """JSON-able. Bins that are empty to the end are left out."""
        tasks = {}
        for task, counts in self._counts.items():
            last = int(np.flatnonzero(counts)[-1]) + 1 if counts.any() else 0
            tasks[task] = {"counts": counts[:last].tolist(), "tokens": self._tokens[task][:last].tolist()}
        return {"tasks": tasks, "prompts": {prompt: list(value) for prompt, value in self._prompts.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""
        self._counts = {task: _padded(content["counts"]) for task, content in state["tasks"].items()}
        self._tokens = {task: _padded(content["tokens"]) for task, content in state["tasks"].items()}
        self._prompts = OrderedDict((prompt, (float(num), float(total))) for prompt, (num, total) in state["prompts"].items())

    def _remaining(self, task: str, length: float, limit: float = math.inf) -> float:
        """Tokens that responses of at least `length` have beyond it, on average; `length` again where none was seen."""
        counts = self._counts.get(task)
        first = int(np.searchsorted(_EDGES, length, side="right")) + 1  # bins that lie above it whole
        if counts is None or first >= _NUM_BINS or counts[first:].sum() == 0:
            return min(max(length, 1.0), limit / 2)
        return float(self._tokens[task][first:].sum() / counts[first:].sum()) - length


def _padded(values: list[float]) -> NDArray[np.float64]:
    padded = np.zeros(_NUM_BINS)
    padded[: len(values)] = values
    return padded
