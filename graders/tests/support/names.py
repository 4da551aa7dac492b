"""Names of verifiers and environments that a test allows, as the settings of a run would."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from brorl_graders.base.names import VARIABLE, allow, allowed, fingerprint
from brorl_graders.base.settings import Endpoint

Environment = tuple[str, Mapping[str, Any]]  # name and settings


def allow_also(
    verifiers: Iterable[str] = (),
    endpoints: Iterable[Endpoint] = (),
    environments: Iterable[Environment] = (),
) -> None:
    """Allow more names until the end of the test, or of its module when a module's fixture calls this."""
    before = allowed()
    verifiers_after = {**before.verifiers, **{name: {} for name in verifiers}}
    endpoints_after = {**before.endpoints, **{endpoint.name: endpoint for endpoint in endpoints}}
    fingerprints = dict(before.environments)
    for name, settings in environments:
        known = fingerprints.get(name, ())
        fingerprints[name] = (*known, fingerprint(settings))
    allow(replace(before, verifiers=verifiers_after, endpoints=endpoints_after, environments=fingerprints))


@contextmanager
def names_kept() -> Iterator[None]:
    """Take back the names that were allowed inside the context."""
    before = os.environ.get(VARIABLE)
    yield
    os.environ.pop(VARIABLE, None)
    if before is not None:
        os.environ[VARIABLE] = before
