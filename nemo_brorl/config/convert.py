"""Declare settings of `brorl convert`."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_brorl.config.declare import setting


@dataclass
class ConvertConfig:
    """From a training checkpoint to a Hugging Face folder."""

    checkpoint: str | None = setting(None, "step_K folder; null: the newest complete one of the run folder")
    output: str | None = setting(None, "folder of the model; null: hf_step_K in the run folder")
    push_to_hub: str | None = setting(None, "USER/NAME on the Hugging Face hub that the folder is uploaded to")
    private: bool = setting(True, "a repository made for it is private")
    dry_run: bool = setting(False, "say what would be uploaded, and reach for no network")
