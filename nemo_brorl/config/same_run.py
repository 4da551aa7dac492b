"""Whether settings may go on with a run that was begun with others: what a run folder's config.yaml is compared
with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import CheckpointError

RECORD = "config.yaml"  # in the run folder

# settings that may change between two starts of the same run: they do not alter what was already done
MAY_CHANGE = (
    "trainer.max_steps", "trainer.val_interval", "trainer.save_interval", "trainer.keep_checkpoints",
    "trainer.time_limit",
    "trainer.async_save", "trainer.stall_warning_s", "trainer.stall_timeout_s", "policy.offload",
    "exp_manager", "generation.num_engines", "generation.timeout_s", "generation.max_restarts", "rewards.num_workers",
    "sft", "parity",
    "dynamic_sampling", "rollouts.prompts_per_step",
    "policy.tensor_model_parallel_size", "policy.pipeline_model_parallel_size", "policy.data_parallel_size",
    # what only `evaluate` looks at
    "evaluation.benchmarks", "evaluation.only", "evaluation.pass_at_k", "evaluation.majority_at_k",
    "evaluation.confidence",
    "evaluation.bootstrap_samples", "evaluation.checkpoint", "evaluation.compare_with", "evaluation.save_samples",
    "evaluation.output",
)  # fmt: skip


def check_same_run(config: BroRLConfig) -> bool:
    """Whether the run folder belongs to a run already; if so, to this one.

    Raises CheckpointError naming the settings that differ, or when the folder may not be resumed.
    """
    folder = Path(config.exp_manager.explicit_log_dir)
    record = folder / RECORD
    if not record.exists():
        return False
    if not config.exp_manager.resume_if_exists:
        raise CheckpointError(
            f"run folder {folder} exists already: set exp_manager.explicit_log_dir to a new folder,"
            " or exp_manager.resume_if_exists=true to continue the run in it"
        )
    old, new = _flatten(OmegaConf.load(record)), _flatten(OmegaConf.structured(config))
    changed = [
        name
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name) and not name.startswith(MAY_CHANGE)
    ]
    if changed:
        listed = "; ".join(f"{name} was {old.get(name)!r}, now {new.get(name)!r}" for name in changed[:5])
        raise CheckpointError(
            f"run folder {folder} belongs to another configuration ({listed}): set exp_manager.explicit_log_dir to a "
            f"new folder,"
            " or give the old values to continue that run"
        )
    return True


def _flatten(config: Any) -> dict[str, Any]:
    """Dotted leaf names to values; lists are compared whole."""
    flat: dict[str, Any] = {}

    def visit(node: Any, name: str) -> None:
        if isinstance(node, dict) and node:
            for key, value in node.items():
                visit(value, f"{name}.{key}" if name else str(key))
        else:
            flat[name] = node

    visit(OmegaConf.to_container(config, resolve=True), "")
    return flat
