"""An environment of OpenEnv rewards actions with the README's example."""

from __future__ import annotations

from example import run_example
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Said(Action):
    """A message of the model."""

    message: str | None


class Sums(Environment):
    """One question with its answer."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: object) -> Observation:
        return Observation(metadata={"answer": "7"})

    def step(self, action: Said, timeout_s: float | None = None, **options: object) -> Observation:
        seen = Observation(done=True, metadata={"answer": "7"})
        seen.reward = self.rubric(action, seen)
        return seen

    @property
    def state(self) -> State:
        return State()


environment = run_example("OpenEnv", {"Sums": Sums})["environment"]
rewards = [environment.step(Said(message=text)).reward for text in ("\\boxed{7}", "It is 8.", None)]
assert rewards == [1.0, 0.0, None]
print("rewards of OpenEnv:", rewards)
