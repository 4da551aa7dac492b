"""Routes: the experts that the tokens of a mixture went to in an engine, on their way into a chunk.

On CUDA vLLM returns them itself (`enable_return_routed_experts`, of its second model runner). Its CPU build has both
ends of that way, the callback of the routers and the scheduler's part, and nothing between them: `RouteRecorder` of
`vllm_adapter` is that. So the rest of this package reads one attribute on every device.

A token has a route once it was computed, which for the last one that was sampled nobody has done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nemo_brorl.types import NO_ROUTE, Routes


class RowRoutes(NamedTuple):
    """What is known of the routes of one rollout."""

    earlier: Routes | None  # [R, layers, k] of the response's tokens that it was resumed with
    computed: Routes | None  # [S, layers, k] of what this engine has computed, the prompt's tokens first


def packed_routes(
    rows: Sequence[RowRoutes],
    offsets: Sequence[int],
    num_prompt: int,
) -> Routes | None:
    """Lay out the routes [sum T, layers, k] of responses that lie between `offsets`, end to end; None when no route is
    known.

    A token keeps the route with which it was first computed: by the weights that sampled what comes after it.
    """
    known: list[Routes] = []
    for row in rows:
        for routes in row:
            if routes is not None:
                known.append(routes)
    if not known:
        return None
    first = known[0]
    shape = (offsets[-1], *first.shape[1:])
    packed = np.full(shape, NO_ROUTE, first.dtype)
    for row, start in zip(rows, offsets, strict=False):
        if row.computed is not None:
            own = row.computed[num_prompt:]
            end = start + len(own)
            packed[start:end] = own
        if row.earlier is not None:
            is_known = row.earlier[:, 0, 0] != NO_ROUTE
            places = start + np.flatnonzero(is_known)
            packed[places] = row.earlier[is_known]
    return packed


def as_routes(routed_experts: NDArray[Any], num_experts: int) -> Routes:
    """Convert what vLLM returns (uint8 for up to 256 experts, else uint16) to a format that has NO_ROUTE."""
    dtype = np.min_scalar_type(-num_experts)
    return routed_experts.astype(dtype)
