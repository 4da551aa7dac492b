"""Arrays of a chunk's responses: cut into turns, put together anew, with what environments said behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from nemo_brorl.types import NO_ROUTE, ChunkArrays, Routes

NO_LOG_PROB = 0.0  # of a token that was not sampled


def turn_bounds(data: ChunkArrays, start: int, end: int) -> list[tuple[int, int]]:
    """Where the turns of the response in [start, end) lie: its stretches of sampled tokens, one at least."""
    if data.is_sampled is None or start == end:
        return [(start, end)]
    is_sampled = data.is_sampled[start:end]
    edges = np.flatnonzero(np.diff(is_sampled, prepend=False, append=False)) + start
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def split(data: ChunkArrays, values: np.ndarray) -> Iterator[np.ndarray]:
    """Values of the tokens of each response."""
    for start, end in pairwise(data.offsets.tolist()):
        yield values[start:end]


def with_observations(data: ChunkArrays, observations: Sequence[Sequence[int]]) -> ChunkArrays:
    """Responses, each with its observation behind it."""
    rows = range(len(observations))
    return taken(data, rows, observations)


def taken(
    data: ChunkArrays,
    rows: Sequence[int],
    observations: Sequence[Sequence[int]] = (),
) -> ChunkArrays:
    """Some responses of a chunk; with `observations`, by row, each with its own behind it."""
    token_ids: list[int] = []
    log_probs: list[float] = []
    is_sampled: list[bool] = []
    places: list[int] = []  # of each token in `data`; -1: observed now
    offsets = [0]
    masks = data.is_sampled
    if masks is None:
        masks = np.ones(len(data.token_ids), bool)
    for row in rows:
        response = slice(*data.offsets[row : row + 2])
        places += range(response.start, response.stop)
        token_ids += data.token_ids[response].tolist()
        log_probs += data.log_probs[response].tolist()
        is_sampled += masks[response].tolist()
        if observations:
            observed = observations[row]
            token_ids += observed
            log_probs += [NO_LOG_PROB] * len(observed)
            is_sampled += [False] * len(observed)
            places += [-1] * len(observed)
        offsets.append(len(token_ids))
    has_mask = bool(observations) or data.is_sampled is not None
    return ChunkArrays(
        token_ids=np.array(token_ids, np.int32),
        log_probs=np.array(log_probs, np.float32),
        offsets=np.array(offsets, np.int64),
        is_sampled=np.array(is_sampled, bool) if has_mask else None,
        routes=_routes_at(places, data.routes),
        prompt_routes=data.prompt_routes,
    )


def _routes_at(places: Sequence[int], routes: Routes | None) -> Routes | None:
    """Routes of the tokens at these places; at -1 a route that is not known."""
    if routes is None:
        return None
    shape = (1, *routes.shape[1:])
    unknown = np.full(shape, NO_ROUTE, routes.dtype)
    with_last = np.concatenate([routes, unknown])
    return with_last[places]
