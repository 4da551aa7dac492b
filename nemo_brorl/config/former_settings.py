"""List the settings that earlier versions had, with what to write instead: they are refused by their name."""

from __future__ import annotations

_NEW_MODEL = (
    "output",
    "hidden_size",
    "num_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "precision",
    "probe_interval",
    "target_pass_at_1",
    "min_pass_at_1",
    "max_pass_at_1",
    "time_limit_s",
)
_DEMONSTRATIONS = ("tagged_fraction", "worked_sums", "dropped_carry_rate", "slip_rate", "calling_rate")

# A setting, or a section, and the end of "…: there is no setting '…' any more: write".
INSTEAD = {
    "convert.checkpoint": "brorl convert --checkpoint FOLDER",
    "convert.output": "brorl convert --output FOLDER",
    "convert.push_to_hub": "brorl convert --push-to-hub USER/NAME",
    "convert.private": "brorl convert --public",
    "convert.dry_run": "brorl convert --dry-run",
    "convert": "brorl convert with the options that its --help names",
    **{f"sft.{name}": f"sft.new.{name}" for name in _NEW_MODEL},
    **{f"sft.{name}": f"sft.demonstrations.{name}" for name in _DEMONSTRATIONS},
}


def instead_of(setting: str) -> str | None:
    """Return what to write instead of a setting of an earlier version, or of one inside a former section; None: there
    was no such setting."""
    while setting:
        if setting in INSTEAD:
            return INSTEAD[setting]
        setting = setting.rpartition(".")[0]
    return None
