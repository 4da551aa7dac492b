"""Reward functions for other training frameworks: TRL, verl, verifiers, OpenRLHF, OpenEnv and NeMo Gym.

    GRPOTrainer(reward_funcs=Reward("math"), …)                                 # TRL, for the column `answer`
    reward.custom_reward_function.path=ADAPTERS                                 # verl, with compute_score
    right = verifiers.v1.reward(verifiers_reward(Reward("math")))               # in a Task of verifiers
    reward_func = openrlhf_reward(Reward("math"))                               # in the file that OpenRLHF loads
    Environment(rubric=openenv_rubric(Reward("math")))                          # OpenEnv
    python -m brorl_graders.adapters --verifier math --port 8190                # NeMo Gym, beside its other servers

`python -m brorl_graders.adapters` prints ADAPTERS. This module imports none of the frameworks. graders/README.md has an
example of each. A grade that failed is no reward of 0: it is None, an error, or marked where a framework has neither.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from brorl_graders.base.errors import ConfigError, ResourceError
from brorl_graders.base.foreign import DIGITS, LARGE, read_json
from brorl_graders.grading import SECONDS, Grade, Pool
from brorl_graders.verifiers.registry import check_name

# Verifiers of verl's data sources, by the beginning of their names.
SOURCES = {
    **dict.fromkeys(("openai/gsm8k", "lighteval/MATH", "DigitalLearningGmbH/MATH", "HuggingFaceH4/MATH"), "math"),
    **dict.fromkeys(("math", "aime", "numina_", "hiyouga/geometry3k"), "math"),
    **dict.fromkeys(("codecontests", "apps", "codeforces", "taco"), "code"),
}
GROUND_TRUTH = {"code": "tests"}  # key of the payload for verl's ground truth, where it is not `answer`

_pools: dict[int, Pool] = {}  # the pool of this process, by process id
_lock = threading.Lock()


class Reward:
    """A verifier with the columns of its payload. Calling it is TRL's reward function, which can be pickled."""

    def __init__(
        self,
        verifier: str = "math",
        columns: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Store which column of the data has which key of the payload (`answer` its own), and the payload's other keys.

        Raises ConfigError for an unknown verifier.
        """
        check_name(verifier)
        # A trainer's logs show it
        self.__name__ = verifier
        self.verifier = verifier
        self.columns = dict(columns or {"answer": "answer"})
        self.options = dict(options or {})

    def row(self, data: Mapping[str, Any], response: Any) -> dict[str, Any]:
        """Build a row for `Pool.grade_rows`. Raises ConfigError when the data lack a column."""
        lacking = [column for column in self.columns.values() if column not in data]
        if lacking:
            raise ConfigError(
                f"the data have no {', '.join(lacking)}, but {', '.join(data)}: set columns of the reward"
            )
        payload = {key: data[column] for key, column in self.columns.items()}
        return {"verifier": self.verifier, "payload": {**self.options, **payload}, "response": text_of(response)}

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_extra: Callable[[str, list[Any]], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Return a reward for each completion, None where the verifier failed."""
        rows = []
        for index, completion in enumerate(completions):
            data = {name: values[index] for name, values in columns.items() if isinstance(values, (list, tuple))}
            rows.append(self.row(data, completion))
        grades = shared_pool().grade_rows(rows)
        if log_extra is not None:
            for name in ("answer", "reference", "reason"):
                log_extra(f"{self.verifier}_{name}", [getattr(one, name) or "" for one in grades])
        return [None if one.failed else one.reward for one in grades]


def shared_pool() -> Pool:
    """Return the pool of this process, made at the first call, also after a fork."""
    process = os.getpid()
    with _lock:
        if process not in _pools:
            _pools.clear()
            _pools[process] = Pool(float(os.environ.get("BRORL_GRADERS_SECONDS", SECONDS)))
        return _pools[process]


def text_of(response: Any) -> Any:
    """Return the text of a response: a text, a message, or messages, of which the last is read."""
    if isinstance(response, (list, tuple)) and response:
        response = response[-1]
    if not isinstance(response, Mapping):
        return response
    content = response.get("content")
    if not isinstance(content, list):
        return content
    return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    verifier: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Grade a response for verl, which finds this function in the file that `custom_reward_function.path` names.

    The verifier is that of the data source, or the one in `reward_kwargs`. Other `reward_kwargs` are keys of the
    payload. Returns the same keys for every response. Raises ConfigError for a data source without a verifier.
    """
    known = [name for source, name in SOURCES.items() if data_source.startswith(source)]
    if verifier is None and not known:
        raise ConfigError(f"data_source={data_source}: no verifier is known. Set reward_kwargs.verifier, such as math")
    name = verifier or known[0]
    reward = Reward(name, {GROUND_TRUTH.get(name, "answer"): "ground_truth"}, options)
    one = _grade(reward.row({"ground_truth": ground_truth}, solution_str))
    read = {"answer": one.answer or "", "reference": one.reference or "", "reason": one.reason}
    return {"score": one.reward, "acc": one.reward, "failed": float(one.failed), **read}


def verifiers_reward(reward: Reward) -> Callable[[Any, Any], Awaitable[float]]:
    """Return a method for `verifiers.v1.reward`. It grades the last reply of a trace by the fields of the task's data.

    A failed grade is an error of the trace.
    """

    async def graded(self: Any, trace: Any) -> float:
        one = await asyncio.to_thread(_grade, reward.row(dict(self.data), trace.last_reply))
        if one.failed:
            raise ResourceError(f"the response could not be graded: {one.reason}")
        return one.reward

    # The name of the reward in a trace
    graded.__name__ = reward.__name__
    return graded


def openrlhf_reward(
    reward: Reward,
) -> Callable[[Sequence[str], Sequence[str], Sequence[Any]], dict[str, Any]]:
    """Return `reward_func(queries, prompts, labels)` for a file that `reward.remote_url` names.

    A query is a prompt with its response, and only the response is graded. OpenRLHF has no missing rewards: a failed
    grade has reward 0 and `failed` 1 in the logs.
    """
    [column] = reward.columns.values()

    def reward_func(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]) -> dict[str, Any]:
        rows = []
        for query, prompt, label in zip(queries, prompts, labels, strict=True):
            _, found, response = query.partition(prompt)
            rows.append(reward.row({column: label}, response if found else None))
        grades = shared_pool().grade_rows(rows)
        rewards, failed = [one.reward for one in grades], [float(one.failed) for one in grades]
        if len(grades) == 1:
            return {"rewards": rewards[0], "scores": rewards[0], "extra_logs": {"failed": failed[0]}}
        return {"rewards": rewards, "scores": rewards, "extra_logs": {"failed": failed}}

    return reward_func


def openenv_rubric(reward: Reward, text: str = "message") -> Any:
    """Return a rubric of OpenEnv. It grades the action's field `text` by the metadata of the observation.

    The score of a failed grade is None, as of an observation without a reward.
    """
    from openenv.core.rubrics import Rubric

    class Graded(Rubric):
        def forward(self, action: Any, observation: Any) -> float | None:
            one = _grade(reward.row(observation.metadata, getattr(action, text)))
            return None if one.failed else one.reward

    return Graded()


def _grade(row: Mapping[str, Any]) -> Grade:
    [one] = shared_pool().grade_rows([row])
    return one


def verified(reward: Reward, body: dict[str, Any]) -> dict[str, Any]:
    """Return NeMo Gym's reply to `/verify`: the request with the reward, and `mask_sample` for a failed grade."""
    messages = [item for item in body["response"]["output"] if item.get("type") == "message"]
    one = _grade(reward.row(body, messages))
    return {**body, "reward": one.reward, "mask_sample": one.failed, "failure_reason": one.reason or None}


def serve(reward: Reward, port: int, host: str = "127.0.0.1") -> ThreadingHTTPServer:
    """Open a server of NeMo Gym's requests `/seed_session` and `/verify`. Port 0 chooses a free one."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            try:
                body = read_json(self.rfile.read(min(size, LARGE + 1)), digits=DIGITS, most_bytes=LARGE)
                reply, status = (verified(reward, body) if self.path == "/verify" else {}), 200
            except (ConfigError, ValueError, KeyError, TypeError, AttributeError) as error:
                reply, status = {"detail": f"{type(error).__name__}: {error}"}, 422
            written = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(written)))
            self.end_headers()
            self.wfile.write(written)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    return ThreadingHTTPServer((host, port), Handler)


def main() -> None:
    """Print the path of this file for verl, or serve NeMo Gym when a verifier is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verifier", help="grade NeMo Gym's requests by this verifier until you stop it")
    parser.add_argument("--column", default="answer", help="field of a request with the right answer")
    parser.add_argument("--port", type=int, default=0, help="0 chooses a free port")
    options = parser.parse_args()
    if options.verifier is None:
        sys.stdout.write(f"{__file__}\n")
        return
    with serve(Reward(options.verifier, {"answer": options.column}), options.port) as server:
        sys.stdout.write(f"http://127.0.0.1:{server.server_address[1]}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main()
