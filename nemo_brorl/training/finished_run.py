"""Read from a run's checkpoints, before processes start, whether it is complete and may resume with these questions."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from brorl_graders.base.foreign import RecordError, record_object

from nemo_brorl.core.files import MALFORMED
from nemo_brorl.training.checkpoint import MAX_STATE, STATE, Checkpoints
from nemo_brorl.training.tables import PASS_AT_1


def saved_step(checkpoints: Path) -> int:
    """Return the step of the newest complete checkpoint in a folder, or 0 when there is none."""
    if not checkpoints.is_dir():
        return 0
    for folder in Checkpoints(checkpoints, keep=1).complete():
        return int(folder.name.removeprefix("step_"))
    return 0


def saved_state(checkpoints: Path) -> Mapping[str, Any]:
    """Return the state in the newest complete checkpoint. Raises OSError or RecordError when it cannot be read."""
    return record_object(checkpoints / f"step_{saved_step(checkpoints)}" / STATE, MAX_STATE)


def finished_line(run_folder: Path, max_steps: int, setting: str = "") -> str | None:
    """Return what to say of a run that has the checkpoint of its last step, or None for a run with steps left.

    `setting`: name of the setting that holds `max_steps`, if it may change when a run is resumed.
    """
    step = saved_step(run_folder / "checkpoints")
    if max_steps < 1 or step < max_steps:
        return None
    learnt = _learnt(run_folder / "checkpoints")
    asked = f"{step} of {max_steps} steps" if step == max_steps else f"{step} steps, {max_steps} were asked for"
    more = f" More: {setting}={2 * step}." if setting else ""
    look = f"brorl report {shlex.quote(str(run_folder))}"
    return f"{run_folder} is complete: {asked}{learnt}.{more} Look: {look}"


def check_same_prompts(run_folder: Path, compare: Callable[[Mapping[str, Any]], object]) -> None:
    """Call `compare` with the state of the prompt stream in the newest checkpoint, if there is one to be read.

    A damaged one is left to the resume, which reads the checkpoint before it.
    """
    with contextlib.suppress(OSError, *MALFORMED):
        compare(saved_state(run_folder / "checkpoints")["sampling"]["prompts"])


def _learnt(checkpoints: Path) -> str:
    """Return pass@1 before and after a run as text, from a checkpoint's validations. Empty when it has no two."""
    try:
        history: Sequence[Mapping[str, Any]] = saved_state(checkpoints)["validations"]["history"]
        before, after = float(history[0][PASS_AT_1]), float(history[-1][PASS_AT_1])
    except (OSError, RecordError, *MALFORMED):
        return ""
    return f", {100 * before:.1f} → {100 * after:.1f} %" if len(history) > 1 else ""
