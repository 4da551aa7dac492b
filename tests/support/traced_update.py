"""Peak memory of one policy update of one rank, traced over tensors without numbers (`fake_rank` says what that cannot
show): `python -m tests.support.traced_update LIBRARY CASES`, CASES a JSON list of the fields of `Case`, prints what was
alive at the peak of each, by kind, in bytes.

An update scores rows under the reference and, of later mini-batches, under the current weights, and takes a step for
each of two mini-batches. The weights of the reference are in host memory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from brorl_launcher.planner.hardware import configured_hardware
from brorl_launcher.planner.known_models import find_shape
from brorl_launcher.planner.plan import Plan, make_plan

from nemo_brorl.config.load import load_config
from tests.support import fake_cuda

if TYPE_CHECKING:
    from tests.support.fake_rank import FakeValues

STATE = ("weights", "gradients", "master weights, Adam")
RESPONSE = 4096  # tokens; a row has as many responses as fill it
PROMPT = 256


@dataclass(frozen=True)
class Case:
    """What is traced: a rank of a recipe, with fewer layers or all (0)."""

    recipe: str
    overrides: tuple[str, ...] = ()
    num_layers: int = 0
    stage: int = 0

    def plan(self) -> Plan:
        """The planner's view of it, which also chooses sizes that are left open."""
        config = load_config(self.recipe, list(self.overrides))
        shape = find_shape(config)
        if self.num_layers:
            shape = replace(shape, num_layers=self.num_layers)
            if shape.moe is not None:
                kinds = shape.moe.is_moe_layer[: self.num_layers]
                shape = replace(shape, moe=replace(shape.moe, is_moe_layer=kinds))
        return make_plan(config, configured_hardware(config, "h100"), shape=shape)


def trace(case: Case, watch: FakeValues) -> dict[str, float]:
    """Bytes at the peak of an update, by kind."""
    from torch._subclasses import FakeTensorMode

    from nemo_brorl.config.parallel_layout import layout_of
    from nemo_brorl.policy.rank.update import Update
    from tests.support import fake_rank

    plan = case.plan()
    layout = layout_of(plan.config)
    tokens = plan.micro.budget
    spread = layout.tensor if layout.sequence_parallel else 1
    fake_rank.send_to_nobody((tokens // layout.context // spread, 1, plan.shape.hidden_size))
    if plan.shape.moe is not None:
        watch.experts_chosen = plan.shape.moe.experts_per_token / plan.shape.moe.num_experts

    class Traced(Update):
        def _mini_batches(self) -> list[list[Any]]:
            return [[self.state.row(_full_row(tokens), 1.0) for _ in range(num_rows)] for _ in range(2)]

        def _metrics(self, norms: Sequence[float]) -> dict[str, float]:
            assert len(norms) == 2, "steps were left out"
            return {}

    num_rows = layout.pipeline  # as many as are under way at a time
    rank = case.stage * layout.tensor * layout.context * layout.data
    with _ranks(layout, rank), FakeTensorMode(allow_non_fake_inputs=True), watch:
        state = _state(plan, layout, watch)
        update = Traced(state, SimpleNamespace(mismatch=lambda row: {}), _UpdatePlan(plan, num_rows))
        update.gain.add = lambda *arguments: None  # a number for each response
        watch.restart()
        with watch.counted_as("activations"):
            update.run()
        found = dict(watch.at_peak)
    watch.forget()
    return {kind: size for kind, size in found.items() if size}


def _full_row(tokens: int) -> list[Any]:
    """A prompt and responses that fill a row."""
    from nemo_brorl.policy.rows.packed_rows import PackedGroup, Response

    responses: list[Response] = []
    left = tokens - PROMPT
    while left > 0:
        length = min(left, RESPONSE)
        left -= length
        ids = np.full(length, len(responses), np.int32)  # what begins alike would be read once
        responses.append(Response(0, len(responses), ids, np.zeros(length, np.float32), 0.5, is_fresh=True))
    return [PackedGroup(np.ones(PROMPT, np.int32), tuple(responses))]


class _UpdatePlan(SimpleNamespace):
    """What an update reads of its plan beside its rows."""

    def __init__(self, plan: Plan, num_rows: int) -> None:
        objective = plan.config.algorithm.loss
        super().__init__(version=1, objective=objective, learning_rate=1e-6, loss_scale=1.0, mini_batches=[None] * 2)
        self.groups = [SimpleNamespace(task="sums")]
        self.num = num_rows

    def num_loss_tokens(self, mini_batch: int) -> int:
        return self.num * RESPONSE

    def num_responses(self, mini_batch: int) -> int:
        return self.num

    num_turns = num_responses


@contextmanager
def _ranks(layout: Any, rank: int) -> Iterator[None]:
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from nemo_brorl.policy.process import process_groups
    from nemo_brorl.policy.process.device import Device

    process_groups.open_groups(layout, rank, FakeStore(), Device(torch.device("cuda", 0), "fake"), seed=1)
    try:
        yield
    finally:
        process_groups.close_groups()


def _state(plan: Plan, layout: Any, watch: FakeValues) -> Any:
    """As `build_rank_state`, without a model folder."""
    import torch

    from nemo_brorl.config.rank_settings import RankSettings
    from nemo_brorl.policy.model.model import build_model
    from nemo_brorl.policy.process.device import Device
    from nemo_brorl.policy.state.optimizer import build_optimizer, wrap_model
    from nemo_brorl.policy.state.rank_state import RankState, _row_settings, choose_references

    config, shape = plan.config, plan.shape
    device = Device(torch.device("cuda", 0), "fake")
    with torch.device("cuda"):
        models = build_model(config.policy, shape, layout)
    chunks = wrap_model(models)
    for model in models:
        watch.call("weights", model.parameters())
    for chunk in chunks:
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
            watch.call("weights", [buffer.param_data])
            watch.call("gradients", [buffer.grad_data])
    with watch.counted_as("master weights, Adam"):
        optimizer = build_optimizer(chunks, config.policy.optim)
    settings = RankSettings.from_config(config)
    references = choose_references(settings, models, shape)
    rows = _row_settings(settings, device, shape)
    return RankState(settings, device, shape, models, chunks, optimizer, references, rows)


def main() -> None:
    fake_cuda.use(Path(sys.argv[1]))
    from tests.support import fake_rank

    watch = fake_rank.FakeValues()
    fake_rank.show_gpu(watch)
    fake_rank.prepare_megatron(watch)
    found = []
    for fields in json.loads(sys.argv[2]):
        found.append(trace(Case(**fields), watch))
        print(fields, found[-1], file=sys.stderr)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
