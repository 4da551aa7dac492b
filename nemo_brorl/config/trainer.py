"""Declare settings of a run as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from nemo_brorl.config.declare import auto, setting

TIME_LIMIT = re.compile(r"\d+:[0-5]\d:[0-5]\d")


@dataclass
class ObserverConfig:
    """An observer of the run's steps, defined outside the backend."""

    name: str = setting(
        MISSING,
        "function that makes the observer, as package.module:function, for example "
        "brorl_lab.observers.coverage:coverage",
    )
    params: dict[str, Any] = setting({}, "parameters of the function that makes the observer, by name")


@dataclass
class TrainerConfig:
    """Settings of the run as a whole."""

    max_steps: int = setting(20, "training steps of the whole run", at_least=0, may_change=True)
    num_nodes: int = setting(1, "machines of the run", at_least=1)
    gpus_per_node: int = setting(
        0, "GPUs per machine; 0: everything on CPU (Megatron over Gloo, vLLM's CPU build)", at_least=0
    )
    seed: int = setting(1, "seed of all random numbers", within=(0, 2**31 - 1))
    val_interval: int = setting(5, "steps between validations; 0: only at start and end", at_least=0, may_change=True)
    save_interval: int = setting(5, "steps between checkpoints; 0: only at the end", at_least=0, may_change=True)
    async_save: bool = setting(True, "write checkpoint files while training continues", may_change=True)
    keep_checkpoints: int = setting(2, "number of newest checkpoints that are kept", at_least=1, may_change=True)
    time_limit: str | None = setting(
        None, 'time limit "HH:MM:SS", before which the run saves and stops; null: none', may_change=True
    )
    start_timeout_s: float | None = auto(
        "most seconds until Ray, engines, policy and verifiers are ready, parity check and checkpoint "
        "included; then the run ends; auto: 1,800, and 30 for each GiB of the model's weights",
        above=0,
        may_change=True,
    )
    rehearsal: bool = setting(
        True,
        "at every start rehearse an update without a step, a checkpoint and a weight sync; before the first step "
        "also sample and show a few responses, with their rewards and the reasons",
        may_change=True,
    )
    stall_warning_s: float = setting(
        120.0, "seconds without progress after which a warning names the late processes", above=0, may_change=True
    )
    stall_timeout_s: float | None = setting(
        None,
        "seconds without progress, once started, after which the run ends; the scoring of a chunk and the writing of "
        "a checkpoint must take less; null: never",
        above=0,
        may_change=True,
    )
    private_run_folder: bool = setting(
        False,
        "allow only this user to enter the run folder (mode 0700), which holds the model's responses",
        may_change=True,
    )
    max_skipped_updates: int = setting(10, "non-finite mini-batches in the whole run after which it stops", at_least=0)
    observers: list[ObserverConfig] = setting([], "observers in addition to the run's own", may_change=True)

    @property
    def num_gpus(self) -> int:
        """Number of GPUs of the whole run; 0: everything runs on CPU."""
        return self.num_nodes * self.gpus_per_node

    @property
    def time_limit_s(self) -> float | None:
        """Seconds of the setting `time_limit`, whose format was checked; None: no limit."""
        if self.time_limit is None:
            return None
        hours, minutes, seconds = (int(part) for part in self.time_limit.split(":"))
        return 3600.0 * hours + 60.0 * minutes + seconds

    def violations(self) -> Iterator[str]:
        limit, warning, timeout = self.time_limit, self.stall_warning_s, self.stall_timeout_s
        if limit is not None and not TIME_LIMIT.fullmatch(limit):
            yield f'trainer.time_limit={limit} is not HH:MM:SS: set "04:00:00" for four hours (with quotes in YAML)'
        if timeout is not None and timeout < warning:
            yield (
                f"trainer.stall_timeout_s={timeout:g} is before trainer.stall_warning_s={warning:g}: "
                f"set at least {warning:g}, or null"
            )
