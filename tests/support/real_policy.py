"""A run with a real policy of one rank, in a process of its own; engines and verifiers are fakes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from nemo_brorl.commands.teachers import has_checkpoint, rank_settings
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.types import UpdatePlan, UpdateReport
from tests.support import fork_server
from tests.support.fakes import FakePolicy, ListSink
from tests.support.loop import make_trainer
from tests.support.policy_ranks import new_learner

fork_server.preload(__name__)


class RealPolicy(FakePolicy):
    """Learns, saves and loads as the policy's rank in this process; engines get no weights of it."""

    def __init__(self, learner: Any) -> None:
        super().__init__()
        self.learner = learner

    def update(self, plan: UpdatePlan) -> UpdateReport:
        report: UpdateReport = self.learner.update(plan)
        return report

    def begin_save(self, folder: Path) -> None:
        self.learner.begin_save(folder)

    def finish_save(self, wait: bool) -> float | None:
        if not wait and not self.learner.is_save_written():
            return None
        seconds: float = self.learner.finish_save()
        return seconds

    def load(self, folder: Path) -> None:
        self.learner.load(folder)


def train(config: BroRLConfig, model_folder: Path, dies_in_step: int | None = None) -> dict[int, dict[str, float]]:
    """Begin or resume the run in the config's folder. Returns the metrics of this process's steps.

    `dies_in_step`: the process is killed before the update of this step.
    """
    settings = rank_settings(config, has_checkpoint(config))
    policy = RealPolicy(new_learner(config, model_folder, settings))
    trainer = make_trainer(Path(config.exp_manager.explicit_log_dir), config, policy=policy)
    trainer.resume()
    while dies_in_step is not None:
        if trainer.step_number + 1 == dies_in_step:
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.step()
        trainer.after_step()
    trainer.fit()
    assert isinstance(trainer.parts.sink, ListSink)
    return dict(trainer.parts.sink.rows)
