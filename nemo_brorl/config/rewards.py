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
from nemo_brorl.config.declare import FUNCTION, path_setting, section, setting

# The score in a judge's reply, as in `Score: 0.5`.


@dataclass
class CosineLengthConfig:
    """Cosine length reward, with separate values for right and wrong answers (arXiv 2502.03373)."""

    enabled: bool = setting(False, "rewards depend on the response's length, by a cosine curve")
    correct_short: float = setting(1.0, "reward of a right answer with no tokens", within=(-10, 10))
    correct_long: float = setting(0.5, "reward of a right answer at the length limit", within=(-10, 10))
    wrong_short: float = setting(-0.5, "reward of a wrong answer with no tokens", within=(-10, 10))
    wrong_long: float = setting(0.0, "reward of a wrong answer at the length limit", within=(-10, 10))
    on_steps: int = setting(100, "steps during which it is on (ProRLv2)", at_least=1)
    off_steps: int = setting(500, "steps after on_steps during which it is off; 0: always on", at_least=0)


@dataclass
class ShapingConfig:
    """Reward shaping. It follows dynamic sampling, which filters by raw rewards, and precedes the advantages."""

    truncated_factor: float = setting(
        1.0, "factor of the rewards of truncated responses; BroRL: 0 to 0.1", within=(0, 1)
    )
    overlong_buffer: int = setting(
        0, "tokens before the length limit over which DAPO's penalty grows; 0: off", at_least=0
    )
    overlong_penalty: float = setting(1.0, "DAPO's penalty at the length limit", at_least=0)
    repetition_penalty: float = setting(
        0.0, "penalty for a response of nothing but repeated n-grams; it grows with their share", at_least=0
    )
    repetition_ngram: int = setting(16, "tokens of an n-gram for repetition_penalty", at_least=1)
    cosine: CosineLengthConfig = section(CosineLengthConfig)
    function: str | None = setting(
        None, "shaping function of your own, applied last (docs/howto/extend.md)", choices=(None, FUNCTION)
    )
    function_params: dict[str, Any] = setting({}, "parameters of the shaping function, by name")


@dataclass
class CodeConfig:
    """Resource limits of the programs that the verifier `code` runs (docs/reference/sandbox.md)."""

    test_timeout_s: float = setting(
        4.0,
        "seconds for one test; all tests of a response together have 80 % of rewards.timeouts.code",
        within=(0.01, 3600),
    )
    memory_mib: int = setting(512, "MiB of address space for each process", at_least=64)
    scratch_mib: int = setting(16, "MiB for all files of a test together", at_least=1)
    output_kib: int = setting(1024, "KiB that a test may print", at_least=1)
    max_processes: int = setting(8, "processes of a test, including threads", at_least=1)
    max_open_files: int = setting(64, "open files of each process", within=(8, 4096))
    preload: list[str] = setting([], "modules imported before programs start, for example numpy; costs memory once")
    readable: list[str] = path_setting([], "folders that programs may read, besides Python and the system's libraries")
    allow_unsandboxed: bool = setting(
        False, "run programs on a machine without a sandbox. Only for a machine with nothing to lose"
    )


@dataclass
class OwnVerifierConfig:
    """Settings of a verifier of your own, outside the package, that takes parameters."""

    name: str = setting(MISSING, "verifier function, as package.module:function")
    params: dict[str, Any] = setting({}, "parameters of the verifier function, by name")


@dataclass
class EndpointConfig:
    """A scoring service, or a language model that judges, with the format of its replies (docs/howto/judges.md)."""

    name: str = setting(MISSING, "name of the endpoint, for data.verifier and compositions")
    url: str = setting(MISSING, "address of a service, or base of a judge's OpenAI-compatible API: https://HOST/v1")
    model: str | None = setting(None, "language model that judges; null: a scoring service")
    api_key_variable: str | None = setting(
        None, "environment variable with the API key, which is sent to this address only"
    )
    sees: str = setting(
        "shown",
        "part of a response that is sent. response: all of it; shown: the text after the thinking; "
        "answer: the contents of the tags or the box",
        choices=("shown", "response", "answer"),
    )
    range: list[float] = setting([0.0, 1.0], "lowest and highest score, which are mapped to 0 and 1")
    threshold: float | None = setting(
        None, "score from which the reward is 1, else 0; null: the score is the reward", above=0, at_most=1
    )
    template: str | None = setting(
        None,
        "request to a judge, with {prompt}, {response}, fields of the payload, and {fence}, a secret name for tags; "
        "null: asks for right or wrong",
    )
    score_pattern: str = setting(SCORE_LINE, "regular expression with one group, the score, in a judge's last line")
    score_key: str | None = setting(
        None, "field with the score in a judge's last outermost JSON object, instead of score_pattern"
    )
    temperature: float = setting(0.0, "sampling temperature of a judge", at_least=0)
    max_tokens: int = setting(256, "most tokens of a judge's reply", at_least=1)
    request: dict[str, Any] = setting({}, "further fields of a judge's request, for example {top_p: 0.9}")

    @property
    def is_judge(self) -> bool:
        """Return True if a verifier's endpoint is a language model that judges, False if it is a scoring service."""
        return self.model is not None

    def violations_at(self, where: str) -> Iterator[str]:
        """Yield a message for every error in the settings of a verifier's endpoint.

        `where` is the settings key that holds the endpoint.
        """
        if not self.name or is_address(self.name) or is_import_path(self.name):
            yield f"{where}.name={self.name!r}: set a plain name, for example judge"
        wrong = wrong_address(self.url)
        if wrong is not None:
            yield f"{where}.url: {wrong}"
        if len(self.range) != 2 or self.range[0] >= self.range[1]:
            yield f"{where}.range={self.range}: set the lowest and the highest score, as [0,10]"
        try:
            if re.compile(self.score_pattern).groups != 1:
                yield f"{where}.score_pattern={self.score_pattern}: set a regular expression with one group"
        except re.error as error:
            yield f"{where}.score_pattern={self.score_pattern} is no regular expression ({error})"


@dataclass
class ServicesConfig:
    """Verifiers behind a network (docs/howto/judges.md). Limits of requests apply to each of `num_workers`."""

    endpoints: list[EndpointConfig] = setting(
        [], "scoring services and judges. Data and stored runs can name only these"
    )
    concurrency: int = setting(16, "most requests in flight", at_least=1, may_change=True)
    requests_per_s: float | None = setting(
        None, "most requests started per second; null: no limit", above=0, may_change=True
    )
    batch_size: int = setting(
        64, "most responses in a request to a service; a judge gets one", at_least=1, may_change=True
    )
    request_timeout_s: float = setting(60.0, "timeout of one attempt, in seconds", above=0, may_change=True)
    deadline_s: float = setting(300.0, "most seconds for all attempts of a request", above=0, may_change=True)
    max_attempts: int = setting(6, "most attempts for a request", at_least=1, may_change=True)
    backoff_s: float = setting(
        0.5,
        "longest wait before the second attempt, in seconds. It doubles with each attempt, up to 30 s. "
        "The wait is random, up to this limit",
        above=0,
    )
    on_failure: str = setting(
        "stop",
        "after the last attempt. stop: save and end the run; fail: the response is left out of its group",
        choices=("stop", "fail"),
        may_change=True,
    )
    cache_size: int = setting(2**18, "replies that a worker remembers (about 200 bytes each)", at_least=1)
    record: bool = setting(True, "record replies in the run folder, so that a resumed run asks no question twice")
    replay: str | None = path_setting(None, "run folder whose recorded replies are used; no request is sent then")

    def violations(self) -> Iterator[str]:
        names = [endpoint.name for endpoint in self.endpoints]
        for name, times in repeated(names):
            yield f"rewards.services.endpoints names {name} {times} times: give each endpoint a name of its own"
        for index, endpoint in enumerate(self.endpoints):
            yield from endpoint.violations_at(f"rewards.services.endpoints.{index}")


@dataclass
class EnvironmentsConfig:
    """Time and size limits of environments (docs/howto/environments.md)."""

    step_timeout_s: float = setting(10.0, "most seconds for one step", above=0)
    episode_timeout_s: float = setting(300.0, "most seconds for all steps of an episode", above=0)
    max_observation_characters: int = setting(
        8000, "longest observation in characters; longer ones are cut, and the model is told", at_least=1
    )
    num_processes: int = setting(2, "processes per environment, in each of num_workers", at_least=1)


@dataclass
class RewardsConfig:
    """Settings of verification, which gives responses their rewards."""

    num_workers: int = setting(1, "processes that verify responses", at_least=1, may_change=True)
    timeout_s: float = setting(5.0, "most seconds for one response", above=0)
    timeouts: dict[str, float] = setting(
        {"code": 20.0}, "most seconds for one response by verifier, for those that take longer"
    )
    constant_answers: str = setting(
        "warn",
        "action before a run starts if a task gives rewards for one of twenty constant answers (docs/howto/data.md)",
        choices=("warn", "refuse", "off"),
        may_change=True,
    )
    max_constant_reward: float = setting(
        0.5,
        "largest mean reward that a constant answer may earn, beyond the share of questions that it answers",
        within=(0, 1),
        may_change=True,
    )
    reference_answers: str = setting(
        "refuse",
        "action before a run starts if more than 5 % of the references earn no reward when they are written as the "
        "answer (docs/howto/data.md)",
        choices=("refuse", "warn", "off"),
        may_change=True,
    )
    trajectory_reward: str = setting(
        "sum",
        "reward of an environment's trajectory. sum: the sum of its turns' rewards; last: the last turn's reward",
        choices=("sum", "last"),
    )
    verifiers: list[OwnVerifierConfig] = setting(
        [], "verifiers of your own that rows name, or that take parameters (docs/howto/extend.md)"
    )
    environment_variables: list[str] = setting(
        [],
        "environment variables that your own verifiers, environments and agents can read (docs/reference/verifiers.md)",
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
                    f"rewards.verifiers.{index}.name={verifier.name} is no function of your own: set "
                    "package.module:function; options of a built-in verifier are data.verifier_options"
                )
        for name, seconds in self.timeouts.items():
            if not 0 < seconds < math.inf:
                yield (
                    f"rewards.timeouts.{name}={seconds:g} must be above 0: set the seconds that this verifier may "
                    "take for one response"
                )
        one, whole = self.code.test_timeout_s, self.timeouts.get("code", self.timeout_s)
        if one > SHARE_OF_TESTS * whole > 0:
            yield (
                f"rewards.code.test_timeout_s={one:g} is more than all tests of a response have, {SHARE_OF_TESTS:.0%} "
                f"of rewards.timeouts.code={whole:g}: set rewards.timeouts.code={one / SHARE_OF_TESTS:g} or more"
            )
