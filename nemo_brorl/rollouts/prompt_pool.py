"""Which prompts of the stream are asked: those believed to teach nothing are mostly passed over, without sampling.

With x the success rate of a prompt, by its belief (`group_size/success_posterior.py`), N rollouts disagree with the
chance c = 1 − E[x^N] − E[(1 − x)^N]. The prompt is asked with the probability q = c / `full_above`, at least
`min_probability` and at most 1, and its advantages count 1 / q-fold (Horvitz & Thompson 1952). So solved and hopeless
prompts cost few samples, every prompt has the weight in the gradient that it has when all are asked, shares of domains
are kept, and the price is the variance of the weights. Beliefs fade (`rollouts.posterior.memory`), which brings a
prompt back. What is learnt of tasks counts asked prompts by the same weights.

`retire_from` leaves out, without a weight, prompts whose own rollouts were right that often over all steps that are
remembered: near 1 what is solved (ScaleRL's "no positive resampling", arXiv 2510.13786), near 0 all but the boundary of
what the policy can do (arXiv 2606.15455). About the share `recheck` of a step's prompts are retired ones that are asked
again, however many are retired: so forgetting is noticed at a price that is known. Old rollouts count less than new
ones, and one whose newest were wrong too often comes back.

Only prompts that come again profit: of one never seen the belief is that of its task. The coin is a hash of seed and
uid, and beliefs change between steps alone, so a restart asks the same.
"""

from __future__ import annotations

from dataclasses import replace

from nemo_brorl.config.rollouts import PoolConfig
from nemo_brorl.core.errors import StarvationError
from nemo_brorl.ports import PromptSource
from nemo_brorl.rollouts.group_size.success_posterior import SuccessPosterior
from nemo_brorl.rollouts.group_size.waves import coin
from nemo_brorl.types import Prompt

MAX_RETIRED = 10_000  # prompts in a row, after which all of them count as learnt
FIRST_WAVE = 0  # of `coin`: waves that are decided on are counted from 1
RECHECK = -1  # of `coin`


class PromptPool:
    """Prompts to ask, from a stream and what is believed of them. It keeps counts of a step, and no state."""

    def __init__(
        self,
        config: PoolConfig,
        prompts: PromptSource,
        beliefs: SuccessPosterior,
        seed: int,
    ) -> None:
        self.config = config
        self.prompts = prompts
        self.beliefs = beliefs
        self.seed = seed
        self.begin_step(2)

    def begin_step(self, num_per_prompt: int) -> None:
        """Groups of the step are to have so many rollouts."""
        self.num_per_prompt = num_per_prompt
        self.num_passed_over = 0
        self.num_retired = 0  # of those that came up and were left out
        self.num_rechecked = 0
        self.num_unretired = 0
        self.largest_weight = 1.0

    def take(self, num: int) -> list[Prompt]:
        """The next `num` prompts of the stream that are asked, with their weights. Raises StarvationError when all are
        retired."""
        taken: list[Prompt] = []
        while len(taken) < num:
            for prompt in self._unretired(num - len(taken)):
                probability = self.probability(prompt)
                if coin(self.seed, prompt.uid, FIRST_WAVE) < probability:
                    weight = 1 / probability
                    taken.append(replace(prompt, weight=weight))
                    self.largest_weight = max(self.largest_weight, weight)
                else:
                    self.num_passed_over += 1
        return taken

    def _unretired(self, num: int) -> list[Prompt]:
        """Those of the stream's next prompts, `num` at a time, that are not left out; at least one."""
        num_seen = 0
        while num_seen < MAX_RETIRED:
            left = [prompt for prompt in self.prompts.take(num) if not self._leave_out(prompt)]
            num_seen += num
            if left:
                return left
        raise StarvationError(
            f"{num_seen} prompts in a row were right in rollouts.pool.retire_from={self.config.retire_from} of their "
            "rollouts or more: write a higher one or null, or give harder questions"
        )

    def _leave_out(self, prompt: Prompt) -> bool:
        """Decide on a prompt that has come up, and count it: True for one that is retired and not asked again."""
        if not self.is_retired(prompt):
            self.num_unretired += 1
            return False
        if coin(self.seed, prompt.uid, RECHECK) < self.recheck_probability():
            self.num_rechecked += 1
            return False
        self.num_retired += 1
        return True

    def recheck_probability(self) -> float:
        """That the next retired prompt is asked again: such that `recheck` of those asked are, if prompts go on to come
        up as they did in this step."""
        share = self.config.recheck
        num_retired = self.num_retired + self.num_rechecked
        return min(1.0, share / (1 - share) * (self.num_unretired + 1) / (num_retired + 1))

    def is_retired(self, prompt: Prompt) -> bool:
        """Whether its own rollouts were right too often to go on learning from it."""
        limit = self.config.retire_from
        if limit is None:
            return False
        successes, failures = self.beliefs.remembered(prompt)
        num = successes + failures
        return num > 0 and successes >= limit * num

    def probability(self, prompt: Prompt) -> float:
        """That a prompt is asked."""
        if not self.config.enabled:
            return 1.0
        belief = self.beliefs.posterior(prompt)
        chance = belief.keep_rate(self.num_per_prompt)
        return min(1.0, max(self.config.min_probability, chance / self.config.full_above))

    def metrics(self) -> dict[str, float]:
        """Counts of the step; nothing where every prompt is asked."""
        if not self.config.enabled and self.config.retire_from is None:
            return {}
        return {
            "rollouts/prompts_retired": float(self.num_retired),
            "rollouts/prompts_rechecked": float(self.num_rechecked),
            "rollouts/prompts_passed_over": float(self.num_passed_over),
            "rollouts/prompt_weight_max": self.largest_weight,
        }
