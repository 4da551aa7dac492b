"""A trainer on fakes, for unit tests of the loop."""

from __future__ import annotations

from pathlib import Path

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.clock import StopRequest
from nemo_brorl.core.console import Console
from nemo_brorl.evaluation import Evaluator
from nemo_brorl.ports import PromptSource
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.training.checkpoint import Checkpoints
from nemo_brorl.training.trainer import BroRLTrainer, Parts
from tests.support.fakes import FakeGenerator, FakePolicy, FakePrompts, FakeVerifier, ListSink, ListStore, make_prompt


def small_config(max_steps: int = 6) -> BroRLConfig:
    config = BroRLConfig()
    config.trainer.max_steps, config.trainer.val_interval, config.trainer.save_interval = max_steps, 3, 2
    config.rollouts.num_per_prompt, config.rollouts.prompts_per_step, config.rollouts.chunk_size = 8, 2, 3
    config.algorithm.num_mini_batches = 2
    config.evaluation.samples_per_prompt = 4
    return config


def make_trainer(
    folder: Path,
    config: BroRLConfig,
    num_skipped: int = 0,
    generator: FakeGenerator | None = None,
    verifier: FakeVerifier | None = None,
    prompts: PromptSource | None = None,
) -> BroRLTrainer:
    generator, verifier, console = generator or FakeGenerator(), verifier or FakeVerifier(), Console()
    sampler = Sampler(generator, verifier, console, config.rollouts.chunk_size, config.trainer.seed)
    parts = Parts(
        prompts=prompts or FakePrompts(),
        policy=FakePolicy(num_skipped),
        generator=generator,
        sampler=sampler,
        evaluator=Evaluator(config, [make_prompt(f"held_out/{index}") for index in range(3)], sampler),
        sink=ListSink(),
        store=ListStore(),
        checkpoints=Checkpoints(folder / "checkpoints", config.trainer.keep_checkpoints),
        console=console,
        decode=lambda ids: " ".join(map(str, ids)),
        run_folder=folder,
    )
    return BroRLTrainer(config, parts, StopRequest(None))


def fake(trainer: BroRLTrainer) -> FakePolicy:
    assert isinstance(trainer.parts.policy, FakePolicy)
    return trainer.parts.policy


def last_row(trainer: BroRLTrainer) -> dict[str, float]:
    """Metrics of the newest step."""
    assert isinstance(trainer.parts.sink, ListSink)
    return trainer.parts.sink.rows[-1][1]
