"""Build the services of a run from its settings.

This is the only module that knows all implementations. It chooses the one behind each port, once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from brorl_graders import names_in

from nemo_brorl.algorithm.teaching import Teaching
from nemo_brorl.cluster.process_placement import places_of
from nemo_brorl.cluster.ray_cluster import RayCluster
from nemo_brorl.cluster.ray_watch import start_limit
from nemo_brorl.commands.check_inputs import check_questions
from nemo_brorl.commands.run import resolve_model
from nemo_brorl.commands.teachers import check_teachers, has_checkpoint, rank_settings
from nemo_brorl.config.named_code import check_names
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.clock import Stopwatch
from nemo_brorl.core.console import Console, get_logger
from nemo_brorl.core.stall_watch import Heartbeat
from nemo_brorl.core.timeline import Timeline
from nemo_brorl.core.tokenizer import ChatTokenizer, load_tokenizer
from nemo_brorl.evaluation.benchmarks import EVALUATION_SEED, held_out_prompts
from nemo_brorl.evaluation.constant_answers import check_constants
from nemo_brorl.evaluation.shown_responses import Decode
from nemo_brorl.evaluation.validation import Evaluator
from nemo_brorl.generation import device
from nemo_brorl.generation.pool import VllmPool
from nemo_brorl.policy.driver.megatron_policy import MegatronPolicy
from nemo_brorl.ports import MetricSink, RolloutStore
from nemo_brorl.prompts.prompt_check import NUM_PROMPTS as NUM_CHECKED
from nemo_brorl.prompts.prompt_check import check_prompts
from nemo_brorl.prompts.sources import Sources
from nemo_brorl.prompts.stream import PromptStream
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.scoring.grader_settings import service_folder
from nemo_brorl.scoring.pool import VerifierPool
from nemo_brorl.scoring.preparation import check_verifiers
from nemo_brorl.scoring.turn_tokens import check_environment
from nemo_brorl.training.checkpoint import Checkpoints
from nemo_brorl.training.observers import Observer
from nemo_brorl.training.own_observers import find_observers
from nemo_brorl.training.parts import Parts
from nemo_brorl.training.run_observers import Events, MassBalanceMetrics, StepLine, StoredRollouts
from nemo_brorl.training.samples import Samples
from nemo_brorl.training.step_timeline import Timelines
from nemo_brorl.training.store.store import make_store
from nemo_brorl.types import Prompt

log = get_logger(__name__)


@dataclass(frozen=True)
class Inputs:
    """Inputs of training (tokenizer, prompts, verifier names), which are checked before anything expensive starts."""

    model_folder: Path
    tokenizer: ChatTokenizer
    prompts: PromptStream
    held_out: list[Prompt]
    verifiers: list[str]  # names of the verifiers of the held-out prompts, which come from all domains


@dataclass(frozen=True)
class Actors:
    """The services of a run that are in other processes."""

    policy: MegatronPolicy | None  # None: engines and verifiers alone, as for an evaluation
    generator: VllmPool
    verifier: VerifierPool

    def trained_policy(self) -> MegatronPolicy:
        """Return the Megatron policy, which a command that trains must have started."""
        assert self.policy is not None, "actors were started without a policy"
        return self.policy


def read_inputs(config: BroRLConfig, model_folder: Path) -> Inputs:
    """Load tokenizer and prompts, and check the prompts, and that the verifiers which they name can score them.

    Verifier names are resolved as configured in this process (`grader_settings.configure`). Raises ModelError,
    DataError, ConfigError for a verifier of the user's own, and the errors of `check_verifiers`.
    """
    device.check(config.generation, RunSizes.from_config(config))
    check_names(config)
    tokenizer = load_tokenizer(model_folder, template=config.data.template)
    for _, section in config.data.sources():
        check_environment(section, tokenizer)
    sources = Sources(config.data)
    source = sources.split("train", config.trainer.seed)
    prompts = PromptStream(source, tokenizer, config.data)
    first = prompts.peek(NUM_CHECKED)
    check_prompts(tokenizer, model_folder, first, config.data, config.rollouts)
    held_out = held_out_prompts(config.evaluation, config.data, tokenizer, sources)
    check_teachers(config, model_folder, tokenizer, [*first, *held_out])
    names: set[str] = set()
    for prompt in held_out:
        names.update(names_in(prompt.verifier, prompt.payload))
    verifiers = sorted(names)
    check_verifiers(config.rewards, verifiers)
    check_questions(config, model_folder, tokenizer, source, sources.split("held_out", EVALUATION_SEED), len(held_out))
    return Inputs(model_folder, tokenizer, prompts, held_out, verifiers)


def try_constants(config: BroRLConfig) -> None:
    """Warn of tasks that give rewards for a constant answer.

    Raises DataError if `rewards.constant_answers` refuses such tasks.
    """
    sources = [source for _, source in config.data.sources()]
    for paid in check_constants(sources, config.rewards):
        log.warning("%s: a policy may learn to say just that (rewards.constant_answers)", paid)


@contextlib.contextmanager
def start_actors(
    config: BroRLConfig,
    model_folder: Path,
    verifiers: Sequence[str],
    watch: Stopwatch,
    *,
    with_policy: bool = True,
    with_answers: bool = False,
    heartbeat: Heartbeat | None = None,
) -> Iterator[Actors]:
    """Start Ray, policy ranks, engines and verifiers concurrently, and stop all of them when the context ends.

    `with_answers`: verifiers also return the answers that they extract from responses, which an evaluation needs.
    """
    with contextlib.ExitStack() as stack:
        with watch.measure("ray"):
            stack.enter_context(RayCluster(config.trainer))
        sizes = RunSizes.from_config(config)
        places = places_of(sizes)
        stack.callback(places.close)
        generator = VllmPool(config.generation, sizes, model_folder, places, heartbeat, config.policy.moe.router_replay)
        stack.callback(generator.close)
        policy = None
        if with_policy:
            policy = MegatronPolicy(rank_settings(config, has_checkpoint(config)), model_folder, heartbeat, places)
            stack.callback(policy.close)
        record_folder = service_folder(Path(config.exp_manager.explicit_log_dir))
        template = config.data.template
        verifier = VerifierPool(config.rewards, model_folder, verifiers, with_answers, record_folder, template)
        stack.callback(verifier.close)
        yield Actors(policy, generator, verifier)


def wait_ready(
    actors: Actors,
    watch: Stopwatch,
    heartbeat: Heartbeat | None = None,
    engines_sleep: bool = False,
) -> None:
    """Wait until every policy rank, engine and verifier has loaded what it needs.

    `heartbeat` tracks the start of the engines. The policy tracks that of its ranks with the heartbeat that it was
    created with. With `engines_sleep` engines on the policy's GPUs sleep when it loads, for a DeviceHandover to wake.
    """
    policy = actors.policy
    heartbeat = heartbeat or Heartbeat()
    if policy is not None and not policy.loads_last:
        with watch.measure("policy"):
            policy.wait_ready()
    with watch.measure("engines"), heartbeat.stage("engines start", actors.generator.stalled):
        actors.generator.wait_ready()
    if policy is not None and policy.loads_last:
        if engines_sleep:
            actors.generator.sleep()
        with watch.measure("policy"):
            policy.wait_ready()
    with watch.measure("verifiers"):
        actors.verifier.wait_ready()


@contextlib.contextmanager
def ready_actors(
    config: BroRLConfig,
    model_folder: Path,
    verifiers: Sequence[str],
    *,
    with_policy: bool = True,
    with_answers: bool = False,
    watch: Stopwatch | None = None,
) -> Iterator[Actors]:
    """Start policy, engines and verifiers for a command without a stall watchdog, and wait until they are ready.

    The process ends if their start takes longer than `trainer.start_timeout_s`.
    """
    watch = watch or Stopwatch()
    starting = start_actors(config, model_folder, verifiers, watch, with_policy=with_policy, with_answers=with_answers)
    with contextlib.ExitStack() as stack:
        with start_limit(RunSizes.from_config(config).start_timeout_s):
            actors = stack.enter_context(starting)
            wait_ready(actors, watch)
        yield actors


def make_sampler(
    config: BroRLConfig,
    actors: Actors,
    console: Console,
    heartbeat: Heartbeat | None = None,
) -> Sampler:
    """Return a sampler that generates rollouts with the engines and scores them with the verifiers."""
    chunk_size, seed = config.rollouts.chunk_size, config.trainer.seed
    return Sampler(actors.generator, actors.verifier, console, chunk_size, seed, heartbeat)


def run_observers(
    config: BroRLConfig,
    run_folder: Path,
    store: RolloutStore,
    timeline: Timeline,
    decode: Decode,
    console: Console,
) -> list[Observer]:
    """Return the observers of a run's training loop, including those that the settings add. Raises ConfigError."""
    added = [make(run_folder) for make in find_observers(config.trainer.observers)]
    return [
        Timelines(timeline, run_folder, config.timeline),
        Samples(run_folder, config.rollouts.save_samples, decode, console),
        StoredRollouts(
            store,
            config.dynamic_sampling,
            Teaching.from_config(config.algorithm, config.rewards.shaping),
        ),
        Events(run_folder),
        MassBalanceMetrics(),
        *added,
        StepLine(console, config.trainer.max_steps, config.parity),
    ]


def trainer_parts(
    config: BroRLConfig,
    inputs: Inputs,
    actors: Actors,
    sampler: Sampler,
    sink: MetricSink,
    run_folder: Path,
    console: Console,
) -> Parts:
    """Return the services that the training loop uses: policy, engines, evaluator, checkpoints and observers."""
    observers = run_observers(
        config,
        run_folder,
        make_store(run_folder, config.store, inputs.model_folder),
        sampler.heartbeat.timeline,
        inputs.tokenizer.decode,
        console,
    )
    return Parts(
        sizes=RunSizes.from_config(config),
        prompts=inputs.prompts,
        policy=actors.trained_policy(),
        generator=actors.generator,
        sampler=sampler,
        evaluator=Evaluator(config.evaluation, config.rollouts, inputs.held_out, sampler),
        sink=sink,
        checkpoints=Checkpoints(run_folder / "checkpoints", config.trainer.keep_checkpoints),
        console=console,
        observers=observers,
        run_folder=run_folder,
    )


@contextlib.contextmanager
def policy_alone(
    config: BroRLConfig,
    with_reference: bool = False,
    is_loaded: bool = False,
    heartbeat: Heartbeat | None = None,
    watch: Stopwatch | None = None,
) -> Iterator[MegatronPolicy]:
    """Start the policy without engines and verifiers, and stop it when the context ends.

    Without `with_reference` the policy has no KL reference model, for uses that only need its weights. With `is_loaded`
    a checkpoint is loaded next, which has the weights of teachers.
    """
    if not with_reference:
        kl = replace(config.algorithm.kl, coefficient=0.0)
        algorithm = replace(config.algorithm, kl=kl)
        config = replace(config, algorithm=algorithm)
    model_folder = resolve_model(config)
    watch = watch or Stopwatch()
    with contextlib.ExitStack() as stack:
        with start_limit(RunSizes.from_config(config).start_timeout_s):
            with watch.measure("ray"):
                stack.enter_context(RayCluster(config.trainer))
            places = places_of(RunSizes.from_config(config))
            stack.callback(places.close)
            with watch.measure("policy"):
                policy = MegatronPolicy(rank_settings(config, is_loaded), model_folder, heartbeat, places)
                stack.callback(policy.close)
                policy.wait_ready()
        yield policy
