"""Warm up a small Qwen2 model on demonstrations until it is right sometimes and wrong often.

It replaces a downloaded base model on machines that cannot download one. The real stack trains it: the Megatron policy
trains on packed demonstrations, and the engines and verifiers measure pass@1 on held-out questions. It stops inside the
wanted band, because a base that is always wrong or always right has nothing to teach.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from brorl_graders.base.foreign import SMALL, record_object

from brorl_lab.bases.demonstrations import Demonstrations
from nemo_brorl.config.data import DataConfig
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import TrainingError
from nemo_brorl.evaluation.validation import EvaluationResult, Evaluator
from nemo_brorl.ports import Generator, Policy
from nemo_brorl.training.supervised.examples import Example, supervised_plan
from nemo_brorl.weights.publication import publish

RECORD = "warm_up.json"  # record of the warm-up in the output folder


@dataclass(frozen=True)
class WarmUpResult:
    """The result of a warm-up: its steps, its time and its last validation."""

    num_steps: int
    seconds: float
    result: EvaluationResult


# Settings that are younger than the bases of this repository, whose fingerprints lack them.
YOUNGER = (
    *("changed_rows", "chat_template", "prompt_check", "repeated_rows"),
    *("success_reward", "template_arguments", "template_date"),
)


def fingerprint(config: BroRLConfig) -> str:
    """Return a hash of all settings that determine how a small base model is trained.

    A base model that was saved with an equal hash is used again.
    """
    data = asdict(config.data)
    defaults = DataConfig()
    for name in YOUNGER:
        if data[name] == getattr(defaults, name):
            del data[name]
    settings = {"sft": asdict(config.sft), "data": data, "seed": config.trainer.seed}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def is_cached(config: BroRLConfig) -> bool:
    """Return whether the output folder holds a base model made with these settings."""
    record = Path(config.sft.new.output) / RECORD
    return record.is_file() and record_object(record, SMALL).get("fingerprint") == fingerprint(config)


def warm_up(
    config: BroRLConfig,
    demonstrations: Demonstrations,
    policy: Policy,
    generator: Generator,
    evaluator: Evaluator,
    console: Console,
) -> WarmUpResult:
    """Train a small base model on demonstrations until its pass@1 on held-out questions is high enough for RL.

    Training ends when pass@1 reaches `sft.new.target_pass_at_1`. Raises TrainingError when steps or time run out below
    `sft.new.min_pass_at_1`, or when a validation measures more than `sft.new.max_pass_at_1`.
    """
    sft = config.sft
    sizes = RunSizes.from_config(config)
    start = time.monotonic()
    step = 0
    version = 0
    while True:
        block = min(sft.new.probe_interval, sft.max_steps - step)
        examples: list[Example] = []
        for index in range(step, step + block):
            examples += demonstrations.batch(index, sft.batch_size)
        plan = supervised_plan(
            examples,
            sft,
            sizes,
            seed=config.trainer.seed,
            step=step,
            num_mini_batches=block,
            num_steps=sft.max_steps,
            version=version + 1,
        )
        report = policy.update(plan)
        step += block
        version += 1
        publish(policy, generator, version)
        result = evaluator.evaluate("probe")
        seconds = time.monotonic() - start
        console.line(
            f"warm-up step {step}/{sft.max_steps}  loss {report.metrics['policy/loss']:.3f}"
            f"  pass@1 {result.overall.pass_at_1:.1%}  {seconds:.0f} s"
        )
        is_out_of_budget = (
            step >= sft.max_steps or seconds * (step + sft.new.probe_interval) / step > sft.new.time_limit_s
        )
        if result.overall.pass_at_1 >= sft.new.target_pass_at_1 or is_out_of_budget:
            break
    check_band(config, result)
    return WarmUpResult(step, time.monotonic() - start, result)


def check_band(config: BroRLConfig, result: EvaluationResult) -> None:
    """Raise TrainingError for a base model that answers right too rarely or too often to be trained further with RL."""
    low = config.sft.new.min_pass_at_1
    high = config.sft.new.max_pass_at_1
    found = result.overall.pass_at_1
    if not low <= found <= high:
        advice = (
            "raise sft.max_steps or sft.new.time_limit_s, or choose easier data.tasks"
            if found < low
            else "lower sft.new.probe_interval"
        )
        raise TrainingError(f"the warmed-up base has pass@1 {found:.1%}, outside [{low:.0%}, {high:.0%}]: {advice}")


def export_base(config: BroRLConfig, policy: Policy, outcome: WarmUpResult) -> Path:
    """Export a trained base model with a record of its settings, in place of an older export, and return its folder."""
    output = Path(config.sft.new.output)
    partial = output.with_name(output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    policy.export(partial)
    record = {
        "fingerprint": fingerprint(config),
        "steps": outcome.num_steps,
        "seconds": round(outcome.seconds, 1),
        "pass_at_1": {
            name: row.pass_at_1 for name, row in [*outcome.result.tasks.items(), ("all", outcome.result.overall)]
        },
    }
    (partial / RECORD).write_text(json.dumps(record, indent=1))
    shutil.rmtree(output, ignore_errors=True)
    partial.rename(output)
    return output
