"""One attack among honest responses, scored by the real pool, and what may not come of it.

The sequence: honest wrong, attack, honest right, attack, honest wrong, honest right, spy. Then two responses to a
prompt of another verifier, which the same process scores. What is wrong is a `Violation`:

- EARNED: the attack or the spy earns more than the honest floor, the best of what does not try.
- COPIED: it does so only behind another's response.
- BOTH: a response that names two answers is right for both.
- CHANGED: another response's reward is not what it is alone, also when each response has twenty times as long. So an
  honest response that a busy machine lets wait is only counted.
- FAILED: the verifier failed, by more than a deadline of the attack's own.
- LEFT: a process, a file, a connection or a changed file of this machine.
- GREW: a process that scores had more memory than a value may take.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from brorl_graders.verifiers.registry import check_payload

from graders.tests.support.hostile_host import Host, descendants
from tests.attacks.cases import Case
from tests.attacks.generator import Attack, find_case, response, spy_response
from tests.attacks.scoring import OVERDUE, PATIENT, WatchedPool

EARNED, COPIED, BOTH, CHANGED, FAILED, LEFT = "earned", "copied", "both", "changed", "failed", "left"
GREW = "grew"
WRONG, ATTACK, RIGHT, SPY = "wrong", "attack", "right", "spy"
SEQUENCE = (WRONG, ATTACK, RIGHT, ATTACK, WRONG, RIGHT, SPY)
HONEST = (WRONG, RIGHT)
# Prompts of others, which the process that scored an attack scores next.
NEIGHBOURS = ("exact_match/blue heron", "math/0", "multiple_choice/C", "composite/product")
MARK = "brorl-attack*"  # of what moves leave
FOLDERS = (".", "/tmp", "/var/tmp", "/dev/shm", "/scratch", "~", sys.prefix)
TOLERANCE = 1e-9
BASELINE_TRIES = 4
SCRATCH_BYTES = 2**24
MOST_MEMORY_KIB = 320 * 2**10  # of a process that scores, at its peak; honest ones have about 190 MiB


class Violation(NamedTuple):
    """What an attack has got."""

    kind: str
    what: str


class Honest(NamedTuple):
    """Rewards of a case's honest responses, each scored behind nothing hostile."""

    floor: float
    rewards: Mapping[str, float | None]  # WRONG, RIGHT


class Arena:
    """A pool and a machine to be attacked, as they were again after each violation. A context manager."""

    def __init__(self) -> None:
        self.num_overdue = 0
        self.num_waiting = 0  # attacks among which an honest response was late, and right in more time
        self._honest: dict[str, Honest] = {}

    def __enter__(self) -> Arena:
        self._folders = tempfile.TemporaryDirectory(prefix="brorl-host-")
        Path(self._folders.name).chmod(0o755)
        self._make_host()
        self._start_pool()
        self._patient_pool = WatchedPool(PATIENT)
        self._num_processes = self._most_processes()
        for name in NEIGHBOURS:
            self.honest(find_case(name))
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()
        self._patient_pool.close()
        self._host.__exit__()
        self._folders.cleanup()

    def try_attack(self, attack: Attack) -> list[Violation]:
        """All that is wrong with what becomes of an attack."""
        case = find_case(attack.case)
        honest = self.honest(case)
        try:
            found = list(self._found(attack, case, honest))
        except Exception as error:  # noqa: BLE001 the pool is gone, and with it whatever it would have raised
            self._pool.close()
            self._start_pool()
            self._make_host_anew()
            return [Violation(FAILED, f"the pool has ended: {error}")]
        if found:
            self.start_again()
            found = self._told_apart(found, attack, case, honest)
        if any(violation.kind == CHANGED for violation in found):
            others = [violation for violation in found if violation.kind != CHANGED]
            found = others + self._changed_in_more_time(attack, case, honest)
        return found

    def _changed_in_more_time(self, attack: Attack, case: Case, honest: Honest) -> list[Violation]:
        with self._patiently():
            found = [violation for violation in self._found(attack, case, honest) if violation.kind == CHANGED]
            self._pool.replace_children()
        self.num_waiting += not found
        return found

    @contextmanager
    def _patiently(self) -> Iterator[None]:
        swift_pool = self._pool
        self._pool = self._patient_pool
        try:
            yield
        finally:
            self._pool = swift_pool

    def honest(self, case: Case) -> Honest:
        """What a case's honest responses earn."""
        if case.name not in self._honest:
            with self._patiently():
                texts = [case.wrong, case.right, *case.honest]
                # Also a sandbox that has not started in a minute, on a very busy machine, is no reward.
                tries = (self._scored(case, texts) for _ in range(BASELINE_TRIES))
                rewards = next(rewards for rewards in tries if None not in rewards)
                self._pool.reasons.clear()
            wrong, right, *others = rewards
            floor = max(case.granted, *(reward or 0.0 for reward in (wrong, *others)))
            self._honest[case.name] = Honest(floor, {WRONG: wrong, RIGHT: right})
        return self._honest[case.name]

    def start_again(self) -> None:
        """Go on with a process and a machine as they were."""
        self._pool.replace_children()
        self._make_host_anew()

    def _make_host_anew(self) -> None:
        self._host.__exit__()
        self._make_host()

    def _start_pool(self) -> None:
        self._pool = WatchedPool()
        self._pool.load("code")

    def _make_host(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="host-", dir=self._folders.name))
        self._folder.chmod(0o755)
        self._host = Host(self._folder, SCRATCH_BYTES)
        self._host.__enter__()
        for path in _marked(self._host):
            path.unlink()

    def _most_processes(self) -> int:
        """The most processes that a child of the pool has below it when it has run a right program."""
        case = find_case("literal assertions/running_totals")
        self._scored(case, [case.right])
        return max(len(descendants(child)) for child in self._pool.processes())

    def _scored(self, case: Case, texts: Sequence[str]) -> list[float | None]:
        filled = [self._host.fill_in(text) for text in texts]
        return self._pool.rewards(case.verifier, case.payload, filled)

    def _found(self, attack: Attack, case: Case, honest: Honest) -> Iterator[Violation]:
        texts = {**_honest_texts(case), ATTACK: response(attack), SPY: spy_response(attack)}
        self._pool.reasons.clear()
        rewards = self._scored(case, [texts[who] for who in SEQUENCE])
        yield from self._failures()
        yield from self._growth()
        for place, (who, reward) in enumerate(zip(SEQUENCE, rewards, strict=True)):
            if who in HONEST and reward != honest.rewards[who]:
                yield Violation(CHANGED, f"the {who} one at {place} earns {reward}, alone {honest.rewards[who]}")
            elif who == SPY or (who == ATTACK and not attack.names_the_truth):
                yield from _earned(who, place, reward, honest.floor)
        if attack.names_the_truth:
            yield from self._accepted_for_two(case, texts[ATTACK])
        yield from self._changed_neighbours(attack)
        yield from self._leftovers()

    def _failures(self) -> Iterator[Violation]:
        for reason in self._pool.reasons:
            if OVERDUE in reason:
                self.num_overdue += 1
            else:
                yield Violation(FAILED, reason[:200])
        self._pool.reasons.clear()

    def _growth(self) -> Iterator[Violation]:
        """Yield processes that grew, before the neighbours are scored, for which they may be ended."""
        for child in self._pool.processes():
            if peak_memory_kib(child) > MOST_MEMORY_KIB:
                yield Violation(GREW, f"to {peak_memory_kib(child)} KiB")

    def _accepted_for_two(self, case: Case, text: str) -> Iterator[Violation]:
        accepted = []
        for answer, payload in {case.truth: case.payload, **case.others}.items():
            (reward,) = self._pool.rewards(case.verifier, payload, [text])
            if reward == 1:
                accepted.append(answer)
        if len(accepted) > 1:
            yield Violation(BOTH, f"it is right for {' and for '.join(accepted)}")

    def _changed_neighbours(self, attack: Attack) -> Iterator[Violation]:
        neighbour = find_case(NEIGHBOURS[len(str(attack)) % len(NEIGHBOURS)])
        alone = self.honest(neighbour)
        texts = _honest_texts(neighbour)
        rewards = self._scored(neighbour, list(texts.values()))
        for who, reward in zip(texts, rewards, strict=True):
            if reward != alone.rewards[who]:
                yield Violation(CHANGED, f"{neighbour.name}: {who} earns {reward}, alone {alone.rewards[who]}")

    def _leftovers(self) -> Iterator[Violation]:
        for what in self._host.touched():
            yield Violation(LEFT, what)
        for path in _marked(self._host):
            yield Violation(LEFT, path.name)
        for child in self._pool.processes():
            processes = descendants(child)
            if len(processes) > self._num_processes:
                yield Violation(LEFT, f"{len(processes)} processes, more than {self._num_processes}")

    def _told_apart(self, found: Sequence[Violation], attack: Attack, case: Case, honest: Honest) -> list[Violation]:
        """The violations, those said to have been copied that do not come of the response alone."""
        alone: dict[str, bool] = {}
        for who, text in ((ATTACK, response(attack)), (SPY, spy_response(attack))):
            (reward,) = self._scored(case, [text])
            alone[who] = (reward or 0.0) > honest.floor + TOLERANCE
        self.start_again()
        said = []
        for violation in found:
            who = violation.what.split()[0]
            is_copied = violation.kind == EARNED and not alone[who]
            said.append(violation._replace(kind=COPIED) if is_copied else violation)
        return said


def peak_memory_kib(process: int) -> int:
    """The most memory that a process has had, 0 when it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)


@cache
def is_refused(name: str) -> bool:
    """Whether the payload of a case is refused when data is loaded."""
    case = find_case(name)
    try:
        check_payload(case.verifier, case.payload)
    except Exception:  # noqa: BLE001 the class lies elsewhere in older revisions
        return True
    return False


def report(attack: Attack, violations: Sequence[Violation]) -> str:
    """An attack with all that is needed to see it again."""
    case = find_case(attack.case)
    counts = Counter(f"{violation.kind}: {violation.what}" for violation in violations)
    lines = [str(attack), *counts, f"payload: {_shown(case.payload)}", "response:", response(attack)]
    if any(violation.what.startswith(SPY) for violation in violations):
        lines += ["spy:", spy_response(attack)]
    return "\n".join(lines)


def _shown(payload: Mapping[str, Any]) -> str:
    return str(dict(payload))[:2000]


def _honest_texts(case: Case) -> dict[str, str]:
    return {WRONG: case.wrong, RIGHT: case.right}


def _earned(who: str, place: int, reward: float | None, floor: float) -> Iterator[Violation]:
    if reward is not None and reward > floor + TOLERANCE:
        yield Violation(EARNED, f"{who} at {place} earns {reward:g}, the honest floor is {floor:g}")


def _marked(host: Host) -> Iterator[Path]:
    """Files that a move has left on this machine."""
    for folder in (*map(os.path.expanduser, FOLDERS), host.outside):
        yield from Path(folder).glob(MARK)
