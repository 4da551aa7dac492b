"""Say before training which rewards were seen, which of them count as right, and which domains outweigh others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from brorl_graders import FULL_MARK_KEY, full_mark, lowest_right, names_in
from brorl_graders.base.components import is_import_path

from nemo_brorl.config.data import DataConfig
from nemo_brorl.types import Prompt, ScoredGroup

GAP = 10.0  # ratio of two domains' rewards from which they are named
OWN_SCALE = ("grpo", "maxrl", "pass_at_k")  # advantages that do not depend on the scale of a group's rewards


class SeenRewards(NamedTuple):
    """The rewards of the sampled responses to one source's questions."""

    key: str  # setting of the full mark
    domain: str
    lowest: float
    highest: float
    mark: float  # full mark
    is_set: bool  # True: a setting names the full mark
    is_own: bool  # True: code of the user's own gives the rewards

    @property
    def size(self) -> float:
        """Largest reward that was seen or is known to be given, without its sign; 0: unknown."""
        is_known = self.is_set or not self.is_own
        return max(abs(self.lowest), abs(self.highest), abs(self.mark) if is_known else 0.0)

    def line(self) -> str | None:
        """Return what the rewards say about the full mark. None: they are a built-in verifier's, and as expected."""
        key = f"{self.key}={self.mark:g}"
        seen = f"  rewards {self.lowest:.7g} to {self.highest:.7g}"
        proposal = f"set {self.key}={self.highest:.7g} if that is the full mark"
        if self.highest > 2 * self.mark - lowest_right(self.mark) and not self.is_set:
            return f"{seen}, and a response is right from {key} on: {proposal}"
        if not self.is_own:
            return None
        if self.lowest < self.highest < lowest_right(self.mark):
            return f"{seen}, none reaches {key}: {proposal}"
        return f"{seen}, right from {key} on"


def scale_lines(groups: Sequence[ScoredGroup], data: DataConfig, advantage: str) -> list[str]:
    """Return lines about the rewards of each source and its full mark, and about domains that outweigh others."""
    seen = seen_rewards(groups, data)
    lines = [*filter(None, map(SeenRewards.line, seen))]
    sizes = sorted((source.size, source.domain) for source in seen if source.size > 0)
    if sizes and sizes[-1][0] >= GAP * lowest_right(sizes[0][0]) and advantage not in OWN_SCALE:
        (small, other), (large, domain) = sizes[0], sizes[-1]
        lines.append(
            f"  rewards of domain {domain} reach {large:.7g}, those of domain {other} {small:.7g}, so the first decide "
            f"the update (algorithm.advantage={advantage}): scale rewards alike, or set algorithm.advantage=grpo"
        )
    return lines


def seen_rewards(groups: Sequence[ScoredGroup], data: DataConfig) -> list[SeenRewards]:
    """Return the lowest and the highest reward of the groups of each source, in the order of the groups."""
    keys = {getattr(source, "name", ""): where for where, source in data.sources()}
    by_domain: dict[str, list[ScoredGroup]] = {}
    for group in groups:
        by_domain.setdefault(group.prompt.domain, []).append(group)
    found = []
    for domain, of_domain in by_domain.items():
        rewards = np.concatenate([group.rewards for group in of_domain])
        payload = of_domain[0].prompt.payload
        source = SeenRewards(
            key=f"{keys.get(domain, 'data')}.success_reward",
            domain=domain,
            lowest=float(rewards.min()),
            highest=float(rewards.max()),
            mark=full_mark(payload),
            is_set=FULL_MARK_KEY in payload,
            is_own=any(_is_own(group.prompt) for group in of_domain),
        )
        found.append(source)
    return found


def _is_own(prompt: Prompt) -> bool:
    """Return whether code of the user's own scores a prompt's responses."""
    if not prompt.has_episodes:
        return any(map(is_import_path, names_in(prompt.verifier, prompt.payload)))
    task = prompt.payload.get("task")
    verifier = task.get("verifier", "") if isinstance(task, Mapping) else ""
    return is_import_path(prompt.payload["environment"]) or is_import_path(str(verifier))
