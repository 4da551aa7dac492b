"""Implement the PromptSource port: an endless stream of tokenised prompts, each taken exactly once.

The stream is resumed by its position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from brorl_graders import GIVEN_REWARD, source_hashes

from nemo_brorl.config.data import DataConfig
from nemo_brorl.core.errors import CheckpointError, DataError
from nemo_brorl.core.tokenizer import ChatTokenizer
from nemo_brorl.prompts.asking import render_question, with_open_thought
from nemo_brorl.prompts.levels import TaskLevel
from nemo_brorl.prompts.mixture import Domain, Mixture
from nemo_brorl.scoring.turn_tokens import QuestionCheck
from nemo_brorl.types import Prompt

MAX_CONSECUTIVE_SKIPS = 1000  # over-long prompts in a row before the limit counts as wrong


class PromptStream:
    """Tokenised prompts in the order of their source. Prompts longer than their domain allows are skipped and counted.

    The next prompt of the domain replaces a skipped one, so that the mixture's shares hold for the returned prompts.
    Held-out rows are returned once: after the last row, draws of their domain return nothing.
    """

    def __init__(
        self,
        mixture: Mixture,
        tokenizer: ChatTokenizer,
        config: DataConfig,
        split: str = "train",
    ) -> None:
        self.mixture = mixture
        self.tokenizer = tokenizer
        self.config = config
        self.question_check = QuestionCheck(tokenizer)
        self.instructions: dict[str, str] = {}  # instruction added to questions, by verifier
        self.split = split
        self.position = 0  # number of draws so far
        self.num_skipped = {domain.name: 0 for domain in mixture.domains}
        self.longest_skipped = 0  # tokens
        self.accepted_changes: list[str] = []  # changes of data and code since the checkpoint, which settings accept
        self._compared: Mapping[str, Any] | None = None  # the state that was compared last
        # Workers import the code now, so a later change of its source is none of this run.
        self.reward_code = source_hashes([str(Path.cwd())])
        self.levels: dict[str, TaskLevel] = {}  # levels of trained tasks, by domain and task
        trained = mixture.domains if split == "train" else ()
        for domain in trained:
            for task, level in domain.source.levels.items():
                name = _task_name(domain.name, task)
                self.levels[name] = level

    def take_prompts(self, num: int) -> list[Prompt]:
        """Return the next `num` prompts of the stream, or fewer when a domain of a held-out split has no more.

        The uid `train/17` is question 17 of the training split, and `train/math/17` is question 17 of the domain math.
        Raises DataError when nearly all prompts are too long.
        """
        prompts = []
        for position in range(self.position, self.position + num):
            number, rank = self.mixture.draw(position)
            domain = self.mixture.domains[number]
            prompt = self._next(domain, rank)
            if prompt is not None:
                prompts.append(prompt)
        self.position += num
        return prompts

    def peek(self, num: int) -> list[Prompt]:
        """Return the next `num` prompts without advancing the stream, so that `take_prompts` returns them too."""
        position, num_skipped = self.position, dict(self.num_skipped)
        prompts = self.take_prompts(num)
        self.position, self.num_skipped = position, num_skipped
        return prompts

    def record_outcomes(self, outcomes: Sequence[tuple[Prompt, float]]) -> list[str]:
        """Update the tasks' difficulty levels from the success rate of each prompt of a training step.

        Returns a log line for every task whose level changes for the next prompts.
        """
        for prompt, rate in outcomes:
            name = _task_name(prompt.domain, prompt.task)
            if name in self.levels:
                self.levels[name].record_rate(prompt, rate)
        changes = []
        for name, level in self.levels.items():
            reason = level.decide()
            if reason is not None:
                change = f"{name}: level {level.reached} with the next prompts ({reason})"
                changes.append(change)
        return changes

    def metrics(self) -> dict[str, float]:
        """Return the counts of skipped long prompts and epochs by data domain, and each task's difficulty level."""
        metrics: dict[str, float] = {}
        draws_before = self.mixture.draws_before(self.position)
        for domain, draws in zip(self.mixture.domains, draws_before, strict=True):
            name = f"/{domain.name}" if domain.name else ""
            skipped = self.num_skipped[domain.name]
            metrics[f"prompts/too_long{name}"] = float(skipped)
            if domain.source.size is not None:
                metrics[f"prompts/epochs{name}"] = (draws + skipped) / domain.source.size
        for task, level in self.levels.items():
            metrics[f"prompts/level/{task}"] = float(level.reached)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the JSON-able state of the prompt stream for a checkpoint."""
        fingerprints = {}
        for domain in self.mixture.domains:
            fingerprints[domain.name] = domain.source.fingerprint
        state = {
            "split": self.split,
            "position": self.position,
            "skipped": dict(self.num_skipped),
            "sources": fingerprints,
        }
        state["tokenizer"] = self.tokenizer.fingerprint
        if self.reward_code:
            state["reward_code"] = dict(self.reward_code)
        levels = {}
        for task, level in self.levels.items():
            levels[task] = level.state_dict()
        if levels:
            state["levels"] = levels
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the prompt stream from a state that `state_dict` returned.

        Raises CheckpointError when the state is of another stream, or the data files have changed.
        """
        present = {**self.state_dict(), "reward_code": {}}
        # Checkpoints of version 0.2.0 know no code and no tokenizer.
        if {*state, "reward_code", "tokenizer"} != present.keys():
            raise CheckpointError(
                f"a prompt stream's state has the keys {sorted(present)}, the checkpoint has {sorted(state)}"
            )
        if state["split"] != self.split:
            raise CheckpointError(
                f"the checkpoint's prompt stream is of split {state['split']!r}, this one of {self.split!r}"
            )
        self.accept_changes(state)
        self.position = int(state["position"])
        self.num_skipped = {name: int(count) for name, count in state["skipped"].items()}
        for task, level in self.levels.items():
            own_state = state["levels"][task]
            level.load_state_dict(own_state)

    def accept_changes(self, state: Mapping[str, Any]) -> None:
        """Note how this prompt stream's questions, tokenizer and code differ from a state's, or raise CheckpointError.

        A start compares them before processes start, and then loads the state, which says nothing a second time.
        """
        known = {name: state.get(name) for name in ("sources", "reward_code", "tokenizer")}
        if known != self._compared:
            tokenizer = self.tokenizer.fingerprint
            self.accepted_changes += changes_since(state, self.mixture, self.reward_code, self.config, tokenizer)
            self._compared = known

    def _next(self, domain: Domain, rank: int) -> Prompt | None:
        """Return prompt `rank` of a domain of the data mixture. None: a held-out domain has no more questions.

        Prompts that are too long are skipped and counted, and have no rank.
        """
        for _ in range(MAX_CONSECUTIVE_SKIPS):
            # A skipped question shifts all later draws of the domain by one, so no question is drawn twice.
            index = rank + self.num_skipped[domain.name]
            size = domain.source.size
            # Validation would count a row twice if it wrapped around.
            if self.split != "train" and size is not None and index >= size:
                return None
            prompt = self._prompt(domain, index)
            if len(prompt.token_ids) <= domain.max_prompt_tokens:
                return prompt
            self.num_skipped[domain.name] += 1
            self.longest_skipped = max(self.longest_skipped, len(prompt.token_ids))
        where = f" of {domain.name}" if domain.name else ""
        raise DataError(
            f"{MAX_CONSECUTIVE_SKIPS} prompts in a row{where} are longer than "
            f"data.max_prompt_tokens={domain.max_prompt_tokens} (the last has {len(prompt.token_ids)} tokens): "
            f"set data.max_prompt_tokens={self.longest_skipped}, and a generation.max_model_len that has room for it"
        )

    def _prompt(self, domain: Domain, index: int) -> Prompt:
        question = domain.source.question(index)
        if question.has_episodes:
            self.question_check.check(question.tools)
        place = f"{domain.name}/{index}" if domain.name else str(index)
        rendered = render_question(question, domain.system_prompt, self.config, domain.success_reward)
        if rendered.instruction:
            self.instructions[question.verifier] = rendered.instruction
        return Prompt(
            uid=f"{self.split}/{place}",
            task=question.task,
            verifier=question.verifier,
            token_ids=tuple(self.tokenizer.prompt_ids(rendered.messages, domain.system_prompt, question.tools)),
            payload=with_open_thought(question.verifier, rendered.payload, self.tokenizer),
            domain=domain.name,
            messages=tuple(rendered.messages),
            level=question.level,
        )


def changes_since(
    state: Mapping[str, Any],
    mixture: Mixture | None,
    reward_code: Mapping[str, str],
    config: DataConfig,
    tokenizer: str | None = None,
) -> list[str]:
    """Return how questions, the tokenizer's fingerprint and hashes of code differ from those of a stream's state.

    What is None is not compared. Raises CheckpointError if the settings accept no change.
    """
    domains = mixture.domains if mixture else ()
    fingerprints, code = state["sources"] if mixture else {}, state.get("reward_code", {})
    changed = [name for name, digest in code.items() if reward_code.get(name, digest) != digest]
    changes = ["the function reward=" if name == GIVEN_REWARD else f"the source of {name}" for name in changed]
    if tokenizer and state.get("tokenizer", tokenizer) != tokenizer:
        changes.append("the tokenizer or its chat template")
    for name in fingerprints.keys() - {domain.name for domain in domains}:
        changes.append(f"{name} is missing")
    for domain in domains:
        # The only domain of a run without a mixture has no name.
        name = domain.name or "data.path"
        if domain.name not in fingerprints:
            changes.append(f"{name} is new")
        elif change := domain.source.change_since(fingerprints[domain.name]):
            changes.append(f"{name}: {change}")
    if changes and config.changed_rows == "refuse":
        raise CheckpointError(
            f"the questions, their tokenizer or the code that scores them are not those the checkpoint was made with "
            f"({'; '.join(changes)}): bring the old ones back, set data.changed_rows=accept to go on with these, "
            "or start a new run folder"
        )
    return changes


def _task_name(domain: str, task: str) -> str:
    return f"{domain}/{task}" if domain else task
