"""What verifying costs: math answers through the pool, against the speed at which the CPU run generates them.

    python -m bench.verifiers [--json FILE] [--old FOLDER]

Answers are new in every repeat, so nothing is remembered from the one before; within a repeat a prompt's responses
share answers, as samples of one prompt do. `--different` makes every answer another expression: the worst case, no
verdict is ever used twice. The generation speed to stand up to is given by `--samples-per-s`. Also: workers (1 and 2),
what hanging verifiers cost, what starting costs, math-verify called plainly in one process, a fuzz of strings, and the
speed of scoring itself beside another checkout's (`math_speed.py`).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import ray
from brorl_graders.base.names import allow
from brorl_graders.base.payload import Deadlines
from brorl_graders.processes.process_pool import ProcessPool
from brorl_graders.verifiers.registry import VERIFIERS
from brorl_lab.bases.initial_model import build_tokenizer

from graders.bench import math_speed
from nemo_brorl.config.data import DataConfig
from nemo_brorl.config.rewards import RewardsConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.tokenizer import ChatTokenizer, load_tokenizer
from nemo_brorl.scoring.grader_settings import names_of
from nemo_brorl.scoring.pool import VerifierPool
from nemo_brorl.types import ChunkArrays, Prompt, RolloutChunk, RolloutRequest, Sampling

SAMPLING = Sampling(temperature=1.0, top_p=1.0, max_tokens=128)
CHUNK = 32  # responses
HANGING = "bench.verifiers:hang_sometimes"
PIECES = r"""\frac { } 1 2 9 x y i e \sqrt ^ _ ( ) [ ] \left \right $ $$ \boxed{ \text{cm} \% %
, ; = < > \le \in \cup \infty \pi
+ - * / \int \sum \lim ! | \begin{pmatrix} \end{pmatrix} & \\ \mathbb{R} 10^{10} \binom \circ x= 1,000 0.5 or
and \overline \{ \} mod"""
WRONG_ANSWERS = 12  # different ones of a prompt


def hang_sometimes(payload: dict[str, Any], response: str) -> float:
    """Score a response with the `math` verifier, but sleep for an hour if it contains `hang`."""
    if "hang" in response:
        time.sleep(3600)
    return VERIFIERS["math"].score(payload, response)


def write_answer(kind: int, rng: Random) -> tuple[str, str, list[str]]:
    """Return a random reference answer, another way to write it, and wrong answers."""
    a, b, c = rng.randint(2, 99), rng.randint(2, 99), rng.randint(101, 999)
    if kind == 0:
        return str(a * c), f"{a * c}", [str(a * c + shift) for shift in range(1, WRONG_ANSWERS + 1)]
    if kind == 1:
        return (
            f"\\frac{{{a}}}{{{c}}}",
            f"\\dfrac{{{2 * a}}}{{{2 * c}}}",
            [f"\\frac{{{a + s}}}{{{c}}}" for s in range(1, WRONG_ANSWERS + 1)],
        )
    if kind == 2:
        return (
            f"{a}\\sqrt{{{c}}}+{b}",
            f"{b}+\\sqrt{{{c}}}\\cdot {a}",
            [f"{a + s}\\sqrt{{{c}}}" for s in range(1, WRONG_ANSWERS + 1)],
        )
    if kind == 3:
        return f"({a}, {a + b}]", f"\\left({a}, {a + b}\\right]", [f"[{a}, {a + b + s}]" for s in range(WRONG_ANSWERS)]
    return f"x^2+{a + b}x+{a * b}", f"(x+{a})(x+{b})", [f"(x+{a})(x-{b + s})" for s in range(WRONG_ANSWERS)]


def make_texts(
    rng: Random, num_prompts: int, num_per_prompt: int, is_different: bool
) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield payload and responses of each prompt.

    A third of the responses are right, and the text of every response is different.
    """
    for number in range(num_prompts):
        reference, same, wrong = write_answer(number % 5, rng)
        texts = []
        for sample in range(num_per_prompt):
            answer = rng.choice([reference, same]) if sample % 3 == 0 else rng.choice(wrong)
            if is_different:
                answer = f"{rng.randint(2, 9999)}x+\\frac{{{rng.randint(1, 9999)}}}{{{rng.randint(2, 9999)}}}"
            texts.append(
                f"we add {rng.randint(0, 10**9)} and find $y={rng.randint(0, 999)}$ so that it is \\boxed{{{answer}}}."
            )
        yield {"answer": reference}, texts


def make_chunks(
    tokenizer: ChatTokenizer, verifier: str, prompts: Sequence[tuple[dict[str, Any], list[str]]]
) -> list[RolloutChunk]:
    """Build chunks of tokenised responses like those that engines return."""
    chunks = []
    for number, (payload, texts) in enumerate(prompts):
        prompt = Prompt(f"{number}", "bench", verifier, (1,), payload)
        for start in range(0, len(texts), CHUNK):
            ids = [tokenizer.encode(text) for text in texts[start : start + CHUNK]]
            lengths = np.array([len(row) for row in ids], np.int32)
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
            data = ChunkArrays(np.concatenate(ids).astype(np.int32), np.zeros(int(offsets[-1]), np.float32), offsets)
            request = RolloutRequest(prompt, start, len(ids), 0, SAMPLING)
            chunks.append(
                RolloutChunk(request, request.indices, lengths, np.ones(len(ids), bool), 0, 0, 0, ray.put(data))
            )
    return chunks


def time_pool(pool: VerifierPool, chunks: Sequence[RolloutChunk]) -> tuple[float, int, float]:
    """Return the seconds until the driver has all scores, the number of failed responses, and the mean reward."""
    start = time.perf_counter()
    scored = list(pool.score(chunks))
    seconds = time.perf_counter() - start
    rewards = np.concatenate([item.rewards for item in scored])
    return seconds, sum(item.num_failed for item in scored), float(rewards.mean())


def measure_pool(folder: Path, workers: int, options: argparse.Namespace, is_different: bool) -> dict[str, Any]:
    """Return medians over repeats on new answers.

    The first repeat warms up and is not counted.
    """
    tokenizer = load_tokenizer(folder)
    pool = VerifierPool(RewardsConfig(num_workers=workers), folder, ["math"])
    pool.wait_ready()
    seconds = []
    for repeat in range(options.repeats + 1):
        rng = Random(f"{workers}/{repeat}/{is_different}")
        texts = list(make_texts(rng, options.prompts, options.samples // options.prompts, is_different))
        taken, failed, mean = time_pool(pool, make_chunks(tokenizer, "math", texts))
        seconds += [taken] if repeat else []
        assert failed == 0, f"{failed} responses failed"
        assert is_different or 0.2 < mean < 0.5, f"mean reward {mean}: a third of the answers is right"
    pool.close()
    return {
        "seconds": seconds,
        "median_s": statistics.median(seconds),
        "samples_per_s": options.samples / statistics.median(seconds),
    }


def measure_hanging(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure how many samples and how much time it costs if 1 % of the responses hang the verifier."""
    allow(names_of(BroRLConfig(data=DataConfig(verifier=HANGING))))
    tokenizer = load_tokenizer(folder)
    pool = VerifierPool(RewardsConfig(num_workers=2, timeout_s=options.timeout), folder, ["math", HANGING])
    pool.wait_ready()
    result: dict[str, Any] = {"timeout_s": options.timeout}
    for share in (0.0, 0.01):
        rng = Random("hanging")
        texts = list(make_texts(rng, options.prompts, options.samples // options.prompts, is_different=False))
        every = round(1 / share) if share else options.samples + 1
        number = 0
        for _, responses in texts:
            for index in range(len(responses)):
                number += 1
                responses[index] = f"hang {responses[index]}" if number % every == 0 else responses[index]
        taken, failed, _ = time_pool(pool, make_chunks(tokenizer, HANGING, texts))
        result[f"{share:g}"] = {"seconds": taken, "failed": failed, "hanging": options.samples // every}
    pool.close()
    return result


def measure_library(options: argparse.Namespace) -> float:
    """Answers per second of math-verify as anyone would call it, in one process, without its time limits."""
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    texts = list(
        make_texts(
            Random("library"), options.prompts, max(options.samples // options.prompts // 8, 1), is_different=False
        )
    )
    start = time.perf_counter()
    for payload, responses in texts:
        reference = parse(f"${payload['answer']}$", parsing_timeout=None)
        for response in responses:
            verify(reference, parse(response, parsing_timeout=None), timeout_seconds=None)
    return sum(len(responses) for _, responses in texts) / (time.perf_counter() - start)


def measure_start() -> dict[str, float]:
    """Measure how long verifier processes take to start, in seconds.

    `load_s` is the time until a new process has loaded its first verifier. `replace_s` is the median time until a new
    child has scored after another child was killed.
    """
    start = time.perf_counter()
    pool = ProcessPool(Deadlines(60.0))
    pool.load("math")
    loaded = time.perf_counter() - start
    replacements = []
    for number in range(8):
        pool.score("math", {"answer": "x"}, [f"\\boxed{{{number}y}}"])
        (child,) = pool.child_pids()
        os.kill(child, signal.SIGKILL)
        while child in pool.child_pids():
            time.sleep(0.001)
        start = time.perf_counter()
        pool.score("math", {"answer": "x"}, [f"\\boxed{{{number}}}"])
        replacements.append(time.perf_counter() - start)
    pool.close()
    return {"load_s": loaded, "replace_s": statistics.median(replacements)}


def fuzz(num: int) -> dict[str, Any]:
    """Score random strings of LaTeX and prose, and return how many failed and the seconds for all."""
    rng, pieces = Random(7), [*PIECES.split(), " ", "\n"]
    references = ("42", "\\frac{1}{2}", "(1, 2]", "\\{1,2\\}", "x^2+1", "x=5", "12 cm", "1<x<2", "3+4i", "AB")
    pool = ProcessPool(Deadlines(5.0))
    start = time.perf_counter()
    failed = 0
    for _ in range(num // 100):
        texts = ["".join(rng.choice(pieces) for _ in range(rng.randint(1, 30))) for _ in range(100)]
        texts = [
            (f"\\boxed{{{text}}}", f"so ${text}$.", f"<answer>{text}</answer>", text)[index % 4]
            for index, text in enumerate(texts)
        ]
        failed += pool.score("math", {"answer": rng.choice(references)}, texts).count(None)
    seconds = time.perf_counter() - start
    pool.close()
    return {"strings": num, "failed": failed, "seconds": seconds}


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--samples-per-s", type=float, default=1100.0, help="what the CPU run generates")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds, of a hanging verifier")
    parser.add_argument("--fuzz", type=int, default=10_000, help="strings")
    parser.add_argument("--old", type=Path, help="folder of another checkout, to compare with")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    return parser.parse_args()


def main() -> None:
    """Run and print."""
    options = parse_arguments()
    result: dict[str, Any] = {
        "start": measure_start(),
        "fuzz": fuzz(options.fuzz),
        "library_samples_per_s": measure_library(options),
        "speed": math_speed.compare(options.old, num=2000, repeats=5),
    }
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        build_tokenizer(["we add and find so that it is boxed 0123456789"], 290).save_pretrained(folder)
        for workers in (1, 2):
            result[f"workers_{workers}"] = measure_pool(folder, workers, options, is_different=False)
        result["different"] = measure_pool(folder, 2, options, is_different=True)
        result["hanging"] = measure_hanging(folder, options)
        ray.shutdown()
    generation_s = options.samples / options.samples_per_s
    result["generation_s"] = generation_s
    print(
        f"{options.samples} math answers of {options.prompts} prompts, medians of {options.repeats}; generating them: "
        f"{generation_s:.2f} s"
    )
    for name, label in (
        ("workers_1", "1 worker"),
        ("workers_2", "2 workers"),
        ("different", "2 workers, no two answers the same"),
    ):
        row = result[name]
        ratio = row["median_s"] / generation_s
        print(
            f"  {label:36s} {row['median_s']:6.2f} s {row['samples_per_s']:8.0f} answers/s, {ratio:.2f} of generation"
        )
    print(f"  math-verify alone, one process       {result['library_samples_per_s']:8.0f} answers/s")
    print(f"  hanging: {json.dumps(result['hanging'])}")
    print(f"  start: {json.dumps(result['start'])}\n  fuzz: {json.dumps(result['fuzz'])}")
    math_speed.print_comparison(result["speed"])
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
