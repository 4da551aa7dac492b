"""Totals of what a run has sampled, and success rates of its prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from nemo_brorl.rollouts.dynamic_sampling import DynamicSampling
from nemo_brorl.types import Prompt, ScoredGroup, is_right


@dataclass(frozen=True)
class Spent:
    """Totals of what a run has sampled so far, saved in checkpoints."""

    generated_tokens: int = 0  # response tokens, also of groups that were not used
    informative_groups: int = 0
    rollouts: int = 0  # rollouts of closed groups

    @staticmethod
    def of_step(sampled: Sequence[ScoredGroup], num_tokens: int, sampling: DynamicSampling) -> Spent:
        """Return the rollouts, tokens and informative groups of one step.

        They are counted from the groups of which enough rollouts ended in the step, and from `num_tokens`, the tokens
        sampled in it.
        """
        decisions = [sampling.judge(scored) for scored in sampled]
        return Spent(
            generated_tokens=num_tokens,
            informative_groups=sum(decision.reason == "informative" for decision in decisions),
            rollouts=sum(len(scored.rewards) for scored in sampled),
        )

    def plus(self, other: Spent) -> Spent:
        """Return the sum of two totals of sampled rollouts, tokens and informative groups."""
        return Spent(
            generated_tokens=self.generated_tokens + other.generated_tokens,
            informative_groups=self.informative_groups + other.informative_groups,
            rollouts=self.rollouts + other.rollouts,
        )

    def metrics(self) -> dict[str, float]:
        """Return metrics of the tokens and informative groups that the whole run has sampled so far."""
        per_million = 0.0
        if self.generated_tokens:
            per_million = self.informative_groups / (self.generated_tokens / 1e6)
        return {
            "rollouts/generated_tokens": float(self.generated_tokens),
            "rollouts/informative_per_million_tokens": per_million,
        }

    def state_dict(self) -> dict[str, int]:
        """Return the totals of sampled rollouts, tokens and informative groups, as a JSON-able dict."""
        return asdict(self)

    @staticmethod
    def from_state(state: Mapping[str, int]) -> Spent:
        """Build the totals of sampled rollouts, tokens and informative groups from what `state_dict` returned."""
        return Spent(**state)


def outcomes(groups: Sequence[ScoredGroup]) -> list[tuple[Prompt, float]]:
    """Return each group's prompt with its share of correct rollouts, sorted by prompt uid."""
    shares = []
    for group in sorted(groups, key=lambda group: group.prompt.uid):
        shares.append((group.prompt, float(is_right(group).mean())))
    return shares
