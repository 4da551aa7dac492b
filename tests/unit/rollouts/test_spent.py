"""What rollouts were spent on."""

from __future__ import annotations

from nemo_brorl.rollouts.metrics import group_metrics
from nemo_brorl.rollouts.spent import Spent, outcomes
from tests.support.fakes import make_group


def test_groups_that_were_cut_are_seen_in_their_sizes() -> None:
    metrics = group_metrics([make_group([1, 0, 0, 0]), make_group([1, 1])], 4)
    assert (metrics["rollouts/group_size"], metrics["rollouts/full"]) == (3, 0.5)


def test_prompts_come_with_their_share_of_correct_rollouts_in_the_order_of_their_uids() -> None:
    second, first = make_group([1, 0.5, 0, 1], "b"), make_group([0, 0], "a")
    assert [(prompt.uid, rate) for prompt, rate in outcomes([second, first])] == [("a", 0.0), ("b", 0.5)]


def test_totals_grow_and_survive_a_restart() -> None:
    spent = Spent().plus(Spent(400_000, 3, 64)).plus(Spent(100_000, 2, 16))
    assert spent.rollouts == 80
    assert Spent.from_state(spent.state_dict()) == spent
    assert spent.metrics() == {"rollouts/generated_tokens": 500_000, "rollouts/informative_per_million_tokens": 10}
    assert Spent().metrics()["rollouts/informative_per_million_tokens"] == 0
