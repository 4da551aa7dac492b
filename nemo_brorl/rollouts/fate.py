"""What becomes of a group of which nothing is being sampled any more."""

from __future__ import annotations

import math
from enum import Enum

from nemo_brorl.config.rollouts import RolloutsConfig
from nemo_brorl.rollouts.ledger import OpenGroup

MIN_GROUP = 2  # rollouts: fewer cannot disagree


class Fate(Enum):
    """What `BatchFill` does with a group. Its partial rollouts are the ones that were cut."""

    CLOSE = "close"  # judge it by all of its rollouts
    CLOSE_CUT = "close_cut"  # judge it by those that have ended; the partial ones as `is_resumed` says
    COMPLETE = "complete"  # a step has learned from it: what has ended since is learned next, within the whole group
    POSTPONE = "postpone"  # all of it goes on in the next step
    DROP = "drop"  # give it up: the batch is full
    TIME_OUT = "time_out"  # give it up: too few rollouts ended in time


def is_resumed(settings: RolloutsConfig) -> bool:
    """Return whether rollouts that were cut go on in the next step."""
    return settings.unfinished == "resume"


def fate_of(group: OpenGroup, is_surplus: bool, settings: RolloutsConfig) -> Fate:
    """Return what becomes of a settled group. `is_surplus`: it was cut because the batch is full, else by a deadline.

        learned from | partial rollouts | cut as surplus | enough ended | unfinished   | fate
        yes          |                  |                |              |              | COMPLETE
        no           | none             |                |              |              | CLOSE
        no           | some             | yes            |              | resume       | POSTPONE
        no           | some             | yes            |              | drop         | DROP
        no           | some             | no             | yes          |              | CLOSE_CUT
        no           | some             | no             | no           | resume       | POSTPONE
        no           | some             | no             | no           | finish, drop | TIME_OUT

    Enough is `rollouts.min_fraction` of the group, two at least. Under `finish` nothing is cut as surplus.
    """
    if group.is_closed:
        return Fate.COMPLETE
    if not group.partial:
        return Fate.CLOSE
    if is_surplus:
        return Fate.POSTPONE if is_resumed(settings) else Fate.DROP
    num_enough = max(MIN_GROUP, math.ceil(settings.min_fraction * group.num_rollouts))
    if group.num_finished >= num_enough:
        return Fate.CLOSE_CUT
    return Fate.POSTPONE if is_resumed(settings) else Fate.TIME_OUT
