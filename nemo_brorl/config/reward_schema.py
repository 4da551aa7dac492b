"""Settings of rewards: verification and shaping (`schema.py` puts the sections together)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class CosineLengthConfig:
    """A reward that bends with length, separately for right and wrong answers (arXiv 2502.03373)."""

    enabled: bool = False
    correct_short: float = 1.0  # of a right answer of no tokens ...
    correct_long: float = 0.5  # ... and of one at the limit
    wrong_short: float = -0.5
    wrong_long: float = 0.0
    on_steps: int = 100  # acts for so many steps (ProRLv2) ...
    off_steps: int = 500  # ... and then not for so many; 0: always acts


@dataclass
class ShapingConfig:
    """What changes rewards after dynamic sampling has judged the raw ones; advantages see the result."""

    truncated_factor: float = 1.0  # rewards of truncated responses are multiplied by it; ProRLv2 and BroRL: 0 to 0.1
    overlong_buffer: int = 0  # tokens before the limit over which DAPO's penalty grows; 0: off
    overlong_penalty: float = 1.0  # at the limit
    repetition_penalty: float = 0.0  # times the share of n-grams that a response has said before
    repetition_ngram: int = 16  # tokens of such an n-gram
    cosine: CosineLengthConfig = field(default_factory=CosineLengthConfig)


@dataclass
class RewardsConfig:
    """Verification."""

    num_workers: int = 1
    timeout_s: float = 5.0  # per response
    shaping: ShapingConfig = field(default_factory=ShapingConfig)
