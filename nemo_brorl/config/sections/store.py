"""Settings of the rollout store."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_brorl.config.setting import Section, setting


@dataclass
class StoreConfig(Section):
    """Every group of every step as Parquet files in the run folder (docs/store.md)."""

    enabled: bool = setting(True, "keep them")
    keep_steps: int | None = setting(None, "newest steps that are kept; null: all", at_least=1)
    max_gib: float = setting(4.0, "GiB of all files; beyond it the oldest steps are deleted", above=0)
    text: bool = setting(False, "responses as text too; costs a detokenisation in the background")
