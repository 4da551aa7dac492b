"""Names that a test lets questions use, as the settings of a run."""

from __future__ import annotations

from brorl_graders.base.names import allow

from nemo_brorl.config.data import SourceConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.scoring.grader_settings import names_of


def allow_source(source: SourceConfig) -> None:
    """Allow what the settings of a source name, and no more."""
    config = BroRLConfig()
    config.data.domains.append(source)  # type: ignore[arg-type]
    allow(names_of(config))
