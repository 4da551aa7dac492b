"""Parts that the training loop works with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_brorl.core.console import Console
from nemo_brorl.evaluation import Evaluator
from nemo_brorl.ports import Generator, MetricSink, Policy, PromptSource, RolloutStore
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.training.checkpoint import Checkpoints


@dataclass(frozen=True)
class Parts:
    """What the loop works with, made by `wiring.py`."""

    prompts: PromptSource
    policy: Policy
    generator: Generator
    sampler: Sampler
    evaluator: Evaluator
    sink: MetricSink
    store: RolloutStore
    checkpoints: Checkpoints
    console: Console
    decode: Callable[[Sequence[int]], str]
    run_folder: Path
