"""What is asked in an evaluation: the configured benchmarks, or the held-out prompts of `data`. Every question, in a
fixed order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nemo_brorl.config.derived import HELD_OUT, benchmark_limits
from nemo_brorl.config.schema import BenchmarkConfig, BroRLConfig
from nemo_brorl.core.errors import BroRLError, DataError
from nemo_brorl.core.tokenizer import ChatTokenizer
from nemo_brorl.tasks.questions.file_source import open_questions
from nemo_brorl.tasks.questions.questions import Question
from nemo_brorl.tasks.questions.reasoning_gym import VERIFIER, ReasoningGymSource
from nemo_brorl.tasks.questions.sources import make_source
from nemo_brorl.tasks.questions.stream import PromptStream
from nemo_brorl.tasks.verifiers.registry import check_payload, names_in
from nemo_brorl.types import Prompt, Sampling

EVALUATION_SEED = 0  # of the questions: the same for every run seed, so that seeds and models are compared on one set
NUM_NAMED = 3  # prompts in a message


@dataclass(frozen=True)
class Benchmark:
    """Prompts that are asked alike. Uids begin with the name and are the same for every model."""

    name: str
    prompts: tuple[Prompt, ...]
    num_samples: int  # of each prompt
    sampling: Sampling
    system_prompt: str | Mapping[str, str | None] | None  # or by domain

    @property
    def verifiers(self) -> set[str]:
        """Names of all that score its answers."""
        return {name for prompt in self.prompts for name in names_in(prompt.verifier, prompt.payload)}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """JSON-able; two evaluations may be compared where these and `questions` are the same."""
        sampling = self.sampling
        return {
            "samples_per_prompt": self.num_samples,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_response_tokens": sampling.max_tokens,
            "system_prompt": self.system_prompt,
        }

    @cached_property
    def questions(self) -> str:
        """Digest of what is asked and how it is scored; another tokenizer or chat template changes nothing."""
        return _digest(
            [prompt.uid, prompt.task, prompt.domain, prompt.verifier, dict(prompt.payload)] for prompt in self.prompts
        )

    @cached_property
    def tokens(self) -> str:
        """Digest of what the model reads."""
        return _digest(list(prompt.token_ids) for prompt in self.prompts)


def read_benchmarks(config: BroRLConfig, tokenizer: ChatTokenizer) -> list[Benchmark]:
    """Open files and draw generated questions.

    Raises DataError, naming the benchmark, when one is missing, empty, has rows that cannot be used or a prompt over
    its limit; ConfigError for an unknown verifier.
    """
    chosen = config.evaluation.selected()
    if not chosen:
        return [_held_out(config, tokenizer)]
    found = []
    for where, benchmark in chosen:
        try:
            found.append(_benchmark(config, benchmark, tokenizer))
        except BroRLError as error:
            raise type(error)(f"{where} ({benchmark.name}): {error}") from error
    return found


def held_out_prompts(config: BroRLConfig, tokenizer: ChatTokenizer) -> list[Prompt]:
    """The held-out prompts of `data`, those of validation too. Raises DataError when there are none."""
    stream = PromptStream(
        make_source(config.data, "held_out", EVALUATION_SEED), tokenizer, config.data, split="held_out"
    )
    prompts = stream.take(config.evaluation.num_prompts)
    if not prompts:
        raise DataError("there are no held-out prompts: raise data.held_out_fraction or give more data")
    return prompts


def _held_out(config: BroRLConfig, tokenizer: ChatTokenizer) -> Benchmark:
    shared: str | None = config.data.system_prompt
    by_domain = {
        domain.name: shared if domain.system_prompt is None else domain.system_prompt
        for domain in config.data.domains
        if config.data.source == "mixture" and domain.weight > 0
    }
    prompts = tuple(held_out_prompts(config, tokenizer))
    return Benchmark(
        HELD_OUT, prompts, benchmark_limits(config, None).num_samples, _sampling(config, None), by_domain or shared
    )


def _benchmark(config: BroRLConfig, own: BenchmarkConfig, tokenizer: ChatTokenizer) -> Benchmark:
    system_prompt = config.data.system_prompt if own.system_prompt is None else own.system_prompt
    prompts = tuple(
        Prompt(
            uid=f"{own.name}/{number}",
            task=question.task,
            verifier=question.verifier,
            token_ids=tuple(tokenizer.prompt_ids(question.messages or question.text, system_prompt)),
            payload=question.payload,
            domain=own.domain or own.name,
        )
        for number, question in _questions(config, own)
    )
    most = benchmark_limits(config, own).max_prompt_tokens
    long = [(prompt.uid, len(prompt.token_ids)) for prompt in prompts if len(prompt.token_ids) > most]
    if long:
        named = ", ".join(f"{uid} has {size}" for uid, size in long[:NUM_NAMED])
        raise DataError(
            f"{len(long)} of {len(prompts)} prompts have more than max_prompt_tokens={most} tokens ({named}): write "
            f"max_prompt_tokens="
            f"{max(size for _, size in long)}, and generation.max_model_len with it"
        )
    return Benchmark(
        own.name, prompts, benchmark_limits(config, own).num_samples, _sampling(config, own), system_prompt
    )


def _questions(config: BroRLConfig, own: BenchmarkConfig) -> Iterator[tuple[int, Question]]:
    """(number of the row, or of the draw; question)."""
    if own.source == "reasoning_gym":
        assert own.num_prompts is not None, "rules ask for a number"
        verifier, options = own.verifier or VERIFIER, own.verifier_options
        drawn = ReasoningGymSource(
            own.tasks,
            config.data.held_out_fraction,
            "held_out",
            f"{EVALUATION_SEED}/{own.name}",
            verifier=verifier,
            options=options,
        )
        if options:
            check_payload(verifier, drawn.question(0).payload)
        yield from ((number, drawn.question(number)) for number in range(own.num_prompts))
        return
    assert own.path is not None, "rules ask for a path"
    file = open_questions(own, own.path, own.name)
    yield from ((number, file.question(number)) for number in file.rows[: own.num_prompts].tolist())


def _sampling(config: BroRLConfig, own: BenchmarkConfig | None) -> Sampling:
    return Sampling(
        config.evaluation.temperature, config.evaluation.top_p, benchmark_limits(config, own).max_response_tokens
    )


def _digest(items: Iterator[Any]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for item in items:
        digest.update(json.dumps(item, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()
