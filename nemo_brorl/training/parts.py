"""The parts that the training loop works with, each behind its port."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.core.console import Console
from nemo_brorl.evaluation.validation import Evaluator
from nemo_brorl.ports import Generator, MetricSink, Policy, PromptSource
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.training.checkpoint import Checkpoints
from nemo_brorl.training.observers import Observer


@dataclass(frozen=True)
class Parts:
    """The objects that the training loop works with, made by `wiring.py`."""

    sizes: RunSizes
    prompts: PromptSource
    policy: Policy
    generator: Generator
    sampler: Sampler
    evaluator: Evaluator
    sink: MetricSink
    checkpoints: Checkpoints
    console: Console
    observers: Sequence[Observer]
    run_folder: Path
