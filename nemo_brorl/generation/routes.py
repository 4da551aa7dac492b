"""Routes: the experts that the tokens of a mixture went to in an engine, on their way into a chunk.

On CUDA vLLM returns them itself (`enable_return_routed_experts`, of its second model runner). Its CPU build has both
ends of that way, the callback of the routers and the scheduler's part, and nothing between them: `RouteRecorder` is
that. So the rest of this package reads one attribute on every device.

A token has a route once it was computed, which for the last one that was sampled nobody has done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nemo_brorl.types import NO_ROUTE, Int64, Routes


class RowRoutes(NamedTuple):
    """What is known of the routes of one rollout."""

    earlier: Routes | None  # [R, layers, k] of the response's tokens that it was resumed with
    computed: Routes | None  # [S, layers, k] of what this engine has computed, the prompt's tokens first


def packed_routes(
    rows: Sequence[RowRoutes],
    offsets: Sequence[int],
    num_prompt: int,
) -> Routes | None:
    """[sum T, layers, k] of responses that lie between `offsets`, end to end; None when no route is known.

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
    """What vLLM returns (uint8 for up to 256 experts, else uint16) in a format that has NO_ROUTE."""
    dtype = np.min_scalar_type(-num_experts)
    return routed_experts.astype(dtype)


def return_routes(engine: Any) -> None:
    """Make a vllm.LLMEngine of the CPU build return routes, as `enable_return_routed_experts` does elsewhere."""
    from vllm.distributed.aux_output_connector.connector import AuxOutputSchedulerConnector

    engine.model_executor.collective_rpc("record_routes")
    engine.engine_core.engine_core.scheduler.aux_output_connector = AuxOutputSchedulerConnector()


class RouteRecorder:
    """Part of the worker between vLLM's `RoutedExpertsCapturer`, which has the experts of a step's rows, and its
    scheduler, which wants those of each request.

    Routes are kept by the place of a token in the KV cache: what is found there (a prefix that another request has
    computed) has its routes with it. Without asynchronous scheduling or speculation, which the CPU build does not have.
    """

    def __init__(self, runner: Any, vllm_config: Any) -> None:
        from vllm.model_executor.layers.fused_moe.routed_experts_capturer import (
            RoutedExpertsCapturer,
            bind_routed_experts_capturer,
        )

        max_tokens = vllm_config.scheduler_config.max_num_batched_tokens
        self._runner = runner
        self._capturer = RoutedExpertsCapturer(max_tokens, vllm_config)
        bind_routed_experts_capturer(runner.get_model(), self._capturer)
        cache = runner.kv_cache_config
        self._block_size: int = cache.kv_cache_groups[0].kv_cache_spec.block_size
        num_places = cache.num_blocks * self._block_size
        shape = (num_places, *self._capturer.shape_per_token)
        dtype = self._capturer.output_dtype_name
        self._kept = np.zeros(shape, dtype)

    def attach(self) -> None:
        """From now on, every step's output has the routes of its requests."""
        sample_tokens = self._runner.sample_tokens

        def sample_with_routes(*args: Any, **kwargs: Any) -> Any:
            state = self._runner.execute_model_state
            if state is None:
                return sample_tokens(*args, **kwargs)
            routes = self._routes_of(state.scheduler_output)
            output = sample_tokens(*args, **kwargs)
            output.aux_output_connector_output = routes
            return output

        self._runner.sample_tokens = sample_with_routes

    def _routes_of(self, scheduler_output: Any) -> dict[str, Any]:
        """By request: vLLM's AuxRequestOutput, from the first token on that the scheduler has no route of."""
        from vllm.distributed.aux_output_connector.connector import AuxRequestOutput

        num_rows = scheduler_output.total_num_scheduled_tokens
        rows = self._capturer.snapshot_routing_data(num_rows).numpy()
        ends = self._keep(scheduler_output.num_scheduled_tokens, rows)
        wanted = scheduler_output.aux_output_connector_metadata.requests
        outputs = {}
        for request, start in wanted.items():
            places = self._places(request, start, ends[request])
            routes = self._kept[places]
            outputs[request] = AuxRequestOutput(start, routes)
        return outputs

    def _keep(
        self,
        num_scheduled: Mapping[str, int],
        rows: NDArray[Any],
    ) -> dict[str, int]:
        """Keep the routes of a step's rows; by request, how many of its tokens are computed now."""
        batch = self._runner.input_batch
        ends: dict[str, int] = {}
        first_row = 0
        for index, request in enumerate(batch.req_ids):
            last_row = first_row + num_scheduled[request]
            start = int(batch.num_computed_tokens_cpu[index])
            end = start + num_scheduled[request]
            places = self._places(request, start, end)
            self._kept[places] = rows[first_row:last_row]
            ends[request] = end
            first_row = last_row
        return ends

    def _places(
        self,
        request: str,
        start: int,
        end: int,
    ) -> Int64:
        """Where tokens [start, end) of a request lie in the KV cache."""
        state = self._runner.requests[request]
        blocks = np.array(state.block_ids[0], np.int64)
        positions = np.arange(start, end)
        numbers, within = np.divmod(positions, self._block_size)
        return blocks[numbers] * self._block_size + within
