"""Policy ranks whose gradients and weights are exchanged in many small buckets, with notes of when."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.support.policy_ranks import Outcome, Scenario, play

BUCKET_SIZE = 3000  # numbers; Megatron's own is 40 million


def play_in_buckets(scenario: Scenario) -> tuple[Outcome, list[str]]:
    """One rank's part of a scenario, and what happened to its buckets: "reduce", "gather" and "gather at once" where
    one was sent off, "backward is over" where the passes of a mini-batch had ended."""
    from megatron.core.distributed import distributed_data_parallel as ddp

    from nemo_brorl.policy.model import model
    from nemo_brorl.policy.state import optimizer

    events: list[str] = []
    settings = optimizer.DistributedDataParallelConfig
    optimizer.DistributedDataParallelConfig = partial(settings, bucket_size=BUCKET_SIZE)
    group = ddp.partition_buckets.__globals__["_ParamAndGradBucketGroup"]
    group.start_grad_sync = noted(events, "reduce", group.start_grad_sync)
    group.start_param_sync = noted(events, "gather", group.start_param_sync)
    model.finalize_model_grads = noted(events, "backward is over", model.finalize_model_grads)
    return play(scenario), events


def noted(events: list[str], event: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose calls are events."""

    def call(*arguments: Any, **settings: Any) -> Any:
        is_forced = settings.get("force_sync", False)
        events.append(f"{event} at once" if is_forced else event)
        return function(*arguments, **settings)

    return call
