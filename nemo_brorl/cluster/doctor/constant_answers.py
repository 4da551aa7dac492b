"""Check that no task pays for a constant answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from omegaconf import OmegaConf

from nemo_brorl.cluster.doctor.data_files import plain_source
from nemo_brorl.cluster.doctor.probe import answer, ask
from nemo_brorl.cluster.doctor.report import FAIL, OK, WARN, Check
from nemo_brorl.config.schema import BroRLConfig, RewardsConfig, SourceConfig

NAME = "constant answers"
DEADLINE_S = 120.0
ADVICE = "leave the task out, or choose another verifier: a policy learns to say just that"


def check_constants(config: BroRLConfig) -> Iterator[Check]:
    """Score twenty constants on some questions of every task; nothing where that is switched off."""
    if config.rewards.constant_answers == "off":
        return
    sources = []
    for _, source in config.data.sources():
        settings = OmegaConf.structured(plain_source(source))
        sources.append(OmegaConf.to_container(settings))
    rewards = OmegaConf.to_container(OmegaConf.structured(config.rewards))
    found = ask("constant_answers", "paid", {"sources": sources, "rewards": rewards}, DEADLINE_S)
    if found.data is None:
        yield Check(NAME, WARN, f"not tried: {found.reason}")
        return
    status = FAIL if config.rewards.constant_answers == "refuse" else WARN
    for sentence in found.data["sentences"]:
        yield Check(NAME, status, sentence, ADVICE)
    if not found.data["sentences"]:
        yield Check(NAME, OK, "no task pays for one of twenty")


def paid(wanted: dict[str, Any]) -> dict[str, Any]:
    """`sentences` about tasks that pay for one."""
    from nemo_brorl.tasks.scoring.constant_answers import check_constants as find_paid

    rewards: Any = _settings(RewardsConfig, {**wanted["rewards"], "constant_answers": "warn"})
    sources: Any = [_settings(SourceConfig, source) for source in wanted["sources"]]
    return {"sentences": [str(found) for found in find_paid(sources, rewards)]}


def _settings(section: type, values: dict[str, Any]) -> Any:
    merged = OmegaConf.merge(OmegaConf.structured(section), values)
    return OmegaConf.to_object(merged)


if __name__ == "__main__":
    answer({"paid": paid})
