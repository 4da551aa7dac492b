"""How long a verifier may take for one response before its process is killed.

The first of these that is there: `timeout_s` in the payload (an option of a source or of a domain, `verifier_options:
{timeout_s: 60}`), the verifier's own in `rewards.timeouts`, `rewards.timeout_s`. The parts of a composite verifier are
scored one after the other, and their times add up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nemo_brorl.config.schema import RewardsConfig
from nemo_brorl.tasks.verifiers.payload import Payload

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
        if verifier == "composite" and verifier not in self.by_verifier:
            return sum(self.seconds(part["verifier"], part.get("options", {})) for part in payload["parts"])
        return self.by_verifier.get(verifier, self.default_s)


def check_timeout(payload: Payload) -> Iterator[str]:
    """What is wrong with a payload's own deadline."""
    value = payload.get(KEY, 1.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        yield f"'{KEY}' is {value!r}; write the seconds that one response may take, above 0"
