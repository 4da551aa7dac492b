"""Keep the tokens and counters of lean requests in arrays: of those that only decode, and need no more than that.

`lean_scheduler.py` schedules them. This module uses fields of vLLM's `Request`, as 0.32.0 has them, and imports neither
torch nor vllm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nemo_brorl.types import Float32, Int32, Int64

if TYPE_CHECKING:
    from vllm.v1.request import Request

NO_TOKEN = -1
MAX_STOP_TOKENS = 8  # stop tokens of a lean request, its end-of-sequence token included


class Sampled(NamedTuple):
    """Tokens of an unfinished request that no output has had yet."""

    token_ids: Int32
    log_probs: Float32


class LeanRequests:
    """Tokens and counters of the lean requests, one slot each. Counts of tokens include the prompt's."""

    def __init__(self, num_slots: int) -> None:
        self.slots: dict[str, int] = {}  # request id → slot, in running order
        self.ids: list[str] = []
        self.order: Int64 = np.zeros(0, np.int64)  # their slots
        self.requests: list[Request] = [None] * num_slots
        self.num_prompt = np.zeros(num_slots, np.int32)
        self.num_computed = np.zeros(num_slots, np.int32)  # tokens whose keys are computed or being computed
        self.num_tokens = np.zeros(num_slots, np.int32)
        self.num_in_flight = np.zeros(num_slots, np.int32)  # steps without an answer
        self.max_tokens = np.zeros(num_slots, np.int32)
        self.stop_tokens = np.full((num_slots, MAX_STOP_TOKENS), NO_TOKEN, np.int64)
        self._first = np.zeros(num_slots, np.int32)  # tokens when the request became lean
        self._num_known = np.zeros(num_slots, np.int32)  # tokens that vLLM's Request has
        self._token_ids = np.zeros((num_slots, 64), np.int32)  # since the request became lean
        self._log_probs = np.zeros((num_slots, 64), np.float32)
        self._free = list(range(num_slots))

    def add(self, request: Request, stop_tokens: list[int]) -> None:
        """Give a request a slot in the arrays of sampled tokens, behind the other requests in running order.

        Call `sort` after the last request was added.
        """
        slot = self._free.pop()
        self.slots[request.request_id] = slot
        self.requests[slot] = request
        self.num_prompt[slot] = request.num_prompt_tokens
        self.num_computed[slot] = request.num_computed_tokens
        self.num_in_flight[slot] = request.num_output_placeholders
        self.max_tokens[slot] = request.num_prompt_tokens + request.max_tokens
        self.stop_tokens[slot] = NO_TOKEN
        self.stop_tokens[slot, : len(stop_tokens)] = stop_tokens
        for counts in (self.num_tokens, self._first, self._num_known):
            counts[slot] = request.num_tokens

    def remove(self, request_id: str) -> None:
        """Free the slot of a request that is handed back to vLLM's scheduler or has ended.

        Call `sort` after the last request was removed.
        """
        self._free.append(self.slots.pop(request_id))

    def sort(self) -> None:
        """Update `ids` and `order`, the running order of requests that bypass vLLM's scheduler, after changes."""
        self.ids = list(self.slots)
        self.order = np.fromiter(self.slots.values(), np.int64, len(self.slots))

    def append(self, slots: Int64, token_ids: Int64, log_probs: Float32 | None) -> None:
        """Append one sampled token to the token array of each request in these slots."""
        columns = self.num_tokens[slots] - self._first[slots]
        if columns.max(initial=0) >= self._token_ids.shape[1]:
            self._token_ids = np.concatenate([self._token_ids, np.zeros_like(self._token_ids)], 1)
            self._log_probs = np.concatenate([self._log_probs, np.zeros_like(self._log_probs)], 1)
        self._token_ids[slots, columns] = token_ids
        if log_probs is not None:
            self._log_probs[slots, columns] = log_probs
        self.num_tokens[slots] += 1
        self.num_in_flight[slots] -= 1

    def num_sampled(self, slot: int) -> int:
        """Return the number of tokens sampled since the request left vLLM's scheduler."""
        return int(self.num_tokens[slot] - self._first[slot])

    def sampled(self, slot: int) -> Sampled:
        """Return copies of the tokens and log-probs sampled since the request left vLLM's scheduler."""
        count = self.num_sampled(slot)
        return Sampled(self._token_ids[slot, :count].copy(), self._log_probs[slot, :count].copy())

    def update_request(self, slot: int, hashes_blocks: bool = True) -> Request:
        """Append missing sampled tokens to vLLM's Request object, and the hashes of KV cache blocks that they fill."""
        request = self.requests[slot]
        first = int(self._num_known[slot] - self._first[slot])
        tokens = self._token_ids[slot, first : self.num_sampled(slot)].tolist()
        if tokens and hashes_blocks:
            request.append_output_token_ids(tokens)
        elif tokens:
            request._output_token_ids.extend(tokens)
            request._all_token_ids.extend(tokens)
        self._num_known[slot] = self.num_tokens[slot]
        request.num_computed_tokens = int(self.num_computed[slot])
        return request
