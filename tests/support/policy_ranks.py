"""Runs policy ranks as plain Gloo processes, forked from one that has imported everything: a layout takes a second, not
ten."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nemo_brorl.config.parallel_layout import layout_of
from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.policy.process.device import open_device
from tests.support import fork_server
from tests.support.scenario import Outcome, Scenario

fork_server.preload(__name__, is_first=True)  # what others name may import megatron
# Before the first import of megatron.
_DEVICE = open_device(on_gpu=False, num_threads=int(os.environ["OMP_NUM_THREADS"]))

from nemo_brorl.policy.process import process_groups  # noqa: E402
from nemo_brorl.policy.rank.learner import Learner  # noqa: E402

_outcomes: dict[bytes, list[Outcome]] = {}  # by pickled scenario


def new_learner(config: BroRLConfig, model_folder: Path, settings: RankSettings | None = None) -> Learner:
    """This rank's learner; its process groups are open. `settings`: other ones than the config's."""
    return Learner(settings or RankSettings.from_config(config), model_folder, _DEVICE)


def play(scenario: Scenario) -> Outcome:
    """One rank's part of a scenario."""
    return scenario.play(new_learner(scenario.config, scenario.model_folder))


def run_scenario(scenario: Scenario) -> list[Outcome]:
    """Play it on all ranks of its layout; outcomes in rank order."""
    return run_ranks(scenario.config, play, scenario)


def outcomes_of(scenario: Scenario) -> list[Outcome]:
    """Of `run_scenario`, which is called once for equal scenarios, in whatever test. For those that leave no files."""
    assert scenario.load_from is scenario.save_to is scenario.export_to is None
    key = pickle.dumps(scenario)
    if key not in _outcomes:
        _outcomes[key] = run_scenario(scenario)
    return _outcomes[key]


def run_ranks(config: BroRLConfig, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call a function of this module in one process per rank of the config's layout, process groups open."""
    world_size = layout_of(config).world_size
    with tempfile.TemporaryDirectory() as folder:
        results = [Path(folder) / f"rank{rank}" for rank in range(world_size)]
        meeting = str(Path(folder) / "store")
        processes = [
            fork_server.start(_rank_main, config, rank, meeting, results[rank], function, arguments)
            for rank in range(world_size)
        ]
        for process in processes:
            process.join(timeout=120)
        for process in processes:
            process.kill()
        codes = [process.exitcode for process in processes]
        assert codes == [0] * world_size, f"exit codes of the ranks: {codes}"
        return [torch.load(path, weights_only=False) for path in results]


def _rank_main(
    config: BroRLConfig, rank: int, meeting: str, result: Path, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    layout = layout_of(config)
    process_groups.open_groups(layout, rank, dist.FileStore(meeting, layout.world_size), _DEVICE, config.trainer.seed)
    torch.save(function(*arguments), result)
    dist.barrier()
    process_groups.close_groups()


def score_a_vocab_slice(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    grad: torch.Tensor,
    vocab_size: int,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """This rank's token scores [3, n], share of the gradient of hidden, and gradient of its rows of the weight."""
    from megatron.core import parallel_state

    from nemo_brorl.policy.model.log_probs import token_scores, vocab_slice

    group = parallel_state.get_tensor_model_parallel_group()
    mine = weight.chunk(group.size())[group.rank()].clone().requires_grad_()
    hidden.requires_grad_()
    scores = token_scores(hidden, mine, targets, vocab_slice(vocab_size, len(mine), group), temperature, 4)
    scores.backward(grad)
    return scores.detach(), hidden.grad, mine.grad
