"""Expert routes: the experts to which each token of a mixture-of-experts model was sent by an engine.

On CUDA vLLM returns them itself (`enable_return_routed_experts` of its second model runner). Its CPU build has the
callback of the routers and the scheduler's part, and nothing in between. `vllm_adapter.RouteRecorder` fills that gap,
so all other modules read one attribute on every device.

A token has a route once the engine has computed it. The token that was sampled last has none. A route takes one byte
for each layer and chosen expert, or two bytes with more than 128 experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nemo_brorl.types import NO_ROUTE, Routes


class RowRoutes(NamedTuple):
    """Known expert routes of one rollout."""

    earlier: Routes | None  # [R, layers, k] of the R response tokens that it was resumed with
    computed: Routes | None  # [S, layers, k] of the S tokens that this engine computed, prompt first


def packed_routes(
    rows: Sequence[RowRoutes],
    offsets: Sequence[int],
    num_prompt: int,
) -> Routes | None:
    """Return the mixture-of-experts routes of several responses end to end, [sum T, layers, k].

    The result is None if no route is known. `offsets` are the boundaries of responses. A token keeps the route with
    which it was first computed, by the weights that sampled the token after it.
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
            positions = start + np.flatnonzero(is_known)
            packed[positions] = row.earlier[is_known]
    return packed


def as_routes(routed_experts: NDArray[Any], num_experts: int) -> Routes:
    """Convert vLLM's expert routes (uint8 for up to 256 experts, else uint16) to a signed dtype that holds NO_ROUTE."""
    dtype = np.min_scalar_type(-num_experts)
    return routed_experts.astype(dtype)
