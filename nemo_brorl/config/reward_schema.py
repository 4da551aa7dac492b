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
class CodeConfig:
    """What the programs that the verifier `code` runs may use (docs/sandbox.md). How their tests count is an option of
    the verifier."""

    test_timeout_s: float = 4.0  # of one test, by the clock; all tests of a response have 80 % of rewards.timeouts.code
    memory_mib: int = 512  # address space of each process
    scratch_mib: int = 16  # all files of a test together
    output_kib: int = 1024  # what a test may print
    max_processes: int = 8  # of a test, threads counted as well
    max_open_files: int = 64
    preload: list[str] = field(
        default_factory=list
    )  # modules that programs find imported, for example numpy; costs memory once
    readable: list[str] = field(
        default_factory=list
    )  # folders that programs may read, beside Python and the system's libraries
    # run programs where the machine gives no sandbox: only on one that has nothing to lose
    allow_unsandboxed: bool = False


@dataclass
class RewardsConfig:
    """Verification."""

    num_workers: int = 1
    timeout_s: float = 5.0  # for one response
    timeouts: dict[str, float] = field(
        default_factory=lambda: {"code": 20.0}
    )  # seconds of verifiers that take longer, by name
    shaping: ShapingConfig = field(default_factory=ShapingConfig)
    code: CodeConfig = field(default_factory=CodeConfig)
