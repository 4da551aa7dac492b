"""A trainer on fakes, for unit tests of the loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nemo_brorl.commands.wiring import run_observers
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.clock import StopRequest
from nemo_brorl.core.console import Console
from nemo_brorl.core.stall_watch import Heartbeat
from nemo_brorl.evaluation.validation import Evaluator
from nemo_brorl.ports import PromptSource, RolloutStore
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.training.checkpoint import Checkpoints
from nemo_brorl.training.parts import Parts
from nemo_brorl.training.run_observers import StoredRollouts
from nemo_brorl.training.trainer import BroRLTrainer
from tests.support.fakes import FakeGenerator, FakePolicy, FakePrompts, FakeVerifier, ListSink, ListStore, make_prompt


def decode(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def small_config(max_steps: int = 6) -> BroRLConfig:
    config = BroRLConfig()
    config.trainer.max_steps, config.trainer.val_interval, config.trainer.save_interval = max_steps, 3, 2
    config.rollouts.num_per_prompt, config.rollouts.prompts_per_step, config.rollouts.chunk_size = 8, 2, 3
    config.algorithm.num_mini_batches = 2
    config.evaluation.samples_per_prompt = 4
    config.parity.enabled = False
    return config


def make_trainer(
    folder: Path,
    config: BroRLConfig,
    num_skipped: int = 0,
    generator: FakeGenerator | None = None,
    verifier: FakeVerifier | None = None,
    prompts: PromptSource | None = None,
    heartbeat: Heartbeat | None = None,
    without: str = "",
    policy: FakePolicy | None = None,
) -> BroRLTrainer:
    """`without`: name of an observer that is left out."""
    generator, verifier, console = generator or FakeGenerator(), verifier or FakeVerifier(), Console()
    sampler = Sampler(generator, verifier, console, config.rollouts.chunk_size, config.trainer.seed, heartbeat)
    observers = run_observers(config, folder, ListStore(), sampler.heartbeat.timeline, decode, console)
    parts = Parts(
        sizes=RunSizes.from_config(config),
        prompts=prompts or FakePrompts(),
        policy=policy or FakePolicy(num_skipped),
        generator=generator,
        sampler=sampler,
        evaluator=Evaluator(
            config.evaluation, config.rollouts, [make_prompt(f"held_out/{index}") for index in range(3)], sampler
        ),
        sink=ListSink(),
        checkpoints=Checkpoints(folder / "checkpoints", config.trainer.keep_checkpoints),
        console=console,
        observers=[observer for observer in observers if observer.name != without],
        run_folder=folder,
    )
    return BroRLTrainer(config, parts, StopRequest(None))


def use_store(trainer: BroRLTrainer, store: RolloutStore) -> None:
    """Have a trainer hand its rollouts to another store."""
    for observer in trainer.parts.observers:
        if isinstance(observer, StoredRollouts):
            observer.store = store


def store_of(trainer: BroRLTrainer) -> ListStore:
    """The store that the run's rollouts go to."""
    [observer] = [found for found in trainer.parts.observers if isinstance(found, StoredRollouts)]
    assert isinstance(observer.store, ListStore)
    return observer.store


def fake(trainer: BroRLTrainer) -> FakePolicy:
    assert isinstance(trainer.parts.policy, FakePolicy)
    return trainer.parts.policy


def last_row(trainer: BroRLTrainer) -> dict[str, float]:
    """Metrics of the newest step."""
    assert isinstance(trainer.parts.sink, ListSink)
    return trainer.parts.sink.rows[-1][1]
