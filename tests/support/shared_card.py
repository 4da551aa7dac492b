"""Policy ranks that share one GPU over NCCL (or cores over Gloo): processes that stay and play scenario after scenario,
each in a layout of its own.

NCCL lets several ranks use one GPU from 2.30 on, where NCCL_MULTI_RANK_GPU_ENABLE=1 says so. The ranks take turns on
it, so nothing here is a measure of speed.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from nemo_brorl.config.parallel_layout import layout_of
from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.config.schema import BroRLConfig
from tests.support.scenario import Outcome, Scenario

ENABLE = "NCCL_MULTI_RANK_GPU_ENABLE"
PATIENCE_S = 240.0  # of a scenario; the first one compiles


class RankPool:
    """As many processes as the largest layout has ranks. One that fails or hangs ends them all; the next scenario has
    new ones."""

    def __init__(self, num_ranks: int, on_gpu: bool) -> None:
        self._num_ranks = num_ranks
        self._on_gpu = on_gpu
        self._folder = tempfile.TemporaryDirectory()
        self._num_runs = 0
        self._processes: list[mp.process.BaseProcess] = []
        self._pipes: list[Connection] = []

    def run(self, config: BroRLConfig, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call `function(learner, …)` on every rank of the config's layout; results in rank order. `config` says which
        GPUs there are; it is told that every rank has one."""
        world_size = layout_of(config).world_size
        if not self._processes:
            self._start()
        config.trainer.gpus_per_node = world_size if self._on_gpu else 0
        self._num_runs += 1
        meeting = str(Path(self._folder.name) / f"store{self._num_runs}")
        results = []
        for rank in range(world_size):
            self._pipes[rank].send((config, rank, meeting, function, arguments))
        for rank in range(world_size):
            is_good, result = _answer(self._pipes[rank])
            if not is_good:
                self.end()
                raise AssertionError(f"rank {rank} of {world_size}: {result}")
            results.append(result)
        return results

    def end(self) -> None:
        """Kill all processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        self._processes, self._pipes = [], []

    def _start(self) -> None:
        context = mp.get_context("spawn")
        for _ in range(self._num_ranks):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, self._on_gpu), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)


def _answer(pipe: Connection) -> tuple[bool, Any]:
    """Whether a rank was through with it, and its result, or why not."""
    if not pipe.poll(PATIENCE_S):
        return False, f"no answer in {PATIENCE_S:.0f} s"
    try:
        is_good, result = pipe.recv()
    except EOFError:
        return False, "its process is gone"
    return is_good, result


def _serve(pipe: Connection, on_gpu: bool) -> None:
    """A rank's process: play what comes, one after another."""
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"  # as a run's ranks have it
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    from nemo_brorl.policy.process.device import open_device

    device = open_device(on_gpu, num_threads=1)
    while True:
        try:
            config, rank, meeting, function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, _play(device, config, rank, meeting, function, arguments)))
        except Exception:  # noqa: BLE001  # the test says what it was
            pipe.send((False, traceback.format_exc()))
            return


def _play(
    device: Any, config: BroRLConfig, rank: int, meeting: str, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    import torch.distributed as dist

    from nemo_brorl.policy.process import process_groups
    from nemo_brorl.policy.process.device import forget_compiled
    from nemo_brorl.policy.rank.learner import Learner

    forget_compiled()  # kinds of input of other models count against torch's limit
    layout = layout_of(config)
    store = dist.FileStore(meeting, layout.world_size)
    process_groups.open_groups(layout, rank, store, device, config.trainer.seed)

    def new_learner(folder: Path) -> Learner:
        return Learner(RankSettings.from_config(config), folder, device)

    result = function(new_learner, *arguments)
    dist.barrier()
    process_groups.close_groups()
    return result


def play(new_learner: Callable[[Path], Any], scenario: Scenario) -> Outcome:
    """One rank's part of a scenario."""
    return scenario.play(new_learner(scenario.model_folder))


def gradients(
    new_learner: Callable[[Path], Any], folder: Path, prompt: list[int], responses: list[list[int]]
) -> dict[str, np.ndarray]:
    """Of minus the mean log-prob of all response tokens, by the names of the Hugging Face folder: what the policy's
    ranks hold in parts, gathered as weights are."""
    import torch

    from nemo_brorl.policy.rank.pipeline import train_rows
    from nemo_brorl.policy.rows.packed_rows import PackedGroup, Response

    learner = new_learner(folder)
    made = []
    for number, tokens in enumerate(responses):
        token_ids = np.array(tokens, np.int32)
        made.append(Response(0, number, token_ids, np.zeros(len(tokens), np.float32), 0.0, True))
    row = learner.state.row([PackedGroup(np.array(prompt, np.int32), tuple(made))], 1.0)
    train_rows(learner.state.chunks, [row], lambda index, row, scores: (-scores.log_probs.sum(), {}))
    with torch.no_grad():
        for model in learner.state.models:
            for param in model.parameters():
                param.copy_(param.main_grad)
    return {name: tensor.float().cpu().numpy() for name, tensor in learner.hf_export.stream()}
