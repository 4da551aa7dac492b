"""Train from a Python program or a notebook: a model, a reward function, and questions.

    with Session("models/sums", reward, rows, {"rollouts.num_per_prompt": 16}) as session:
        while session.step < 3:
            groups = session.sample()
            session.update(groups)
        session.save("out/hf")

Settings, checks, run folder and resume are those of `brorl train`, which `train` runs to its last step. No signal
handler is installed: a program that hosts a run has its own.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from brorl_graders import GIVEN_REWARD, give_reward, keep_reward

from nemo_brorl.cluster.object_store import fetch
from nemo_brorl.commands.run import configured, sized
from nemo_brorl.commands.train import check_training, finished_run, fit, opened, read_inputs
from nemo_brorl.config.load import CommandLine, is_section
from nemo_brorl.config.same_run import RECORD
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.clock import StopRequest, Stopwatch
from nemo_brorl.core.console import Console, get_logger, stop_log
from nemo_brorl.core.errors import CheckpointError, ConfigError, DataError, StarvationError
from nemo_brorl.core.files import naming, write_atomically
from nemo_brorl.core.lock import locked
from nemo_brorl.core.stall_watch import Heartbeat
from nemo_brorl.core.start_report import OnStage, StageReport
from nemo_brorl.core.timeline import Timeline
from nemo_brorl.rollouts.failures import FailureCount
from nemo_brorl.rollouts.ledger import requests_for, sampling_of
from nemo_brorl.training.records import read_metrics
from nemo_brorl.training.trainer import BroRLTrainer
from nemo_brorl.types import Prompt, Sampling, ScoredGroup

if TYPE_CHECKING:
    from nemo_brorl.commands.wiring import Actors, Inputs

    Opened = tuple[BroRLConfig, Inputs, Actors, BroRLTrainer]

log = get_logger(__name__)

Folder = str | Path
Reward = Callable[..., Any] | str  # a function, or the name of a verifier
Settings = Mapping[str, Any] | Sequence[str]  # values by dotted name or section, or texts as KEY=VALUE

RECIPE = "your_model"
RUN = "runs/session"  # run folder of questions that are given as rows
ROWS = "questions.jsonl"  # file of the rows in the run folder
LOG_DIR = "exp_manager.explicit_log_dir"
EXAMPLE = "{'prompt': 'What is 2 + 3?', 'answer': '5'}"

_one = threading.Lock()  # held while a session is open: Ray and the reward function are of the whole process


class Session:
    """A training run whose loop is the caller's: engines, verifiers and a policy that stay up between calls."""

    def __init__(
        self,
        model: Folder | None = None,
        reward: Reward | None = None,
        data: Any = None,
        settings: Settings = (),
        *,
        recipe: Folder = RECIPE,
        run: Folder | None = None,
        on_stage: OnStage | None = None,
        **sections: Any,
    ) -> None:
        """Check the inputs, start all processes, and resume the run if its folder has a checkpoint.

        `model`, `reward` and `data` replace `policy.model`, the verifier and the questions of a recipe. `data`: rows as
        mappings, such as a list or a `datasets.Dataset`. `settings` and `sections` are further settings. `recipe`: name
        of a shipped YAML file, or the path of one. `run`: the run folder. `on_stage` is called at the begin and at the
        end of each stage of the start. Raises BroRLError.
        """
        self._open: BroRLTrainer | None = None
        self._num_asked = 0
        self._num_fruitless = 0  # groups since the last step
        self._sampled_s = 0.0  # the same for seconds of sampling and scoring
        with contextlib.ExitStack() as self._stack:
            texts = [*_texts(settings), *_texts(sections)]
            self.config, line = self._stack.enter_context(_checked(model, reward, data, texts, recipe, run))
            self._begin(line, on_stage)
            self._stack = self._stack.pop_all()

    def _begin(self, line: CommandLine, on_stage: OnStage | None) -> None:
        if self.config.rollouts.overlap:
            raise ConfigError("rollouts.overlap=true is for `train`: a loop of your own says when it samples")
        _, inputs, _, trainer = self._stack.enter_context(_opened(self.config, line, on_stage))
        self._tokenizer, self._open = inputs.tokenizer, trainer

    @property
    def _trainer(self) -> BroRLTrainer:
        if self._open is None:
            raise ConfigError("this session is closed: make another one, which goes on in the same run folder")
        return self._open

    @property
    def _sampling(self) -> Sampling:
        return sampling_of(self.config.rollouts)

    @property
    def step(self) -> int:
        """Number of training steps of the run so far, those before a resume included."""
        return self._trainer.step_number

    def sample(self, num_prompts: int | None = None, num_per_prompt: int | None = None) -> list[ScoredGroup]:
        """Return groups of scored rollouts of the next prompts, by default as many as the settings say.

        Left out are rollouts whose reward function fails. Raises VerifierError if it fails on all of them.
        """
        trainer = self._trainer
        carry_over, stage, start = trainer.batches.carry_over, trainer.schedule.stage, time.monotonic()
        trainer.observers.step_begins(self.step + 1)
        carry_over.begin_step(stage, trainer.version)
        prompts = carry_over.take_prompts(num_prompts or stage.prompts_per_step)
        num = num_per_prompt or stage.num_per_prompt
        groups = trainer.parts.sampler.sample(prompts, num, self._sampling, "generate")
        FailureCount(groups).check("Mend the reward function")
        self._sampled_s += time.monotonic() - start
        return [group for group in groups if len(group.rewards)]

    def update(self, groups: Sequence[ScoredGroup]) -> dict[str, float]:
        """Train on the informative groups, send the new weights to the engines, and return the metrics of the step.

        They are a row of `metrics.jsonl`, too. Without an informative group there is no step, and the result is empty.
        Raises StarvationError once `dynamic_sampling.max_sampled` times the groups of a step were in vain.
        """
        trainer = self._trainer
        filled = trainer.batches.of_groups(groups, trainer.version, self._sampled_s)
        self._num_fruitless = 0 if filled.batch else self._num_fruitless + len(groups)
        if self._num_fruitless > self.config.dynamic_sampling.max_sampled * self.config.rollouts.prompts_per_step:
            raise StarvationError(
                f"none of the last {self._num_fruitless} groups is informative: all responses to a question earn the "
                "same. Choose easier or harder questions, or a larger rollouts.num_per_prompt"
            )
        if not filled.batch:
            trainer.parts.console.line("no group is informative: no step")
            return {}
        self._sampled_s = 0.0
        watch = Stopwatch(trainer.timeline)
        watch.seconds["collect"] = filled.generate_s
        trainer.learn(filled, watch)
        metrics = trainer.row.merged()
        trainer.after_step(is_validated=False)
        trainer.observers.interval_ended()
        return metrics

    def ask(self, question: str, num: int = 1, temperature: float | None = None) -> list[str]:
        """Return what the model answers now. Nothing is scored, and no instruction is added to the question."""
        config, trainer, tokenizer = self.config, self._trainer, self._tokenizer
        ids = tokenizer.prompt_ids(question, config.data.system_prompt)
        if len(ids) > config.data.max_prompt_tokens:
            raise DataError(
                f"the question has {len(ids)} tokens, data.max_prompt_tokens={config.data.max_prompt_tokens}"
            )
        # Its number makes a question that is asked again draw other random numbers.
        self._num_asked += 1
        prompt = Prompt(f"ask/{self._num_asked}", "ask", "", tuple(ids), {})
        sampling = self._sampling if temperature is None else replace(self._sampling, temperature=temperature)
        texts = []
        requests = requests_for([prompt], num, num, sampling, config.trainer.seed)
        for chunk in trainer.parts.generator.generate(requests):
            arrays = fetch(chunk.data)
            texts += [tokenizer.decode(ids.tolist()) for ids in np.split(arrays.token_ids, arrays.offsets[1:-1])]
        return texts

    def save(self, folder: Folder) -> Path:
        """Write the current weights into a folder in the format of Hugging Face, and return it."""
        path = Path(folder).expanduser().absolute()
        with self._trainer.handover.policy_phase(Stopwatch(self._trainer.timeline)):
            self._trainer.parts.policy.export(path)
        return path

    def close(self) -> None:
        """Save a checkpoint of the last step, and end all processes. May be called again."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all processes. After an error the last checkpoint stays the newest one."""
        trainer, self._open = self._open, None
        if kind is not None:
            self._stack.__exit__(kind, error, trace)
            return
        with self._stack:
            if trainer is not None and trainer.step_number:
                trainer.saved.save(trainer.step_number, wait=True)


class _Training(Session):
    """A run that trains up to its last step where a session would begin."""

    def _begin(self, line: CommandLine, on_stage: OnStage | None) -> None:
        if finished := finished_run(self.config):
            Console().line(finished)
        else:
            fit(*self._stack.enter_context(_opened(self.config, line, on_stage)))


def train(*given: Any, **named: Any) -> list[dict[str, Any]]:
    """Train up to `trainer.max_steps`, with the arguments of `Session`, and return the rows of `metrics.jsonl`."""
    with _Training(*given, **named) as training:
        return read_metrics(Path(training.config.exp_manager.explicit_log_dir) / "metrics.jsonl")


train.__signature__ = inspect.signature(Session)  # type: ignore[attr-defined]


def _texts(settings: Settings, above: str = "") -> Iterator[str]:
    if not isinstance(settings, Mapping):
        yield from [settings] if isinstance(settings, str) else settings
        return
    for name, value in settings.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping) and is_section(key):
            yield from _texts(value, f"{key}.")
        else:
            yield f"{key}={_written(value)}"


def _written(value: Any) -> str:
    """Return a value in the syntax of overrides."""
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    if isinstance(value, Mapping):
        parts = [
            re.sub(r"([\\()\[\]{}:=,\s])", r"\\\1", str(key)) + f": {_written(item)}" for key, item in value.items()
        ]
        return "{" + ", ".join(parts) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_written, value)) + "]"
    # A quotation mark, with backslashes before it, and backslashes at the end are escaped.
    escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + (found[2] and "\\'"), str(value))
    return f"'{escaped}'"


@contextlib.contextmanager
def _checked(
    model: Folder | None, reward: Reward | None, data: Any, texts: Sequence[str], recipe: Folder, run: Folder | None
) -> Iterator[tuple[BroRLConfig, CommandLine]]:
    """Check what a run is given, and keep its run folder locked inside the context. Raises BroRLError.

    Yields its settings, and the equal command line of `brorl train`.
    """
    import cloudpickle

    with contextlib.ExitStack() as stack:
        if not _one.acquire(blocking=False):
            raise ConfigError("a session is open in this process: leave its `with` block, or call its close()")
        stack.callback(_one.release)
        stack.callback(stop_log)
        added: dict[str, Any] = {} if model is None else {"policy.model": model}
        if reward is not None:
            added["data.verifier"] = reward if isinstance(reward, str) else GIVEN_REWARD
        if not isinstance(reward, str | None):
            give_reward(reward, cloudpickle.dumps)
            stack.callback(keep_reward, None)
        for key, _, value in (text.partition("=") for text in texts):
            run = value.strip("'\"") if key == LOG_DIR and run is None else run
        if data is not None:
            lines = _lines(data)
            run = Path(run or RUN).expanduser()
            added |= {"data.source": "jsonl", "data.path": run / ROWS}
            stack.enter_context(locked(run, "Session"))
            stack.enter_context(_rows_in(run / ROWS, lines))
        if run is not None:
            added[LOG_DIR] = run
        recipe = Path(recipe)
        line = CommandLine(recipe.name, (*texts, *_texts(added)), recipe.parent if len(recipe.parts) > 1 else None)
        config = configured(line)
        if data is None:
            stack.enter_context(locked(Path(config.exp_manager.explicit_log_dir), "Session"))
        check_training(config, line)
        yield config, line


def _lines(data: Any) -> str:
    """Return rows as JSON lines. Raises DataError that names the row which has no such form."""
    if isinstance(data, Mapping | str | bytes) or not isinstance(data, Iterable):
        raise DataError(
            f"data is of type {type(data).__name__}: pass a list of rows, for example [{EXAMPLE}]. For a file set "
            "data.path in the settings"
        )
    lines = []
    dropped: dict[str, str] = {}  # columns without a form in JSON, each with the type of a value
    for number, row in enumerate(data):
        if not isinstance(row, Mapping):
            raise DataError(
                f"data[{number}] is of type {type(row).__name__}: pass a mapping, for example {EXAMPLE}. "
                "A data frame of pandas has them as frame.to_dict('records')"
            )
        written = {}
        for name, value in row.items():
            try:
                written[str(name)] = json.dumps(value, default=_plain)
            except (TypeError, ValueError) as error:
                dropped[str(name)] = str(error)
        lines.append("{" + ", ".join(f"{json.dumps(name)}: {text}" for name, text in written.items()) + "}\n")
    for name, reason in dropped.items():
        log.warning("the column %s of the data is left out: %s. Use texts, numbers, lists and mappings", name, reason)
    if not lines:
        raise DataError(f"data has no rows: pass some, for example [{EXAMPLE}]")
    return "".join(lines)


def _plain(value: Any) -> Any:
    """Return an array or number of numpy as lists and numbers, and a decimal or date as text, as of a Parquet file."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Decimal | date):
        return str(value)
    raise TypeError(f"it holds a value of type {type(value).__name__}")


@contextlib.contextmanager
def _rows_in(path: Path, lines: str) -> Iterator[None]:
    """Write the questions of a run. A refused resume restores the former file, and a run that never began has none."""
    before = path.with_suffix(".before")
    with naming(path):
        if path.exists():
            path.replace(before)
        write_atomically(path, lines)
    try:
        yield
    except CheckpointError:
        if before.exists():
            before.replace(path)
        raise
    finally:
        before.unlink(missing_ok=True)
        if not (path.parent / RECORD).exists():
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _opened(config: BroRLConfig, line: CommandLine, on_stage: OnStage | None) -> Iterator[Opened]:
    """Start a run that was checked, or resume it, and end its processes when the context ends."""
    console, start = Console(), time.monotonic()
    with StageReport(console, on_stage) as watch:
        config, model_folder = sized(config, console)
        inputs = read_inputs(config, model_folder, watch)
        stop, heartbeat = StopRequest(config.trainer.time_limit_s), Heartbeat(Timeline(config.timeline.enabled))
        with opened(config, line, inputs, watch, stop, heartbeat) as (actors, trainer):
            watch.close()
            console.line(f"ready after {time.monotonic() - start:.0f} s ({watch.summary()})")
            yield config, inputs, actors, trainer
