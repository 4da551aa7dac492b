"""Mastermind: find a secret code from how many letters of each guess are right."""

from __future__ import annotations

import re
from collections import Counter
from random import Random

from brorl_graders.base.answer import extract_answer
from brorl_graders.base.errors import ConfigError
from brorl_graders.environments.protocol import Action, Environment, Observation, Step, Task

ALPHABET = "ABCDEFGHIJ"
RULES = (
    "I have a secret code of {length} letters, each one of {letters}; letters may repeat. Find it in at most {turns} "
    "guesses. After each I say how many letters are right in their place, and how many more are in the code elsewhere. "
    "Write a guess as <answer>{example}</answer>."
)


class Mastermind(Environment):
    """A game of Mastermind, in which the model guesses a secret code of `length` letters, each one of `num_letters`.

    The reward is 1 for the code. After a lost game the reward is `consolation` times the share of letters that the last
    guess has in the right place.
    """

    def __init__(
        self,
        length: int = 4,
        num_letters: int = 6,
        max_turns: int = 8,
        consolation: float = 0.0,
    ) -> None:
        """Check and store the settings of a Mastermind game. Raises ConfigError for a game that cannot be played."""
        if length < 1 or not 2 <= num_letters <= len(ALPHABET) or max_turns < 1:
            raise ConfigError(
                f"mastermind: length={length}, num_letters={num_letters}, max_turns={max_turns}: set a length and "
                f"turns of 1 or more, and 2 to {len(ALPHABET)} letters"
            )
        self.length = length
        self.letters = ALPHABET[:num_letters]
        self.max_turns = max_turns
        self.consolation = consolation
        self.num_guesses = 0
        self.secret = ""

    def task(self, seed: int) -> Task:
        """Draw the secret code of a Mastermind game with the seed."""
        letters = Random(seed).choices(self.letters, k=self.length)
        return {"secret": "".join(letters)}

    def reset(self, task: Task, seed: int) -> Observation:
        """Store the secret code and return the rules of the game."""
        self.secret = str(task["secret"])
        return RULES.format(
            length=self.length,
            letters=self.letters,
            turns=self.max_turns,
            example=(self.letters * self.length)[: self.length],
        )

    def step(self, action: Action) -> Step:
        """Compare the model's guess with the secret code, and tell the model how many letters are right."""
        self.num_guesses += 1
        guess = re.sub(r"\s", "", extract_answer(action.text) or "").upper()
        is_guess = len(guess) == self.length and set(guess) <= set(self.letters)
        num_placed = 0
        if is_guess:
            num_placed = sum(map(str.__eq__, guess, self.secret))
        if num_placed == self.length:
            return Step(reward=1.0, terminated=True)
        if self.num_guesses >= self.max_turns:
            return Step(reward=self.consolation * num_placed / self.length, terminated=True)
        if not is_guess:
            return Step(f"That is no guess: write {self.length} of the letters {self.letters} in <answer> tags.")
        in_both = Counter(guess) & Counter(self.secret)
        num_elsewhere = in_both.total() - num_placed
        return Step(f"{num_placed} in place, {num_elsewhere} elsewhere.")
