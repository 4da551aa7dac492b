"""How long a verifier may take for one response before its process is killed.

The first of these that is there: `timeout_s` in the payload (an option of a source or of a domain, `verifier_options:
{timeout_s: 60}`), the verifier's own in `rewards.timeouts`, `rewards.timeout_s`. The parts of a composite verifier are
scored one after the other, and their times add up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nemo_brorl.config.schema import RewardsConfig
from nemo_brorl.tasks.verifiers.payload import Payload, is_number

KEY = "timeout_s"


@dataclass(frozen=True)
class Deadlines:
    """Seconds for one response, by verifier."""

    default_s: float
    by_verifier: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, config: RewardsConfig) -> Deadlines:
        """As the settings say."""
        return cls(config.timeout_s, dict(config.timeouts))

    def seconds(self, verifier: str, payload: Payload) -> float:
        """For this verifier with this payload."""
        if KEY in payload:
            return float(payload[KEY])
        if verifier != "composite" or verifier in self.by_verifier:
            return self.by_verifier.get(verifier, self.default_s)
        total = 0.0
        for part in payload["parts"]:
            options = part.get("options", {})
            total += self.seconds(part["verifier"], options)
        return total


def check_timeout(payload: Payload) -> Iterator[str]:
    """What is wrong with a payload's own deadline."""
    value = payload.get(KEY, 1.0)
    if not is_number(value) or not 0 < value < math.inf:
        yield f"'{KEY}' is {value!r}; write the seconds that one response may take, above 0"
