"""Memory of a device as terms at moments: what a plan is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

MOMENTS = ("start", "generate", "update", "publish")


@dataclass(frozen=True)
class Term:
    """One use of memory."""

    name: str
    gib: Mapping[str, float]  # by moment; those that are not there: 0
    note: str
    role: str = "policy"  # whose it is: policy, engine

    def at(self, moment: str) -> float:
        return self.gib.get(moment, 0.0)


def term(name: str, note: str, **gib: float) -> Term:
    """One of the policy's terms by its moments."""
    return Term(name, MappingProxyType(dict(gib)), note)


def engine_term(name: str, note: str, **gib: float) -> Term:
    """One of an engine's."""
    return Term(name, MappingProxyType(dict(gib)), note, role="engine")


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of a GPU by what it holds."""

    role: str  # "GPU", or with roles on devices of their own "policy GPU", "engine GPU"
    terms: tuple[Term, ...]
    capacity_gib: float

    @property
    def moments(self) -> tuple[str, ...]:
        return tuple(moment for moment in MOMENTS if self.peak(moment) > 0)

    def peak(self, moment: str, role: str | None = None) -> float:
        """GiB at a moment, of everything or of one role."""
        return sum(term.at(moment) for term in self.terms if role in (None, term.role))

    @property
    def worst(self) -> str:
        """The moment that needs most."""
        return max(MOMENTS, key=self.peak)

    @property
    def fits(self) -> bool:
        return self.peak(self.worst) <= self.capacity_gib

    def largest(self, moment: str) -> Term:
        return max(self.terms, key=lambda term: term.at(moment))
