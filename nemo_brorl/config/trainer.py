"""Settings of a run as a whole, of what is kept of its steps to look at, and of the small commands around training."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from nemo_brorl.config import auto, setting

NEEDED_BY_LOGGERS = {
    "wandb": ("project", "name"),
    "mlflow": (),
    "dllogger": (),
    "clearml": (),
    "neptune": ("project", "name"),
    "swanlab": ("project",),
    "trackio": ("project",),
}
PACKAGES = {"dllogger": "git+https://github.com/NVIDIA/dllogger"}  # those that are not called like their logger
EXAMPLES = {"project": "brorl", "name": "first"}
SECRETS = ("api_key", "api_token", "token", "password")
OPENTELEMETRY = ("opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter")
COLLECTOR = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
TIME_LIMIT = re.compile(r"\d+:[0-5]\d:[0-5]\d")


@dataclass
class ObserverConfig:
    """An observer of the run's steps outside the backend."""

    name: str = setting(
        MISSING,
        "function that makes it, as package.module:function, for example brorl_lab.observers.coverage:coverage",
    )
    params: dict[str, Any] = setting({}, "parameters of that function, by name")


@dataclass
class TrainerConfig:
    """The run as a whole."""

    max_steps: int = setting(20, "steps of the whole run", at_least=0, may_change=True)
    num_nodes: int = setting(1, "machines of the run", at_least=1)
    gpus_per_node: int = setting(0, "0: everything on CPU (Megatron over Gloo, vLLM's CPU build)", at_least=0)
    seed: int = setting(1, "seed of every random draw", within=(0, 2**31 - 1))
    val_interval: int = setting(5, "steps between validations; 0: only at start and end", at_least=0, may_change=True)
    save_interval: int = setting(5, "steps between checkpoints", at_least=0, may_change=True)
    async_save: bool = setting(True, "files are written while training goes on", may_change=True)
    keep_checkpoints: int = setting(2, "newest checkpoints that are kept", at_least=1, may_change=True)
    time_limit: str | None = setting(None, '"HH:MM:SS"; save and stop before it', may_change=True)
    start_timeout_s: float = setting(
        1800.0,
        "seconds until Ray, engines, policy and verifiers are ready, parity and checkpoint included; then the run ends",
        above=0,
        may_change=True,
    )
    rehearsal: bool = setting(
        True,
        "before the first step a few responses are sampled and shown, with what they earn and why",
        may_change=True,
    )
    stall_warning_s: float = setting(
        120.0, "seconds without any progress before a warning says who is late", above=0, may_change=True
    )
    stall_timeout_s: float | None = setting(
        None, "seconds without progress after which the run ends; null: never", above=0, may_change=True
    )
    private_run_folder: bool = setting(
        False, "nobody else may enter the run folder (mode 0700), nor read what the model said", may_change=True
    )
    max_skipped_updates: int = setting(10, "non-finite mini-batches in the whole run before it stops", at_least=0)
    observers: list[ObserverConfig] = setting([], "observers that are added to the run's own", may_change=True)

    def violations(self) -> Iterator[str]:
        limit, warning, timeout = self.time_limit, self.stall_warning_s, self.stall_timeout_s
        if limit is not None and not TIME_LIMIT.fullmatch(limit):
            yield f'trainer.time_limit={limit} is not HH:MM:SS: write "04:00:00" for four hours (with quotes in YAML)'
        if timeout is not None and timeout < warning:
            yield (
                f"trainer.stall_timeout_s={timeout:g} is before trainer.stall_warning_s={warning:g}: "
                f"write at least {warning:g}, or null"
            )


@dataclass
class ExpManagerConfig:
    """Handed to NeMo's exp_manager, plus `explicit_log_dir`: the run folder."""

    explicit_log_dir: str = setting("runs/brorl_cpu", "run folder")
    resume_if_exists: bool = setting(True, "the same command continues the run")
    create_tensorboard_logger: bool = setting(True, "metrics as TensorBoard events in the run folder")
    create_wandb_logger: bool = setting(False, "metrics to Weights & Biases")
    wandb_logger_kwargs: dict[str, Any] = setting({}, "arguments of its logger: name and project at least")
    create_mlflow_logger: bool = setting(False, "metrics to MLflow")
    mlflow_logger_kwargs: dict[str, Any] = setting(
        {}, "arguments of its logger: experiment_name, tracking_uri, …; without an address RUN/mlflow.db"
    )
    create_dllogger_logger: bool = setting(False, "metrics to NVIDIA's DLLogger")
    dllogger_logger_kwargs: dict[str, Any] = setting({}, "json_file (RUN/nemo/dllogger.json), stdout, verbose")
    create_clearml_logger: bool = setting(False, "metrics to ClearML")
    clearml_logger_kwargs: dict[str, Any] = setting({}, "arguments of its logger: project, task, tags, …")
    create_neptune_logger: bool = setting(False, "metrics to Neptune; its key is in NEPTUNE_API_TOKEN")
    neptune_logger_kwargs: dict[str, Any] = setting({}, "arguments of its logger: name and project at least")
    create_swanlab_logger: bool = setting(False, "metrics to SwanLab, not through NeMo")
    swanlab_logger_kwargs: dict[str, Any] = setting({}, "arguments of swanlab.init: project at least; mode, …")
    create_trackio_logger: bool = setting(False, "metrics to trackio, not through NeMo")
    trackio_logger_kwargs: dict[str, Any] = setting({}, "arguments of trackio.init: project at least; name, …")

    def violations(self) -> Iterator[str]:
        for logger, needed in NEEDED_BY_LOGGERS.items():
            if getattr(self, f"create_{logger}_logger"):
                yield from self._wrong_logger(logger, needed)

    def _wrong_logger(self, logger: str, needed: Sequence[str]) -> Iterator[str]:
        """What is missing of a logger that is asked for."""
        given = getattr(self, f"{logger}_logger_kwargs")
        asked, kwargs = f"exp_manager.create_{logger}_logger=true", f"exp_manager.{logger}_logger_kwargs"
        for name in needed:
            if name not in given:
                yield f"{asked} needs {kwargs}.{name}: write for example {kwargs}.{name}={EXAMPLES[name]}"
        for name in given:
            if name in SECRETS:
                yield f"{kwargs}.{name} would be in config.yaml: leave it out, and set {logger}'s environment variable"
        if importlib.util.find_spec(logger) is None:
            package = PACKAGES.get(logger, logger)
            yield f"{asked} needs the package {logger}, which is not installed: pip install {package}, or write false"


@dataclass
class ParityConfig:
    """The gate at the start: Hugging Face, Megatron and vLLM log-probs of the same tokens."""

    enabled: bool = setting(True, "compare before the first step")
    num_prompts: int = setting(4, "prompts that are compared", at_least=1)
    responses_per_prompt: int = setting(4, "responses of each prompt", at_least=1)
    max_response_tokens: int = setting(
        64, "tokens of these responses at most (Hugging Face computes one response at a time)", at_least=1
    )
    max_mean_abs_diff: float | None = auto("nats; auto: 1e-3, and 0.05 where policy or engines are in bf16", above=0)
    max_step_mismatch: float = setting(0.05, "mean |Megatron - vLLM| per step above which a warning is logged", above=0)
    max_fp8_mismatch: float = setting(0.02, "mean |FP8 - bf16| per step above which a warning is logged", above=0)


@dataclass
class StoreConfig:
    """Every group of every step as Parquet files in the run folder (docs/store.md)."""

    enabled: bool = setting(True, "keep them")
    keep_steps: int | None = setting(None, "newest steps that are kept; null: all", at_least=1)
    share: float = setting(1.0, "share of groups that are kept; below 1 no step can be replayed", above=0, at_most=1)
    max_gib: float = setting(4.0, "GiB of all files; beyond it the oldest steps are deleted", above=0)
    text: bool = setting(False, "responses as text too; costs a detokenisation in the background")


@dataclass
class TimelineConfig:
    """Who did what when in a step, as trace files in the run folder (docs/timeline.md)."""

    enabled: bool = setting(True, "keep it")
    keep_steps: int = setting(20, "newest steps whose trace is kept", at_least=1)
    opentelemetry: bool = setting(False, "spans also to the OpenTelemetry exporter that OTEL_… variables name")

    def violations(self) -> Iterator[str]:
        if not self.opentelemetry:
            return
        if not all(importlib.util.find_spec(package) for package in OPENTELEMETRY):
            yield (
                f"timeline.opentelemetry=true needs {', '.join(OPENTELEMETRY)}, which are not all installed: "
                "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http, or write false"
            )
        elif not any(name in os.environ for name in COLLECTOR):
            yield (
                f"timeline.opentelemetry=true needs a collector: set {COLLECTOR[0]} in the environment "
                "(http://HOST:4318), or write false"
            )


@dataclass
class ProfileConfig:
    """Profiles of policy ranks, in the run folder's profiles/ (docs/timeline.md)."""

    kind: str = setting(
        "off", "torch: operators and kernels, for Perfetto; nsys: Nsight Systems", choices=("off", "torch", "nsys")
    )
    steps: list[int] = setting([2], "whose updates are profiled")
    ranks: list[int] = setting([0], "that are profiled")
    memory_snapshot: bool = setting(False, "what held a GPU's memory when it ran full; remembers allocations")

    def violations(self) -> Iterator[str]:
        if self.kind == "nsys" and shutil.which("nsys") is None:
            yield "profile.kind=nsys needs Nsight Systems' nsys on the PATH: install it, or write torch"


@dataclass
class ConvertConfig:
    """From a training checkpoint to a Hugging Face folder."""

    checkpoint: str | None = setting(None, "step_K folder; null: the newest complete one of the run folder")
    output: str | None = setting(None, "folder of the model; null: hf_step_K in the run folder")
    push_to_hub: str | None = setting(None, "USER/NAME on the Hugging Face hub that the folder is uploaded to")
    private: bool = setting(True, "a repository made for it is private")
    dry_run: bool = setting(False, "say what would be uploaded, and reach for no network")


@dataclass
class SftConfig:
    """Supervised fine-tuning: of `policy.model` on conversations, or of a small model made from nothing on generated
    demonstrations (the settings from `output` on)."""

    base: str = setting(
        "auto",
        "what is trained: policy.model, or a new small model; auto: policy.model where data.source is of files",
        choices=("auto", "policy", "new"),
    )
    epochs: float = setting(3.0, "times that every conversation is learnt; max_steps may end it before", above=0)
    max_tokens: int = setting(1024, "tokens of a conversation", at_least=2)
    too_long: str = setting(
        "refuse", "longer conversations; cut: their end is left out", choices=("refuse", "cut", "drop")
    )
    val_examples: int = setting(256, "held-out conversations that the validation loss is taken over", at_least=1)
    lr_schedule: str = setting("cosine", "learning rate after its rise", choices=("cosine", "linear", "constant"))
    warmup_steps: int = setting(20, "optimizer steps over which the learning rate rises to lr", at_least=0)
    last_lr_fraction: float = setting(0.1, "of lr, reached at the last step", within=(0, 1))
    batch_size: int = setting(32, "examples per optimizer step", at_least=1)
    lr: float = setting(2e-3, "highest learning rate", above=0)
    max_steps: int = setting(1000, "optimizer steps at most", at_least=1)
    output: str = setting("runs/base_cpu", "folder of the new model")
    hidden_size: int = setting(256, at_least=1)
    num_layers: int = setting(4, at_least=1)
    num_attention_heads: int = setting(4, at_least=1)
    num_key_value_heads: int = setting(2, at_least=1)
    intermediate_size: int = setting(512, at_least=1)
    vocab_size: int = setting(512, at_least=1)
    max_position_embeddings: int = setting(512, at_least=1)
    tagged_fraction: float = setting(
        1.0, "share of demonstrations that write the answer in tags; the rest write it bare", within=(0, 1)
    )
    worked_sums: bool = setting(False, "demonstrations of chain_sum write every step before the answer")
    dropped_carry_rate: float = setting(
        0.0, "chance that a worked sum forgets a carry or a borrowed ten", within=(0, 1)
    )
    slip_rate: float = setting(
        0.0,
        "chance that a step of a worked sum is off by one, or that a call or the reading of its result goes wrong",
        within=(0, 1),
    )
    calling_rate: float | None = setting(
        None,
        "chance that a demonstration in the environment calculator calls it, else it guesses; null: right at once",
        within=(0, 1),
    )
    precision: str = setting(
        "auto",
        "of the new model while it is trained; auto: bf16 where the processor has it",
        choices=("auto", "fp32", "bf16"),
    )
    probe_interval: int = setting(100, "optimizer steps between measurements of pass@1", at_least=1)
    target_pass_at_1: float = setting(0.25, "stop as soon as the base reaches it ...", within=(0, 1))
    min_pass_at_1: float = setting(0.2, "... and refuse a base outside these bounds", within=(0, 1))
    max_pass_at_1: float = setting(0.5, "upper bound", within=(0, 1))
    time_limit_s: float = setting(200.0, "seconds", above=0)

    def violations(self) -> Iterator[str]:
        heads, groups = self.num_attention_heads, self.num_key_value_heads
        if self.hidden_size % heads:
            yield f"sft.hidden_size={self.hidden_size} is not divisible by sft.num_attention_heads={heads}"
        if heads % groups:
            yield f"sft.num_attention_heads={heads} is not divisible by sft.num_key_value_heads={groups}"
        if not self.min_pass_at_1 <= self.target_pass_at_1 <= self.max_pass_at_1:
            yield (
                f"sft.target_pass_at_1={self.target_pass_at_1} is outside sft.min_pass_at_1={self.min_pass_at_1} … "
                f"sft.max_pass_at_1={self.max_pass_at_1}: write a target between them"
            )
