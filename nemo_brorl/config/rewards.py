"""Declare settings of rewards: verification and shaping."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from brorl_graders import SCORE_LINE, SHARE_OF_TESTS, is_address, wrong_address
from brorl_graders.base.components import is_import_path
from omegaconf import MISSING

from nemo_brorl.config.data import repeated
from nemo_brorl.config.declare import FUNCTION, section, setting

# The score in a judge's reply, as in `Score: 0.5`.


@dataclass
class CosineLengthConfig:
    """Cosine length reward, with separate values for right and wrong answers (arXiv 2502.03373)."""

    enabled: bool = setting(False, "rewards bend with length")
    correct_short: float = setting(1.0, "reward of a right answer of no tokens ...", within=(-10, 10))
    correct_long: float = setting(0.5, "... and of one at the limit", within=(-10, 10))
    wrong_short: float = setting(-0.5, "reward of a wrong answer of no tokens ...", within=(-10, 10))
    wrong_long: float = setting(0.0, "... and of one at the limit", within=(-10, 10))
    on_steps: int = setting(100, "steps that it acts for (ProRLv2) ...", at_least=1)
    off_steps: int = setting(500, "... and then does not; 0: always acts", at_least=0)


@dataclass
class ShapingConfig:
    """Reward shaping. It follows dynamic sampling, which filters by raw rewards, and precedes the advantages."""

    truncated_factor: float = setting(1.0, "factor of truncated responses' rewards; BroRL: 0 to 0.1", within=(0, 1))
    overlong_buffer: int = setting(0, "tokens before the limit over which DAPO's penalty grows; 0: off", at_least=0)
    overlong_penalty: float = setting(1.0, "penalty at the limit", at_least=0)
    repetition_penalty: float = setting(0.0, "penalty, times the share of repeated n-grams", at_least=0)
    repetition_ngram: int = setting(16, "tokens of such an n-gram", at_least=1)
    cosine: CosineLengthConfig = section(CosineLengthConfig)
    function: str | None = setting(
        None, "function of your own after all of these (docs/extending.md)", choices=(None, FUNCTION)
    )
    function_params: dict[str, Any] = setting({}, "parameters of that function")


@dataclass
class CodeConfig:
    """Resource limits of the programs that the verifier `code` runs (docs/sandbox.md)."""

    test_timeout_s: float = setting(
        4.0, "seconds of one test; all tests of a response have 80 % of rewards.timeouts.code", within=(0.01, 3600)
    )
    memory_mib: int = setting(512, "MiB of address space of each process", at_least=64)
    scratch_mib: int = setting(16, "MiB of all files of a test together", at_least=1)
    output_kib: int = setting(1024, "KiB that a test may print", at_least=1)
    max_processes: int = setting(8, "processes of a test, threads counted as well", at_least=1)
    max_open_files: int = setting(64, "open files of each process", within=(8, 4096))
    preload: list[str] = setting([], "modules that programs find imported, for example numpy; costs memory once")
    readable: list[str] = setting([], "folders that programs may read, beside Python and the system's libraries")
    allow_unsandboxed: bool = setting(
        False, "run programs where the machine gives no sandbox: only on one that has nothing to lose"
    )


@dataclass
class OwnVerifierConfig:
    """A verifier outside the package that takes parameters."""

    name: str = setting(MISSING, "package.module:function")
    params: dict[str, Any] = setting({}, "its parameters by name")


@dataclass
class EndpointConfig:
    """A scoring service, or a language model that judges, with the format of its replies (docs/verifiers.md)."""

    name: str = setting(MISSING, "name that data.verifier and others call it by")
    url: str = setting(MISSING, "address of a service, or base of a judge's OpenAI-compatible API: https://HOST/v1")
    model: str | None = setting(None, "language model that judges; null: a scoring service")
    api_key_variable: str | None = setting(None, "environment variable with the key, sent to this address alone")
    sees: str = setting(
        "shown",
        "what is sent of a response; shown: what stands behind the thinking, answer: what the tags or the box hold",
        choices=("shown", "response", "answer"),
    )
    range: list[float] = setting([0.0, 1.0], "lowest and highest score; mapped to 0 and 1")
    threshold: float | None = setting(None, "score from which on it is 1, else 0; null: as it is", above=0, at_most=1)
    template: str | None = setting(
        None, "request to a judge, with {prompt}, {response} and fields of the payload; null: right or wrong"
    )
    score_pattern: str = setting(SCORE_LINE, "regular expression with one group, the score; the last match counts")
    score_key: str | None = setting(None, "field of the last JSON object in a judge's reply, in place of score_pattern")
    temperature: float = setting(0.0, "temperature of a judge", at_least=0)
    max_tokens: int = setting(256, "tokens of a judge's reply", at_least=1)
    request: dict[str, Any] = setting({}, "further fields of a judge's request, for example {top_p: 0.9}")

    @property
    def is_judge(self) -> bool:
        """True for a language model, False for a scoring service."""
        return self.model is not None

    def violations_at(self, where: str) -> Iterator[str]:
        """Yield a message for every error in the endpoint that is set at `where`."""
        if not self.name or is_address(self.name) or is_import_path(self.name):
            yield f"{where}.name={self.name!r}: write a plain name, for example judge"
        wrong = wrong_address(self.url)
        if wrong is not None:
            yield f"{where}.url: {wrong}"
        if len(self.range) != 2 or self.range[0] >= self.range[1]:
            yield f"{where}.range={self.range}: write the lowest and the highest score, as [0,10]"
        try:
            if re.compile(self.score_pattern).groups != 1:
                yield f"{where}.score_pattern={self.score_pattern}: write a regular expression with one group"
        except re.error as error:
            yield f"{where}.score_pattern={self.score_pattern} is no regular expression ({error})"


@dataclass
class ServicesConfig:
    """Verifiers behind a network (docs/verifiers.md). Limits of requests apply to each of `num_workers` processes."""

    endpoints: list[EndpointConfig] = setting([], "services and judges by name; data and stored runs name no others")
    concurrency: int = setting(16, "requests at a time", at_least=1, may_change=True)
    requests_per_s: float | None = setting(None, "requests begun per second; null: no limit", above=0, may_change=True)
    batch_size: int = setting(64, "responses of a request; a judge gets one", at_least=1, may_change=True)
    request_timeout_s: float = setting(60.0, "seconds of one attempt", above=0, may_change=True)
    deadline_s: float = setting(300.0, "seconds of all attempts for a request", above=0, may_change=True)
    max_attempts: int = setting(6, "attempts for a request", at_least=1, may_change=True)
    backoff_s: float = setting(
        0.5, "longest wait before the second attempt; it doubles up to 30 s, and chance decides within it", above=0
    )
    on_failure: str = setting(
        "stop",
        "when attempts are used up: stop the run, or fail: the response counts as failed, with reward 0",
        choices=("stop", "fail"),
        may_change=True,
    )
    cache_size: int = setting(2**18, "answers that a worker remembers (about 200 bytes each)", at_least=1)
    record: bool = setting(True, "keep answers in the run folder: a run that is started again asks no question twice")
    replay: str | None = setting(None, "run folder whose recorded answers are used; nothing is asked then")

    def violations(self) -> Iterator[str]:
        names = [endpoint.name for endpoint in self.endpoints]
        for name, times in repeated(names):
            yield f"rewards.services.endpoints names {name} {times} times: give each endpoint a name of its own"
        for index, endpoint in enumerate(self.endpoints):
            yield from endpoint.violations_at(f"rewards.services.endpoints.{index}")


@dataclass
class EnvironmentsConfig:
    """Limits of environments (docs/environments.md)."""

    step_timeout_s: float = setting(10.0, "seconds for one step", above=0)
    episode_timeout_s: float = setting(300.0, "seconds for all steps of an episode", above=0)
    max_observation_characters: int = setting(8000, "longer observations are cut off", at_least=1)
    num_processes: int = setting(2, "processes at work at once for an environment, in each of num_workers", at_least=1)


@dataclass
class RewardsConfig:
    """Verification of responses, which gives their rewards."""

    num_workers: int = setting(1, "processes that verify", at_least=1, may_change=True)
    timeout_s: float = setting(5.0, "seconds for one response", above=0)
    timeouts: dict[str, float] = setting({"code": 20.0}, "seconds of verifiers that take longer, by name")
    constant_answers: str = setting(
        "warn",
        "what to do, before a run starts, about a task that pays for one of twenty constant answers (docs/data.md)",
        choices=("warn", "refuse", "off"),
        may_change=True,
    )
    max_constant_reward: float = setting(
        0.5,
        "mean reward that a constant may earn above the share of questions that it is the answer of",
        within=(0, 1),
        may_change=True,
    )
    trajectory_reward: str = setting(
        "sum",
        "reward of an environment's trajectory: sum of its turns', or last: the last turn's",
        choices=("sum", "last"),
    )
    verifiers: list[OwnVerifierConfig] = setting(
        [], "verifiers of your own that rows may name, or that take parameters (docs/extending.md)"
    )
    environment_variables: list[str] = setting(
        [], "environment variables that verifiers, environments and agents of your own see (docs/verifiers.md)"
    )
    environments: EnvironmentsConfig = section(EnvironmentsConfig)
    shaping: ShapingConfig = section(ShapingConfig)
    code: CodeConfig = section(CodeConfig)
    services: ServicesConfig = section(ServicesConfig)

    def violations(self) -> Iterator[str]:
        yield from self.services.violations()
        for index, verifier in enumerate(self.verifiers):
            if not is_import_path(verifier.name):
                yield (
                    f"rewards.verifiers.{index}.name={verifier.name} is no function of your own: write "
                    "package.module:function; options of a built-in verifier are data.verifier_options"
                )
        for name, seconds in self.timeouts.items():
            if not 0 < seconds < math.inf:
                yield (
                    f"rewards.timeouts.{name}={seconds:g} must be above 0: write the seconds that this verifier may "
                    "take for one response"
                )
        one, whole = self.code.test_timeout_s, self.timeouts.get("code", self.timeout_s)
        if one > SHARE_OF_TESTS * whole > 0:
            yield (
                f"rewards.code.test_timeout_s={one:g} is more than all tests of a response have, {SHARE_OF_TESTS:.0%} "
                f"of rewards.timeouts.code={whole:g}: write rewards.timeouts.code={one / SHARE_OF_TESTS:g} or more"
            )
