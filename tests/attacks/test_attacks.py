"""Attacks on the judge: 160 that are drawn, and all that have earned something once.

`python -m tests.attacks` tries more.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attacks.generator import Attack, draw, kept_attacks
from tests.attacks.trial import Arena, is_refused, report

NUM_ATTACKS = 160
BATCH = 20
# How the line of an attack begins that still succeeds -> why. Such attacks are not drawn here, and what is kept of them
# is expected to fail.
OPEN: dict[str, str] = {}


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    with Arena() as arena:
        yield arena


def reports(arena: Arena, attacks: list[tuple[str, Attack]]) -> list[str]:
    """What is wrong with what becomes of attacks, each by its label."""
    found = []
    for label, attack in attacks:
        if is_refused(attack.case):
            continue
        violations = arena.try_attack(attack)
        if violations:
            found.append(f"{label}: {report(attack, violations)}")
    return found


def why_open(attack: Attack) -> str | None:
    """The reason for which an attack may succeed."""
    line = str(attack)
    return next((reason for beginning, reason in OPEN.items() if line.startswith(beginning)), None)


def kept() -> Iterator[object]:
    """Kept attacks, those that may succeed marked."""
    for attack in kept_attacks():
        reason = why_open(attack)
        marks = [] if reason is None else [pytest.mark.xfail(strict=True, reason=reason)]
        yield pytest.param(attack, marks=marks, id=f"{attack.case}-{attack.moves[0]}")


@pytest.mark.parametrize("attack", kept())
def test_what_has_earned_once_earns_no_more(attack: Attack, arena: Arena) -> None:
    found = reports(arena, [("kept", attack)])
    assert not found, "\n\n".join(found)


@pytest.mark.parametrize("first", range(0, NUM_ATTACKS, BATCH))
def test_drawn_attacks_earn_nothing_change_nothing_and_leave_nothing(first: int, arena: Arena) -> None:
    attacks = []
    for seed in range(first, first + BATCH):
        attack = draw(seed)
        if why_open(attack) is None:
            attacks.append((f"seed {seed}", attack))
    found = reports(arena, attacks)
    assert not found, "\n\n".join(found)
