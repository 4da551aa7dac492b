"""Dress rehearsal: what several devices do together for the first time, in the first minutes of a run.

    engines asleep → a full row through the policy, gradients exchanged but no step → a checkpoint, which is deleted →
    the same weights published → engines awake → log-probs of every engine compared with the policy's (`parity`)

Without it a mistake shows in the first update, when a batch has been sampled. It comes at every start, also after a
resume, which may be on other nodes. Weights, optimizer and random numbers stay as they are.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from nemo_brorl.core.errors import GenerationError, ResourceError, TrainingError
from nemo_brorl.core.files import naming
from nemo_brorl.ports import Policy
from nemo_brorl.training.device_handover import DeviceHandover
from nemo_brorl.training.parts import Parts
from nemo_brorl.types import RankRehearsal

ROOM_GIB = 1.0  # memory of a GPU that must be free at the peak of the rehearsal, because later rows fragment it
MISSING = 0.25  # share of one replica's gradients by which the sum over replicas may be off
_HINT = "trainer.rehearsal=false leaves the rehearsal out"


def rehearse(parts: Parts, handover: DeviceHandover, version: int, num_tokens: int) -> None:
    """Rehearse an update on rows of `num_tokens` tokens, if there are any, and publish the policy's weights.

    `version` is the version of these weights. Raises TrainingError, ResourceError, CheckpointError or GenerationError
    for what fails.
    """
    receivers = parts.generator.weight_receivers()
    start = time.monotonic()
    with handover.first_phase(version):
        if num_tokens:
            reports = parts.policy.rehearse(num_tokens)
            check_ranks(reports, parts.policy.data_parallel_size)
            update_s = time.monotonic() - start
            save_s = rehearse_save(parts.policy, parts.checkpoints.folder)
            parts.console.line(describe(reports, update_s, save_s))
    check_engines(receivers, parts.generator.weight_receivers())


def check_ranks(reports: Sequence[RankRehearsal], num_replicas: int) -> None:
    """Raise an error that names the policy rank whose part of the rehearsed update failed, and what to set."""
    for rank, report in enumerate(reports):
        if not 0 < report.grad_norm < float("inf") or report.own_norm == 0:
            raise TrainingError(
                f"policy rank {rank} has no usable gradients in the dress rehearsal (norm of all ranks "
                f"{report.grad_norm:g}, of its own share {report.own_norm}): try policy.attention=sdpa or "
                f"policy.overlap_grad_reduce=false. {_HINT}."
            )
        if not report.opposed_norm < MISSING * report.grad_norm / num_replicas:
            raise TrainingError(
                f"gradients of {num_replicas} replicas that cancel each other add up to {report.opposed_norm:g} of "
                f"{report.grad_norm:g} in the dress rehearsal, so a replica's are missing or counted twice: try "
                f"policy.overlap_grad_reduce=false. {_HINT}."
            )
        if not report.is_unchanged:
            raise TrainingError(
                f"the exchange of weights between replicas changed a weight of policy rank {rank} in the dress "
                f"rehearsal: its share of the weights is not theirs. Try policy.overlap_param_gather=false, and start "
                f"from the model or an older checkpoint. {_HINT}."
            )
        if report.room_gib is not None and report.room_gib < ROOM_GIB:
            raise ResourceError(
                f"policy rank {rank} left {report.room_gib:.1f} GiB of its GPU free on the fullest row, when it held "
                f"{report.peak_gib:.1f} GiB; {ROOM_GIB:g} GiB must stay free: set policy.recompute=selective, then "
                f"full, or lower policy.tokens_per_micro_batch. {_HINT}."
            )


def check_engines(before: Sequence[str], after: Sequence[str]) -> None:
    """Raise GenerationError if an engine was lost in the rehearsal. Arguments: names of all engines."""
    lost = [name for name in before if name not in after]
    if lost:
        raise GenerationError(
            f"{', '.join(lost)} did not sleep, take the policy's weights or wake at the start of the run; a warning "
            "says why. If memory ran out, lower generation.gpu_memory_utilization. Otherwise try "
            "generation.sleep=cache or generation.weight_transport=object_store"
        )


def rehearse_save(policy: Policy, folder: Path) -> float:
    """Write the policy's files of a checkpoint into a folder in `folder`, delete them, and return the seconds.

    Raises CheckpointError or ResourceError.
    """
    start = time.monotonic()
    aside = folder / "rehearsal"
    with naming(aside):
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        try:
            policy.begin_save(aside)
            policy.finish_save(wait=True)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return time.monotonic() - start


def describe(reports: Sequence[RankRehearsal], update_s: float, save_s: float) -> str:
    """Return the line that says what the rehearsal took."""
    line = f"dress rehearsal: update without a step {update_s:.1f} s, checkpoint {save_s:.1f} s"
    peaks = [report.peak_gib for report in reports if report.peak_gib is not None]
    rooms = [report.room_gib for report in reports if report.room_gib is not None]
    if peaks and rooms:
        line += f"; at most {max(peaks):.1f} GiB on a rank, at least {min(rooms):.1f} GiB of its GPU free"
    return line
