"""Router replay: tokens go to the experts of their engine, weights and gradients are the router's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.policy.rows.packed_rows import GroupArrays, PackedGroup, Response, Row, RowSettings
from nemo_brorl.policy.rows.row_builder import build_row
from nemo_brorl.types import NO_ROUTE, ChunkArrays
from tests.support.closeness import GRADIENT_BOUND, share_of_largest
from tests.support.model_factory import make_config, make_model, make_plan

pytestmark = pytest.mark.numbers

NewLearner = Callable[[Path, BroRLConfig], Any]
EXPERTS = 8  # of `make_model`


@pytest.fixture(scope="module")
def moe_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("moe"), "qwen3_moe", tie_word_embeddings=False)


def replay_of(layer_number: int = 1, sequence_parallel: bool = False) -> Any:
    from nemo_brorl.policy.model.router_replay import RouterReplay

    class Router:
        config = make_config(sequence_parallel=sequence_parallel).policy

    router: Any = Router()
    router.layer_number = layer_number
    return RouterReplay(router)


def choose(replay: Any, scores: Tensor) -> tuple[Tensor, Tensor]:
    def compute_topk(scores: Tensor, topk: int, *groups: Any) -> tuple[Tensor, Tensor]:
        values, indices = scores.topk(topk, dim=1)
        return values, indices

    chosen: tuple[Tensor, Tensor] = replay.get_replay_topk(scores, 2, None, None, compute_topk)
    return chosen


def counts_of(replay: Any) -> list[int]:
    """Tokens, those that were replayed, and of them those that changed."""
    return [int(replay.num_tokens), int(replay.num_replayed), int(replay.num_changed)]


def routes_of(*tokens: list[int]) -> Tensor:
    """[T, 1 layer, 2]"""
    return torch.tensor(tokens, dtype=torch.int16)[:, None]


def test_a_token_goes_where_its_engine_sent_it_and_one_without_a_route_where_its_router_would() -> None:
    scores = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]])
    replay = replay_of()
    replay.follow(routes_of([3, 0], [2, 3], [-1, -1]), is_training=True)
    values, chosen = choose(replay, scores)
    assert chosen.tolist() == [[3, 0], [2, 3], [0, 1]]
    assert values.tolist() == [pytest.approx([0.1, 0.4]), pytest.approx([0.3, 0.4]), pytest.approx([0.4, 0.3])]
    assert counts_of(replay) == [3, 2, 1], "the second went to its router's own two, in another order"


def test_rows_without_routes_and_passes_that_only_score_count_nothing_as_replayed() -> None:
    scores = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    replay = replay_of()
    replay.follow(None, is_training=True)
    assert choose(replay, scores)[1].tolist() == [[0, 1]]
    assert counts_of(replay) == [1, 0, 0]
    replay.follow(routes_of([2, 3]), is_training=False)
    with torch.no_grad():
        assert choose(replay, scores)[1].tolist() == [[2, 3]]
        assert choose(replay, scores)[1].tolist() == [[2, 3]], "nothing was kept for a backward pass"
    assert counts_of(replay) == [1, 0, 0]


def test_the_gradient_reaches_the_scores_of_the_experts_that_were_replayed() -> None:
    scores = torch.tensor([[0.4, 0.3, 0.2, 0.1]], requires_grad=True)
    replay = replay_of()
    replay.follow(routes_of([3, 0]), is_training=True)
    values, _ = choose(replay, scores)
    (values * torch.tensor([2.0, 5.0])).sum().backward()
    assert scores.grad is not None
    assert scores.grad.tolist() == [[5.0, 0.0, 0.0, 2.0]]


def test_a_row_that_is_recomputed_gets_its_own_routes_though_others_came_between() -> None:
    scores = torch.ones(1, 4)
    replay = replay_of()
    first, second = routes_of([0, 1]), routes_of([2, 3])
    with torch.no_grad():  # as checkpointed layers run first
        replay.follow(first, is_training=True)
        choose(replay, scores)
        replay.follow(second, is_training=True)
        choose(replay, scores)
    assert [choose(replay, scores)[1].tolist() for _ in range(2)] == [[[0, 1]], [[2, 3]]]
    assert counts_of(replay)[0] == 2, "a token is counted once"


def test_a_router_reads_the_routes_of_its_layer() -> None:
    routes = torch.tensor([[[0, 1], [2, 3]]], dtype=torch.int16)  # one token, two layers
    replay = replay_of(layer_number=2)
    replay.follow(routes, is_training=True)
    assert choose(replay, torch.ones(1, 4))[1].tolist() == [[2, 3]]


def routed(tokens: list[int], index: int = 0) -> Response:
    """A response whose tokens went to experts with their own numbers; its last token was not computed."""
    token_ids = np.array(tokens, np.int32)
    routes = np.repeat(token_ids[:, None, None], 2, axis=2).astype(np.int8)
    routes[-1] = NO_ROUTE
    return Response(0, index, token_ids, np.zeros(len(tokens), np.float32), 0.0, is_fresh=True, routes=routes)


def prompt_routes(token_ids: list[int]) -> Any:
    return np.repeat(np.array(token_ids, np.int8)[:, None, None], 2, axis=2)


@pytest.mark.parametrize("min_shared_tokens", [0, 2])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_routes_lie_in_a_row_where_their_tokens_do(min_shared_tokens: int, num_ranks: int) -> None:
    """Three responses of a prompt, two of which begin alike; 7 stands twice unless it is shared."""
    responses = (routed([5, 6, 7, 8]), routed([5, 6, 9, 10, 11], 1), routed([12], 2))
    packed_group = PackedGroup(np.array([1, 2, 3], np.int32), responses, prompt_routes([1, 2, 3]))
    known = []
    for rank in range(num_ranks):
        settings = RowSettings(torch.device("cpu"), 1, rank, num_ranks, min_shared_tokens=min_shared_tokens)
        row = build_row([packed_group], 1.0, settings)
        assert row.packing.routes is not None
        assert row.packing.routes.shape == (row.token_ids.size(1), 1, 2)
        for token, route in zip(row.token_ids[0].tolist(), row.packing.routes[:, 0].tolist(), strict=True):
            assert route in ([token, token], [-1, -1])
            known += [token] if route[0] >= 0 else []
    shared = [5, 6] if min_shared_tokens else [5, 5, 6, 6]
    assert sorted(known) == [1, 2, 3, *shared, 7, 9, 10], "8, 11 and 12 are last tokens"


def test_a_prompt_or_response_without_routes_leaves_those_of_the_others() -> None:
    silent = replace(routed([5, 6]), routes=None)
    row = build_row([PackedGroup(np.array([1], np.int32), (silent,))], 1.0, RowSettings(torch.device("cpu")))
    assert row.packing.routes is None
    packed_group = PackedGroup(np.array([1], np.int32), (silent, routed([7, 8], 1)), prompt_routes([1]))
    row = build_row([packed_group], 1.0, RowSettings(torch.device("cpu")))
    assert row.packing.routes is not None
    found = dict(zip(row.token_ids[0].tolist(), row.packing.routes[:, 0, 0].tolist(), strict=True))
    assert found == {1: 1, 5: -1, 6: -1, 7: 7, 8: -1}


def test_routes_stay_on_the_host_in_the_engines_format_while_other_parts_of_a_row_are_on_the_device() -> None:
    """`meta` stands for a GPU, on which rows of a whole update lie at once; with 768 bytes a token of Qwen3-30B-A3B
    their routes were 38 GiB of it. This cannot show how long the copy of a row takes."""
    packed_group = PackedGroup(np.array([1], np.int32), (routed([7, 8]),), prompt_routes([1]))
    row = build_row([packed_group], 1.0, RowSettings(torch.device("meta")))
    assert row.token_ids.device.type == "meta"
    assert row.packing.routes is not None
    assert row.packing.routes.device.type == "cpu"
    assert row.packing.routes.dtype == torch.int8


def test_a_group_takes_its_prompts_routes_from_the_first_chunk_that_has_them() -> None:
    tokens = np.array([1, 2], np.int32)
    one = ChunkArrays(tokens, np.zeros(2, np.float32), np.array([0, 2]))
    other = replace(one, routes=prompt_routes([3, 4]), prompt_routes=prompt_routes([5]))
    group = GroupArrays([one, other])
    assert group.routes(0) is None
    assert group.routes(1).tolist() == [[[3, 3]], [[4, 4]]]
    assert group.prompt_routes().tolist() == [[[5, 5]]]


def random_routes(num_tokens: int, seed: int) -> Tensor:
    """[T, 4 layers, 2] different experts, a tenth of the tokens without."""
    random = np.random.default_rng(seed)
    routes = random.permuted(np.tile(np.arange(EXPERTS), (num_tokens, 4, 1)), axis=2)[..., :2]
    routes[random.random(num_tokens) < 0.1] = -1
    return torch.from_numpy(routes.astype(np.int16))


def with_routes(row: Row, routes: Tensor | None) -> Row:
    return replace(row, packing=replace(row.packing, routes=routes))


def gradients(learner: Any, routes: Callable[[int, int], Tensor | None]) -> dict[str, Tensor]:
    """Of the sum of log-probs over two rows; `routes` by (tokens, number of the row)."""
    from nemo_brorl.policy.rank.pipeline import train_rows

    packed_groups = [PackedGroup(np.array([3, 4, 5], np.int32), (routed([seed, 7, 8, 9]),)) for seed in (10, 20)]
    rows = []
    for number, packed_group in enumerate(packed_groups):
        row = learner.state.row([packed_group], 1.0)
        rows.append(with_routes(row, routes(row.token_ids.size(1), number)))
    train_rows(learner.state.chunks, rows, lambda index, row, scores: (scores.log_probs.sum(), {}))
    return {name: param.main_grad.clone() for name, param in learner.state.models[0].named_parameters()}


def own_routes(learner: Any, packed_group: PackedGroup) -> Tensor:
    """[T, 4 layers, 2] where the routers send a row by themselves."""
    from nemo_brorl.policy.rank.pipeline import score_rows

    maps: list[Tensor] = []
    hooks = []
    for layer in learner.state.models[0].decoder.layers:
        hook = layer.mlp.router.register_forward_hook(lambda module, inputs, output: maps.append(output[1]))
        hooks.append(hook)
    score_rows(learner.state.chunks, [with_routes(learner.state.row([packed_group], 1.0), None)])
    for hook in hooks:
        hook.remove()
    return torch.stack([chosen.nonzero()[:, 1].view(-1, 2) for chosen in maps], dim=1).short()


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputing_changes_no_gradient_of_replayed_rows(
    recompute: str, moe_folder: Path, new_learner: NewLearner
) -> None:
    config = make_config()
    config.policy.moe.router_replay = True
    kept = gradients(new_learner(moe_folder, config), random_routes)
    config.policy.recompute = recompute
    found = gradients(new_learner(moe_folder, config), random_routes)
    own = gradients(new_learner(moe_folder, config), lambda num_tokens, seed: None)
    for name, grad in kept.items():
        assert share_of_largest(found[name], grad, at_least=1.0) <= GRADIENT_BOUND, name
    router = "decoder.layers.0.mlp.router.weight"
    assert (own[router] - kept[router]).abs().max() > 1e-2 * kept[router].abs().max()


def test_a_routers_own_choice_replayed_changes_nothing(moe_folder: Path, new_learner: NewLearner) -> None:
    config = make_config()
    config.policy.moe.router_replay = True
    learner = new_learner(moe_folder, config)
    own = {}
    for number, first in enumerate((10, 20)):
        own[number] = own_routes(learner, PackedGroup(np.array([3, 4, 5], np.int32), (routed([first, 7, 8, 9]),)))
    chosen = gradients(learner, lambda num_tokens, number: None)
    replayed = gradients(learner, lambda num_tokens, number: own[number])
    for name, grad in chosen.items():
        assert torch.equal(grad, replayed[name]), name
    counts = [counts_of(replay) for replay in learner.state.models[0].router_replays]
    assert counts == [[2 * 2 * 7, 2 * 7, 0]] * 4, "two passes over two rows of seven tokens"


def test_an_update_says_what_share_was_replayed_and_changed(moe_folder: Path, new_learner: NewLearner) -> None:
    """Routes of a plan's responses, not of its prompts: each response lacks that of its last token."""
    config = make_config()
    config.policy.moe.router_replay = True
    plan = make_plan(num_mini_batches=1, micro_batches=1)
    groups = []
    num_known = 0
    for group in plan.groups:
        chunks = []
        for number, chunk in enumerate(group.chunks):
            routes = random_routes(len(chunk.token_ids), number).numpy()
            routes[chunk.offsets[1:] - 1] = NO_ROUTE
            num_known += int((routes[:, 0, 0] != NO_ROUTE).sum())
            chunks.append(replace(chunk, routes=routes.astype(np.int8)))
        groups.append(replace(group, chunks=tuple(chunks)))
    plan = replace(plan, groups=tuple(groups))
    (micro,) = plan.mini_batches[0][0]
    metrics = new_learner(moe_folder, config).update(plan).metrics
    # the row may be padded, and responses that begin alike stand there once
    assert metrics["policy/router_replayed"] == pytest.approx(num_known / micro.num_tokens, rel=0.03)
    assert metrics["policy/router_changed"] > 0.8, "random pairs of eight experts"
    config.policy.moe.router_replay = False
    assert "policy/router_replayed" not in new_learner(moe_folder, config).update(plan).metrics
