"""The outcome of a group once none of its rollouts is being sampled."""

from __future__ import annotations

import math
from enum import Enum

from nemo_brorl.config.rollouts import RolloutsConfig
from nemo_brorl.rollouts.ledger import OpenGroup

MIN_GROUP = 2  # smallest number of rollouts that can disagree


class Fate(Enum):
    """What `BatchFill` does with a group. Its partial rollouts are the ones that were cut."""

    CLOSE = "close"  # judge the group by all of its rollouts
    CLOSE_CUT = "close_cut"  # judge the group by the rollouts that ended; `is_resumed` decides on the partial ones
    COMPLETE = "complete"  # a step has trained on the group; the next one trains on rollouts that have ended since
    POSTPONE = "postpone"  # resume the whole group in the next step
    DROP = "drop"  # drop the group, because the batch is full
    TIME_OUT = "time_out"  # drop the group, because too few rollouts ended in time
    FAIL = "fail"  # drop the group, because its verifier failed on all rollouts but one, or on all


def is_resumed(settings: RolloutsConfig) -> bool:
    """Return True if the next step resumes rollouts that were cut off in this step (rollouts.unfinished=resume)."""
    return settings.unfinished == "resume"


def fate_of(group: OpenGroup, is_surplus: bool, settings: RolloutsConfig) -> Fate:
    """Return what happens to a group of rollouts once none of them is being sampled.

    `is_surplus`: rollouts of the group were cut because the training batch is full, and not by a deadline.

        trained on   | partial rollouts | cut as surplus | enough ended | unfinished   | fate
        yes          |                  |                |              |              | COMPLETE
        no           | none             |                |              |              | CLOSE, or FAIL
        no           | some             | yes            |              | resume       | POSTPONE
        no           | some             | yes            |              | drop         | DROP
        no           | some             | no             | yes          |              | CLOSE_CUT
        no           | some             | no             | no           | resume       | POSTPONE
        no           | some             | no             | no           | finish, drop | TIME_OUT

    Enough rollouts are `rollouts.min_fraction` of the group, and at least two. The column `unfinished` is the setting
    rollouts.unfinished. Under `finish` nothing is cut as surplus. CLOSE and CLOSE_CUT judge the group by the rollouts
    that ended, COMPLETE keeps rollouts that ended late for the next step, POSTPONE resumes the group in the next step,
    and DROP and TIME_OUT drop it. Rollouts whose verifier failed are in no column. Where they leave fewer than two,
    FAIL drops the group.
    """
    if group.is_closed:
        return Fate.COMPLETE
    if not group.partial:
        return Fate.FAIL if group.num_failed and group.num_finished < MIN_GROUP else Fate.CLOSE
    if is_surplus:
        return Fate.POSTPONE if is_resumed(settings) else Fate.DROP
    num_enough = max(MIN_GROUP, math.ceil(settings.min_fraction * group.num_rollouts))
    if group.num_finished >= num_enough:
        return Fate.CLOSE_CUT
    return Fate.POSTPONE if is_resumed(settings) else Fate.TIME_OUT
