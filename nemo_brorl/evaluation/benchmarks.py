"""Read the prompts of an evaluation: the configured benchmarks, or the held-out prompts of `data`, in a fixed order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from brorl_graders import endpoints_in, names_in
from brorl_graders.base.environment_values import as_written

from nemo_brorl.config.data import DataConfig
from nemo_brorl.config.evaluation import BenchmarkConfig, EvaluationConfig
from nemo_brorl.config.lengths import HELD_OUT, BenchmarkLimits, benchmark_limits
from nemo_brorl.config.rollouts import RolloutsConfig
from nemo_brorl.core.errors import BroRLError, DataError
from nemo_brorl.core.tokenizer import ChatTokenizer
from nemo_brorl.prompts.asking import render_question, with_open_thought
from nemo_brorl.prompts.environment_source import DRAWN, DrawnSource, Episodes
from nemo_brorl.prompts.file_source import open_questions
from nemo_brorl.prompts.questions import Question
from nemo_brorl.prompts.reasoning_gym import open_tasks
from nemo_brorl.prompts.sources import Sources
from nemo_brorl.prompts.stream import PromptStream
from nemo_brorl.scoring.turn_tokens import QuestionCheck, check_environment
from nemo_brorl.types import Prompt, Sampling

EVALUATION_SEED = 0  # seed of the questions, equal in all runs, so that seeds and models are compared on one set
NUM_NAMED = 3  # prompts that a message lists


@dataclass(frozen=True)
class Benchmark:
    """Prompts with common sampling settings. Uids start with the benchmark's name and are the same for every model."""

    name: str
    prompts: tuple[Prompt, ...]
    num_samples: int  # samples of each prompt
    sampling: Sampling
    system_prompt: str | Mapping[str, str | None] | None  # one system prompt, or one for each domain

    @property
    def verifiers(self) -> set[str]:
        """Names of all verifiers that score the benchmark."""
        names: set[str] = set()
        for prompt in self.prompts:
            names.update(names_in(prompt.verifier, prompt.payload))
        return names

    @cached_property
    def settings(self) -> dict[str, Any]:
        """JSON-able sampling settings of a benchmark.

        Two evaluations on the benchmark are comparable if these settings and `questions` (a digest) are equal.
        """
        stops = {"stop_tokens": self.sampling.stop_tokens, "stop_strings": self.sampling.stop_strings}
        return {
            "samples_per_prompt": self.num_samples,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "max_response_tokens": self.sampling.max_tokens,
            "system_prompt": self.system_prompt,
            # Evaluations without such settings keep their identity.
            **{name: list(texts) for name, texts in stops.items() if texts},
        }

    @cached_property
    def questions(self) -> str:
        """Digest of a benchmark's questions and their scoring, independent of tokenizer and chat template."""
        rows = []
        for prompt in self.prompts:
            row: list[Any] = [prompt.uid, prompt.task, prompt.domain, prompt.verifier, prompt.payload]
            row += map(asdict, endpoints_in(prompt.verifier, prompt.payload))
            rows.append(as_written(row))
        return _digest(rows)

    @cached_property
    def tokens(self) -> str:
        """Digest of the token ids of a benchmark's prompts."""
        return _digest([prompt.token_ids for prompt in self.prompts])


def read_benchmarks(
    evaluation: EvaluationConfig, data: DataConfig, rollouts: RolloutsConfig, tokenizer: ChatTokenizer
) -> list[Benchmark]:
    """Return the benchmarks with their prompts, after opening files and drawing generated questions.

    Raises DataError, naming the benchmark, when one is missing, empty, has unusable rows or a prompt over its limit.
    Raises ConfigError for an unknown verifier.
    """
    chosen = evaluation.selected()
    if not chosen:
        for _, source in data.sources():
            check_environment(source, tokenizer)
        return [_held_out(evaluation, data, rollouts, tokenizer)]
    benchmarks = []
    for where, benchmark in chosen:
        try:
            check_environment(benchmark, tokenizer)
            limits = benchmark_limits(evaluation, data, rollouts, benchmark)
            sampling = _sampling(evaluation, rollouts, limits)
            benchmarks.append(_benchmark(benchmark, data, tokenizer, limits, sampling))
        except BroRLError as error:
            raise type(error)(f"{where} ({benchmark.name}): {error}") from error
    return benchmarks


def held_out_prompts(
    evaluation: EvaluationConfig, data: DataConfig, tokenizer: ChatTokenizer, sources: Sources
) -> list[Prompt]:
    """Return the held-out prompts of `data` from number `evaluation.first_prompt` on, which validation uses, too.

    Raises DataError when there are none.
    """
    source = sources.split("held_out", EVALUATION_SEED)
    stream = PromptStream(source, tokenizer, data, split="held_out")
    prompts = stream.take_prompts(evaluation.first_prompt + evaluation.num_prompts)
    chosen = prompts[evaluation.first_prompt :]
    if not chosen:
        num_too_long = sum(stream.num_skipped.values())
        if num_too_long and not prompts:
            raise DataError(
                f"all {num_too_long} held-out prompts are longer than data.max_prompt_tokens={data.max_prompt_tokens}, "
                f"up to {stream.longest_skipped} tokens: set data.max_prompt_tokens={stream.longest_skipped} if the "
                "model has room for them, or give data.held_out_path with shorter ones"
            )
        raise DataError(
            f"there are {len(prompts)} held-out prompts and none from "
            f"evaluation.first_prompt={evaluation.first_prompt} on: raise data.held_out_fraction, give more data, or "
            "set a smaller evaluation.first_prompt"
        )
    return chosen


def _held_out(
    evaluation: EvaluationConfig, data: DataConfig, rollouts: RolloutsConfig, tokenizer: ChatTokenizer
) -> Benchmark:
    limits = benchmark_limits(evaluation, data, rollouts, None)
    shared: str | None = data.system_prompt
    by_domain = {}
    if data.source == "mixture":
        for domain in data.domains:
            if domain.weight > 0:
                by_domain[domain.name] = shared if domain.system_prompt is None else domain.system_prompt
    return Benchmark(
        name=HELD_OUT,
        prompts=tuple(held_out_prompts(evaluation, data, tokenizer, Sources(data))),
        num_samples=limits.num_samples,
        sampling=_sampling(evaluation, rollouts, limits),
        system_prompt=by_domain or shared,
    )


def _benchmark(
    config: BenchmarkConfig, data: DataConfig, tokenizer: ChatTokenizer, limits: BenchmarkLimits, sampling: Sampling
) -> Benchmark:
    system_prompt = data.system_prompt if config.system_prompt is None else config.system_prompt
    question_check = QuestionCheck(tokenizer)
    prompts = []
    for number, question in _questions(config, data.held_out_fraction):
        if question.has_episodes:
            question_check.check(question.tools)
        rendered = render_question(question, system_prompt, data, config.success_reward)
        token_ids = tokenizer.prompt_ids(rendered.messages, system_prompt, question.tools)
        prompt = Prompt(
            uid=f"{config.name}/{number}",
            task=question.task,
            verifier=question.verifier,
            token_ids=tuple(token_ids),
            payload=with_open_thought(question.verifier, rendered.payload, tokenizer),
            domain=config.domain or config.name,
            messages=tuple(rendered.messages),
        )
        prompts.append(prompt)
    _check_lengths(prompts, limits.max_prompt_tokens)
    return Benchmark(
        name=config.name,
        prompts=tuple(prompts),
        num_samples=limits.num_samples,
        sampling=sampling,
        system_prompt=system_prompt,
    )


def _check_lengths(prompts: Sequence[Prompt], most: int) -> None:
    """Raise DataError when prompts of a benchmark have more than `most` tokens."""
    too_long = {}  # uid -> tokens
    for prompt in prompts:
        if len(prompt.token_ids) > most:
            too_long[prompt.uid] = len(prompt.token_ids)
    if too_long:
        first = islice(too_long.items(), NUM_NAMED)
        named = ", ".join(f"{uid} has {size}" for uid, size in first)
        raise DataError(
            f"{len(too_long)} of {len(prompts)} prompts have more than max_prompt_tokens={most} tokens ({named}): "
            f"set max_prompt_tokens={max(too_long.values())}, and generation.max_model_len with it"
        )


def _questions(config: BenchmarkConfig, held_out_fraction: float) -> Iterator[tuple[int, Question]]:
    """Yield the questions of a benchmark, each with its row number in the file or its number as a generated question.

    With an environment, a question is the start of an episode.
    """
    if config.environment is None:
        yield from _without_environment(config, held_out_fraction)
        return
    episodes = Episodes(config)
    if config.source == DRAWN:
        assert config.num_prompts is not None, "rules ask for a number"
        seed = f"{EVALUATION_SEED}/{config.name}"
        drawn = DrawnSource(episodes, held_out_fraction, "held_out", seed)
        for number in range(config.num_prompts):
            yield number, drawn.question(number)
        return
    for number, question in _without_environment(config, held_out_fraction):
        yield number, episodes.answering(question)


def _without_environment(config: BenchmarkConfig, held_out_fraction: float) -> Iterator[tuple[int, Question]]:
    if config.source == "reasoning_gym":
        assert config.num_prompts is not None, "rules ask for a number"
        drawn = open_tasks(config, held_out_fraction, "held_out", f"{EVALUATION_SEED}/{config.name}")
        for number in range(config.num_prompts):
            yield number, drawn.question(number)
        return
    assert config.path is not None, "rules ask for a path"
    file = open_questions(config, config.path, config.name)
    # Rows keep the order of the file, so that every model gets the same first rows, whatever the run's seed.
    for row in file.rows[: config.num_prompts].tolist():
        yield row, file.question(row)


def _sampling(evaluation: EvaluationConfig, rollouts: RolloutsConfig, limits: BenchmarkLimits) -> Sampling:
    max_tokens = limits.max_response_tokens
    return Sampling(evaluation.temperature, evaluation.top_p, max_tokens, rollouts.max_turn_tokens, *rollouts.stops)


def _digest(items: Sequence[Any]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for item in items:
        line = json.dumps(item, sort_keys=True)
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()
