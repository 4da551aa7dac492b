"""Alarms of the watch for reward hacking: examples in the run folder, and one warning for each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nemo_brorl.config.schema import RewardWatchConfig
from nemo_brorl.core.logs import get_logger
from nemo_brorl.core.metric_sinks import AlarmLog
from nemo_brorl.rollouts.reward_watch import RewardWatch
from nemo_brorl.types import ScoredGroup

log = get_logger(__name__)

FILE = "reward_watch.jsonl"  # in the run folder


class RewardAlarms:
    """Owns the watch and the file of its examples."""

    def __init__(self, config: RewardWatchConfig, run_folder: Path) -> None:
        self.watch = RewardWatch(config)
        self.examples = AlarmLog(run_folder / FILE)
        self.warned: set[str] = set()  # kinds, by this process

    def observe(self, step: int, groups: Sequence[ScoredGroup]) -> dict[str, float]:
        """Metrics of a step's groups."""
        metrics, found = self.watch.observe(groups)
        for alarm in self.watch.to_keep(found):
            self.examples.write(step, asdict(alarm))
        for alarm in found:
            if alarm.kind in self.warned:
                continue
            self.warned.add(alarm.kind)
            log.warning("rewards of %s: %s (%s)", alarm.where, alarm.text, self.examples.path)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state."""
        return self.watch.state_dict()

    def resume(self, step: int | None, state: Mapping[str, Any] | None) -> None:
        """Go on from the state after a step; None: a run that starts anew. Later examples are removed."""
        self.examples.drop_after(step)
        if state is not None:
            self.watch.load_state_dict(state)
