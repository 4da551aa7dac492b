"""Declare settings of validation and evaluation. The code in `evaluation/` opens the files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from omegaconf import MISSING

from nemo_brorl.config.data import FILE_WORDS, SOURCES, SourceConfig, repeated
from nemo_brorl.config.declare import path_setting, setting


@dataclass
class BenchmarkConfig(SourceConfig):
    """One benchmark of `brorl evaluate`: a source whose questions are all asked, in their order."""

    name: str = setting(MISSING, "name of the benchmark in results and files")
    source: str = setting("jsonl", "kind of source; reasoning_gym: questions held out of training", choices=SOURCES)
    domain: str | None = setting(None, "name by which results are also combined; null: the benchmark's name")
    num_prompts: int | None = setting(
        None,
        "number of prompts, the first of the source; null: all. reasoning_gym has no end and needs a number",
        at_least=1,
    )
    samples_per_prompt: int | None = setting(
        None, "responses per prompt; null: evaluation.samples_per_prompt", at_least=1
    )
    max_response_tokens: int | None = setting(
        None, "longest response in tokens; null: evaluation.max_response_tokens", at_least=1
    )
    max_prompt_tokens: int | None = setting(
        None,
        "longest prompt in tokens; null: data.max_prompt_tokens. A longer prompt is an error, because "
        "leaving it out would make the result too good",
        at_least=1,
    )
    system_prompt: str | None = setting(None, 'system prompt; null: data.system_prompt; "": none')

    def violations_at(self, where: str) -> Iterator[str]:
        """Yield a message for every error in the benchmark's settings; `where` is the key that holds them."""
        yield from super().violations_at(where)
        if self.held_out_path is not None:
            yield (
                f"{where}.held_out_path={self.held_out_path} is for training: name the file of the benchmark in "
                f"{where}.path"
            )
        if self.source in ("reasoning_gym", "environment") and self.num_prompts is None:
            yield f"{where}.source={self.source} has no end: set {where}.num_prompts, for example 100"
        if self.source in FILE_WORDS and self.tasks:
            yield f"{where}.tasks is given and {where}.source is {self.source}: set {where}.source=reasoning_gym"
        else:
            yield from self.unnamed(where)


@dataclass
class EvaluationConfig:
    """Validation and evaluation on held-out prompts or benchmarks (docs/howto/evaluate.md)."""

    num_prompts: int = setting(256, "number of held-out prompts", at_least=1)
    first_prompt: int = setting(
        0, "index of the first held-out prompt to use. Skip those that settings were tuned on", at_least=0
    )
    samples_per_prompt: int = setting(8, "responses per prompt", at_least=1)
    temperature: float = setting(1.0, "sampling temperature; 0: greedy", at_least=0)
    top_p: float = setting(
        1.0, "nucleus sampling: share of the probability mass that tokens are sampled from", above=0, at_most=1
    )
    max_response_tokens: int | None = setting(
        None, "longest response in tokens; null: rollouts.max_response_tokens", at_least=1
    )
    benchmarks: list[BenchmarkConfig] = setting(
        [], "benchmarks of `brorl evaluate`; empty: held-out prompts", may_change=True
    )
    only: list[str] = setting([], "names of the benchmarks to run; empty: all", may_change=True)
    pass_at_k: list[int] = setting([], "values of k for pass@k, besides 1 and the number of samples", may_change=True)
    majority_at_k: list[int] = setting(
        [],
        "values of k for maj@k, the score of the most frequent answer of k samples, besides the number of samples",
        may_change=True,
    )
    confidence: float = setting(0.95, "confidence level of intervals", within=(0.5, 0.9999), may_change=True)
    bootstrap_samples: int = setting(
        2000, "bootstrap resamples of prompts for an interval", within=(100, 1_000_000), may_change=True
    )
    checkpoint: str | None = path_setting(
        None,
        "checkpoint to evaluate instead of policy.model: a step_K folder, or a run folder (its newest)",
        may_change=True,
    )
    save_samples: int = setting(0, "responses per prompt that are saved as text", at_least=0, may_change=True)
    output: str | None = path_setting(None, "folder of the results; null: the run folder", may_change=True)

    def selected(self) -> list[tuple[str, BenchmarkConfig]]:
        """Return the benchmarks to evaluate, each with the settings key that holds it.

        The list is empty if the held-out prompts of `data` are used instead.
        """
        chosen = []
        for index, benchmark in enumerate(self.benchmarks):
            if not self.only or benchmark.name in self.only:
                chosen.append((f"evaluation.benchmarks.{index}", benchmark))
        return chosen

    def violations(self) -> Iterator[str]:
        names = [benchmark.name for benchmark in self.benchmarks]
        for name, times in repeated(names):
            yield f"evaluation.benchmarks names {name} {times} times: give each benchmark a name of its own"
        for index, name in enumerate(names):
            if not name or "/" in name or name.startswith("."):
                yield (
                    f"evaluation.benchmarks.{index}.name={name!r}: set a name without a slash or a dot at its "
                    "beginning; a file carries it"
                )
        for name in self.only:
            if name not in names:
                known = f"set one of {', '.join(names)}" if names else "evaluation.benchmarks lists none"
                yield f"evaluation.only names {name}, and there is no such benchmark: {known}"
        samples = {}
        for where, benchmark in self.selected():
            yield from benchmark.violations_at(where)
            samples[f"{where} ({benchmark.name})"] = benchmark.samples_per_prompt or self.samples_per_prompt
        samples = samples or {"evaluation": self.samples_per_prompt}
        for setting_name in ("pass_at_k", "majority_at_k"):
            for k in getattr(self, setting_name):
                yield from _without_samples(f"evaluation.{setting_name} has {k}", k, samples)


def _without_samples(subject: str, k: int, samples: Mapping[str, int]) -> Iterator[str]:
    """Yield a message for every benchmark that draws fewer than k samples of a prompt, too few for pass@k.

    A k below 1 gets a message, too. `samples` is the number of samples per prompt by benchmark.
    """
    if k < 1:
        yield f"{subject}: set numbers from 1"
    for name, num_samples in samples.items():
        if k > num_samples:
            yield (
                f"{subject} and {name} draws {num_samples} samples of a prompt: set samples_per_prompt={k} or more "
                f"there, or leave {k} out"
            )
