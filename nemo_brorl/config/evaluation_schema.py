"""Settings of validation and evaluation (`schema.py` puts the sections together)."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING

from nemo_brorl.config.data_schema import SourceConfig


@dataclass
class BenchmarkConfig(SourceConfig):
    """One benchmark of `evaluate`: a source whose questions are all asked, in their order."""

    name: str = MISSING
    source: str = "jsonl"  # jsonl, parquet, dataset (a folder), reasoning_gym (questions that are held out of training)
    domain: str | None = None  # results are also put together by domain; null: the name
    num_prompts: int | None = None  # only the first so many; null: all; reasoning_gym has no end and needs a number
    samples_per_prompt: int | None = None  # null: evaluation.samples_per_prompt
    max_response_tokens: int | None = None  # null: evaluation.max_response_tokens
    # null: data.max_prompt_tokens; a longer prompt is an error, as leaving it out would flatter
    max_prompt_tokens: int | None = None
    system_prompt: str | None = None  # null: data.system_prompt; "" for none


@dataclass
class EvaluationConfig:
    """Validation and evaluation on held-out prompts or benchmarks (docs/evaluation.md)."""

    num_prompts: int = 256  # held-out prompts
    samples_per_prompt: int = 8
    temperature: float = 1.0
    top_p: float = 1.0
    max_response_tokens: int | None = None  # null: as in training
    benchmarks: list[BenchmarkConfig] = field(default_factory=list)  # of `evaluate`; none: the held-out prompts of data
    only: list[str] = field(default_factory=list)  # names of the benchmarks to ask; none: all
    pass_at_k: list[int] = field(
        default_factory=list
    )  # k to estimate in `evaluate`, beside 1 and all samples of a prompt
    majority_at_k: list[int] = field(
        default_factory=list
    )  # the same for the answer that most of k samples give, beside all samples
    confidence: float = 0.95  # of intervals
    bootstrap_samples: int = 2000  # resamplings of prompts behind an interval
    # evaluate this one, a step_K folder or a run folder (its newest), in place of policy.model
    checkpoint: str | None = None
    compare_with: str | None = None  # an evaluation.json of the same prompts and settings: paired tests against it
    save_samples: int = 0  # responses of each prompt that are kept as text
    output: str | None = None  # folder of the results; null: the run folder
