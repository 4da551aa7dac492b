"""Say before training which rewards were seen, which of them count as right, and which domains outweigh others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
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
    lowest: float
    highest: float
    mark: float  # full mark
    is_set: bool  # True: a setting names the full mark
    is_own: bool  # True: code of the user's own gives the rewards

    @property
    def size(self) -> float:
        """Largest reward that was seen or is known to be given, without its sign; 0: unknown."""
        known = 0.0 if self.is_own and not self.is_set else self.mark
        return max(map(abs, (self.lowest, self.highest, known)))

    def line(self) -> str | None:
        """Return what the rewards say about the full mark. None: they are a built-in verifier's, and as expected."""
        key, lowest = f"{self.key}={self.mark:g}", lowest_right(self.mark)
        seen = f"  rewards {self.lowest:.7g} to {self.highest:.7g}"
        proposal = f"set {self.key}={self.highest:.7g} if that is the full mark"
        if self.highest > 2 * self.mark - lowest and not self.is_set:
            return f"{seen}, and a response is right from {key} on: {proposal}"
        if self.is_own and self.lowest < self.highest < lowest:
            return f"{seen}, none reaches {key}: {proposal}"
        return f"{seen}, right from {key} on" if self.is_own else None


def scale_lines(groups: Sequence[ScoredGroup], data: DataConfig, advantage: str) -> list[str]:
    """Return lines about the rewards of each source and its full mark, and about domains that outweigh others."""
    keys = {getattr(source, "name", ""): where for where, source in data.sources()}
    by_domain: dict[str, list[ScoredGroup]] = {}
    for group in groups:
        by_domain.setdefault(group.prompt.domain, []).append(group)
    lines, sizes = [], []
    for domain, of_domain in by_domain.items():
        source = _seen(f"{keys.get(domain, 'data')}.success_reward", of_domain)
        lines.append(source.line())
        sizes.append((source.size, domain))
    (small, other), (large, first) = min(filter(itemgetter(0), sizes), default=(0.0, "")), max(sizes)
    if small and large >= GAP * lowest_right(small) and advantage not in OWN_SCALE:
        lines.append(
            f"  rewards of domain {first} reach {large:.7g}, those of domain {other} {small:.7g}, so the first decide "
            f"the update (algorithm.advantage={advantage}): scale rewards alike, or set algorithm.advantage=grpo"
        )
    return [line for line in lines if line is not None]


def _seen(key: str, groups: Sequence[ScoredGroup]) -> SeenRewards:
    rewards = np.concatenate([group.rewards for group in groups])
    payload = groups[0].prompt.payload
    is_own = any(_is_own(group.prompt) for group in groups)
    is_set = FULL_MARK_KEY in payload
    return SeenRewards(key, float(rewards.min()), float(rewards.max()), full_mark(payload), is_set, is_own)


def _is_own(prompt: Prompt) -> bool:
    """Return whether code of the user's own scores a prompt's responses."""
    if not prompt.has_episodes:
        return any(map(is_import_path, names_in(prompt.verifier, prompt.payload)))
    task = prompt.payload.get("task")
    verifier = task.get("verifier", "") if isinstance(task, Mapping) else ""
    return is_import_path(prompt.payload["environment"]) or is_import_path(str(verifier))
