"""Config → ready parts. The only file that knows everything; every choice of who stands behind a port is made here,
once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nemo_brorl.cluster.process_placement import places_of
from nemo_brorl.cluster.ray_cluster import RayCluster
from nemo_brorl.config.derived import time_limit_s
from nemo_brorl.config.model_rules import local_model
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.clock import StopRequest, Stopwatch, grace_s
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.metric_sinks import JsonlSink, LoggerSink, MetricFan
from nemo_brorl.core.stall_watch import Heartbeat, StallWatch
from nemo_brorl.core.tokenizer import ChatTokenizer, load_tokenizer
from nemo_brorl.evaluation import Evaluator
from nemo_brorl.evaluation.benchmarks import Benchmark, held_out_prompts, read_benchmarks
from nemo_brorl.generation.pool import VllmPool
from nemo_brorl.policy.megatron_policy import MegatronPolicy
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.tasks.questions.row_index import FOLDER as INDEX_FOLDER
from nemo_brorl.tasks.questions.sources import make_source
from nemo_brorl.tasks.questions.stream import PromptStream
from nemo_brorl.tasks.scoring.pool import VerifierPool
from nemo_brorl.tasks.verifiers.code import code
from nemo_brorl.tasks.verifiers.registry import names_in
from nemo_brorl.training.checkpoint import Checkpoints
from nemo_brorl.training.parity import check_parity
from nemo_brorl.training.run_folder import claim_run_folder
from nemo_brorl.training.trainer import BroRLTrainer, Parts
from nemo_brorl.types import Prompt


@dataclass(frozen=True)
class Inputs:
    """What can be checked before anything expensive starts: model folder, tokenizer, prompts."""

    model_folder: Path
    tokenizer: ChatTokenizer
    prompts: PromptStream
    held_out: list[Prompt]

    @property
    def verifiers(self) -> list[str]:
        """Those that score the held-out prompts, which are of all domains."""
        return sorted({name for prompt in self.held_out for name in names_in(prompt.verifier, prompt.payload)})


@dataclass(frozen=True)
class EvaluationInputs:
    """The same for an evaluation, which needs no prompts to train on."""

    model_folder: Path
    tokenizer: ChatTokenizer
    benchmarks: list[Benchmark]

    @property
    def verifiers(self) -> list[str]:
        """Those that score the answers."""
        return sorted({name for benchmark in self.benchmarks for name in benchmark.verifiers})


@dataclass(frozen=True)
class Actors:
    """Everything that runs in other processes."""

    policy: MegatronPolicy | None
    generator: VllmPool
    verifier: VerifierPool


def read_inputs(config: BroRLConfig, model_folder: Path) -> Inputs:
    """Load tokenizer and prompts. Raises ModelError, DataError, or ResourceError where programs are to be run and there
    is no sandbox."""
    tokenizer = load_tokenizer(model_folder)
    index_folder = Path(config.exp_manager.explicit_log_dir) / INDEX_FOLDER
    prompts = PromptStream(make_source(config.data, "train", config.trainer.seed, index_folder), tokenizer, config.data)
    inputs = Inputs(model_folder, tokenizer, prompts, held_out_prompts(config, tokenizer))
    _check_sandbox(config, inputs.verifiers)
    return inputs


def read_evaluation_inputs(config: BroRLConfig) -> EvaluationInputs:
    """Find the model, load its tokenizer, open the benchmarks. Raises as `read_inputs`."""
    model_folder = resolve_model(config)
    tokenizer = load_tokenizer(model_folder)
    inputs = EvaluationInputs(model_folder, tokenizer, read_benchmarks(config, tokenizer))
    _check_sandbox(config, inputs.verifiers)
    return inputs


def _check_sandbox(config: BroRLConfig, verifiers: Sequence[str]) -> None:
    if "code" in verifiers:
        code.configure(config.rewards)
        code.load()


@contextlib.contextmanager
def start_actors(
    config: BroRLConfig,
    inputs: Inputs | EvaluationInputs,
    *,
    with_policy: bool,
    watch: Stopwatch,
    heartbeat: Heartbeat | None = None,
) -> Iterator[Actors]:
    """Ray, policy ranks, engines and verifiers, all starting side by side; whatever happens, all of it is gone
    afterwards. For an evaluation verifiers also read what was answered."""
    model_folder = inputs.model_folder
    with contextlib.ExitStack() as stack:
        with watch.measure("ray"):
            stack.enter_context(RayCluster(config))
        places = places_of(config)
        stack.callback(places.close)
        generator = VllmPool(config, model_folder, places)
        stack.callback(generator.close)
        policy = MegatronPolicy(config, model_folder, heartbeat, places) if with_policy else None
        if policy is not None:
            stack.callback(policy.close)
        verifier = VerifierPool(
            config.rewards, model_folder, inputs.verifiers, with_answers=isinstance(inputs, EvaluationInputs)
        )
        stack.callback(verifier.close)
        yield Actors(policy, generator, verifier)


def wait_ready(actors: Actors, watch: Stopwatch, heartbeat: Heartbeat | None = None) -> None:
    """Until every actor holds its model. `heartbeat` is told of the engines' start; the policy has its own."""
    if actors.policy is not None and not actors.policy.loads_last:
        with watch.measure("policy"):
            actors.policy.wait_ready()
    with watch.measure("engines"), (heartbeat or Heartbeat()).stage("engines start", actors.generator.stalled):
        actors.generator.wait_ready()
    if actors.policy is not None and actors.policy.loads_last:
        with watch.measure("policy"):
            actors.policy.wait_ready()
    with watch.measure("verifiers"):
        actors.verifier.wait_ready()


@dataclass(frozen=True)
class Launch:
    """A training run whose processes are starting."""

    inputs: Inputs
    actors: Actors
    run_folder: Path
    stop: StopRequest
    console: Console
    watch: Stopwatch
    heartbeat: Heartbeat


@contextlib.contextmanager
def launching(config: BroRLConfig, console: Console) -> Iterator[Launch]:
    """Cheap checks first, then all processes at once; the caller goes on while they start."""
    watch = Stopwatch()
    with watch.measure("inputs"):
        model_folder = resolve_model(config)
        inputs = read_inputs(config, model_folder)
        run_folder = claim_run_folder(config)
    stop = StopRequest(time_limit_s(config), grace_s(os.environ))
    stop.install()
    heartbeat, trainer = Heartbeat(), config.trainer
    with (
        StallWatch(heartbeat, run_folder, trainer.stall_warning_s, trainer.stall_timeout_s),
        start_actors(config, inputs, with_policy=True, watch=watch, heartbeat=heartbeat) as actors,
    ):
        yield Launch(inputs, actors, run_folder, stop, console, watch, heartbeat)


@contextlib.contextmanager
def ready_trainer(config: BroRLConfig, launch: Launch, loggers: Sequence[Any]) -> Iterator[BroRLTrainer]:
    """A trainer before its next step: parity gate passed, newest checkpoint loaded."""
    actors, console, watch = launch.actors, launch.console, launch.watch
    assert actors.policy is not None, "training was launched without a policy"
    wait_ready(actors, watch, launch.heartbeat)
    with watch.measure("parity"):
        if config.parity.enabled:
            prompts = launch.inputs.held_out[: config.parity.num_prompts]
            console.line(f"parity: {check_parity(config, prompts, actors.policy, actors.generator)}")
    sampler = Sampler(
        actors.generator, actors.verifier, console, config.rollouts.chunk_size, config.trainer.seed, launch.heartbeat
    )
    sinks = MetricFan(list(map(LoggerSink, loggers)))
    parts = Parts(
        prompts=launch.inputs.prompts,
        policy=actors.policy,
        generator=actors.generator,
        sampler=sampler,
        evaluator=Evaluator(config, launch.inputs.held_out, sampler),
        sink=sinks,
        checkpoints=Checkpoints(launch.run_folder / "checkpoints", config.trainer.keep_checkpoints),
        console=console,
        decode=launch.inputs.tokenizer.decode,
        run_folder=launch.run_folder,
    )
    trainer = BroRLTrainer(config, parts, launch.stop)
    with watch.measure("resume"):
        is_resumed = trainer.resume()
    if is_resumed:
        console.line(f"resumed after step {trainer.step_number} of {launch.run_folder}")
    if (attempt := os.environ.get("BRORL_TRY")) is not None:
        trainer.events.write(
            trainer.step_number, "start", f"job {os.environ.get('SLURM_JOB_ID', '')}, try {attempt}", float(attempt)
        )
    launch.heartbeat.on_stall = lambda text, seconds: trainer.events.write(
        trainer.step_number + 1, "stall", text, seconds
    )
    launch.stop.install()  # again: Ray's start and NeMo's import put handlers of their own in place
    sinks.sinks.insert(0, JsonlSink(launch.run_folder / "metrics.jsonl", trainer.step_number if is_resumed else None))
    try:
        yield trainer
    finally:
        sinks.close()


@contextlib.contextmanager
def evaluating(config: BroRLConfig, inputs: EvaluationInputs, console: Console) -> Iterator[Sampler]:
    """Engines and verifiers alone."""
    with start_actors(config, inputs, with_policy=False, watch=Stopwatch()) as actors:
        wait_ready(actors, Stopwatch())
        yield Sampler(actors.generator, actors.verifier, console, config.rollouts.chunk_size, config.trainer.seed)


@contextlib.contextmanager
def converting(config: BroRLConfig) -> Iterator[MegatronPolicy]:
    """The policy alone, for its weights: no reference."""
    without_reference = replace(
        config, algorithm=replace(config.algorithm, kl=replace(config.algorithm.kl, coefficient=0.0))
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(RayCluster(config))
        places = places_of(config)
        stack.callback(places.close)
        policy = MegatronPolicy(without_reference, resolve_model(config), places=places)
        stack.callback(policy.close)
        policy.wait_ready()
        yield policy


def resolve_model(config: BroRLConfig) -> Path:
    """A local folder as it is, otherwise a Hugging Face name, downloaded into the hub's cache. Raises ModelError."""
    folder = local_model(config)
    if folder is not None:
        return folder
    name = config.policy.model
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(f"policy.model={name} is no folder here and could not be downloaded: {error}") from error
