"""Count the responses without a reward, since their verifier failed, and name each verifier's commonest error."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from nemo_brorl.core.console import inert
from nemo_brorl.core.errors import VerifierError
from nemo_brorl.types import ScoredGroup

KIND = re.compile(r"([^:]*).*?(\([^()]*:\d+\))?", re.DOTALL)  # an exception's type and the line that raised it


class FailureCount:
    """Counts of failures by verifier, and by type and line of their exceptions."""

    def __init__(self, groups: Iterable[ScoredGroup] = ()) -> None:
        self.num_responses: Counter[str] = Counter()  # by verifier
        self.errors: dict[str, Counter[tuple[str | None, ...]]] = {}  # by verifier, then by type and line
        self.examples: dict[tuple[str | None, ...], str] = {}
        for group in groups:
            self.add(group)

    def add(self, group: ScoredGroup) -> None:
        """Count the responses of a group, and those that it lacks because their verifier failed."""
        verifier = group.prompt.verifier.partition("?")[0]  # the query of an address may hold a secret
        self.num_responses[verifier] += len(group.rewards) + len(group.errors)
        for error in group.errors:
            found = KIND.fullmatch(error)
            kind = found.groups() if found else (error,)
            self.errors.setdefault(verifier, Counter())[kind] += 1
            self.examples.setdefault(kind, error)

    @property
    def num_failed(self) -> int:
        return sum(errors.total() for errors in self.errors.values())

    def lines(self) -> list[str]:
        """Return one line for each verifier that failed: on how many responses, and its commonest error."""
        lines = []
        for verifier, errors in self.errors.items():
            [(kind, num)] = errors.most_common(1)
            others = f"; {errors.total() - num:,} other errors" if num < errors.total() else ""
            of_all = f"{errors.total():,} of {self.num_responses[verifier]:,}"
            lines.append(f"{verifier} failed on {of_all}: {inert(self.examples[kind])}{others}")
        return lines

    def check(self, remedy: str) -> None:
        """Raise VerifierError, with a remedy, if every response has failed."""
        if 0 < self.num_failed == self.num_responses.total():
            raise VerifierError(f"no response could be scored: {'; '.join(self.lines())}. {remedy}")
