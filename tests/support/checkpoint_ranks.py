"""What policy ranks do around checkpoints, for `tests.support.policy_ranks.run_ranks`; light, so that forked ranks
import it at once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from nemo_brorl.core.errors import CheckpointError
from tests.support.policy_ranks import Scenario, new_learner  # makes this process ready for megatron

from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync as _Writer  # isort: skip
from tests.support.learners import save

_write = _Writer.write_preloaded_data


def save_while_training(scenario: Scenario) -> list[dict[str, float]]:
    """Begin a save after the first plan and finish it after the last; metrics of the plans in between."""
    learner = new_learner(scenario.config, scenario.model_folder)
    first, *others = scenario.plans
    learner.update(first)
    assert scenario.save_to is not None
    learner.begin_save(scenario.save_to)
    metrics = [learner.update(plan).metrics for plan in others]
    learner.finish_save()
    return metrics


def die_while_writing(scenario: Scenario) -> None:
    """Every rank is killed once half of its first file is on disk."""

    def write_half(*arguments: Any, **settings: Any) -> None:
        _write(*arguments, **settings)
        path = Path(arguments[2][0])
        os.truncate(path, path.stat().st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)

    _Writer.write_preloaded_data = staticmethod(write_half)  # in this forked process only
    learner = new_learner(scenario.config, scenario.model_folder)
    for plan in scenario.plans:
        learner.update(plan)
    assert scenario.save_to is not None
    learner.begin_save(scenario.save_to)
    time.sleep(60)


def lose_one_ranks_files(scenario: Scenario, rank: int) -> str:
    """Save where one rank has no space left; what every rank says. The next save, with space, succeeds."""

    def no_space(transforms: Any, number: int, bucket: Any, results: Any, running: Any, **settings: Any) -> None:
        results.put((number, OSError(28, "No space left on device", bucket[0])))

    learner = new_learner(scenario.config, scenario.model_folder)
    assert scenario.save_to is not None
    if int(os.environ["RANK"]) == rank:
        _Writer.write_preloaded_data = staticmethod(no_space)
    message = ""
    try:
        save(learner, scenario.save_to / "lost")
    except CheckpointError as error:
        message = str(error)
    _Writer.write_preloaded_data = staticmethod(_write)
    save(learner, scenario.save_to / "next")
    return message
