"""Count the requests to a judge with and without the cache of its scores, for groups of N rollouts.

    python -m lab.studies.judge_cache [--size 512] [--prompts 8] [--terms 8]

The rollouts are worked sums with typical errors (`brorl_lab/bases/demonstrations.py`), drawn by a seed, in chunks of 32
as engines return them. The judge is a stand-in that replies at once. Without the cache every rollout is a request. The
counts follow from the seed alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from random import Random

from brorl_graders.base.names import Names, allow
from brorl_graders.base.settings import Endpoint, ServiceLimits
from brorl_graders.services.remote_scores import RemoteScores
from brorl_graders.verifiers.services import ServiceCall
from brorl_lab.bases.demonstrations import Habits, work_out

from graders.tests.support.scoring_service import completion, serving

CHUNK = 32
HABITS = Habits(dropped_carry_rate=0.1, slip_rate=0.05)


def draw_responses(question: str, size: int, random: Random) -> list[str]:
    """Return simulated rollouts of one prompt: the steps of a sum with random errors, then the answer in tags."""
    texts = []
    for _ in range(size):
        worked = work_out(question, HABITS, random)
        texts.append(f"<think>{worked.steps}</think>\n<answer>{worked.result}</answer>")
    return texts


def draw_questions(num: int, num_terms: int, random: Random) -> Iterator[str]:
    for _ in range(num):
        terms = [str(random.randint(10, 99)) for _ in range(num_terms)]
        yield " + ".join(terms)


def count_requests(sees: str, arguments: argparse.Namespace) -> int:
    """Return how many requests a judge model gets for simulated responses, of each of which it sees the part `sees`."""
    random = Random(0)
    with serving(completion("Score: 1")) as judge:
        endpoint = Endpoint("judge", judge.url, "judge", sees=sees)
        allow(Names(endpoints={endpoint.name: endpoint}))
        scorer = RemoteScores(ServiceLimits())
        for question in draw_questions(arguments.prompts, arguments.terms, random):
            prompt = ({"role": "user", "content": question},)
            call = ServiceCall("judge", {}, prompt)
            texts = draw_responses(question, arguments.size, random)
            for start in range(0, len(texts), CHUNK):
                scorer.judge(call, texts[start : start + CHUNK])
        scorer.close()
    return len(judge.requests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=512, help="rollouts of a prompt, N")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--terms", type=int, default=8, help="terms of a sum")
    arguments = parser.parse_args()
    num_responses = arguments.size * arguments.prompts
    print(f"{num_responses} rollouts: {arguments.prompts} prompts, N = {arguments.size}")
    for sees in ("response", "answer"):
        num = count_requests(sees, arguments)
        print(f"sees: {sees:8}  {num:6} requests, 1 / {num_responses / num:.1f} of those without the cache")


if __name__ == "__main__":
    main()
