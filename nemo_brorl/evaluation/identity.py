"""Identify an evaluation by everything that determines its answers: weights, sampling, seed, questions, scoring."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from brorl_graders.base.environment_values import as_written

from nemo_brorl.config.rewards import RewardsConfig
from nemo_brorl.core.errors import ModelError
from nemo_brorl.evaluation.benchmarks import Benchmark

BLOCK = 1 << 22  # bytes read at a time
NUM_THREADS = 8
BESIDE_WEIGHTS = ("config.json", "generation_config.json")


def identity_of(
    benchmark: Benchmark, rewards: RewardsConfig, weights: str, precision: str, seed: int
) -> dict[str, Any]:
    """Return everything that determines the answers to a benchmark, as JSON-able data.

    Texts from environment variables are left unresolved.
    """
    identity = {
        "benchmark": benchmark.name,
        "weights": weights,
        "seed": seed,
        "precision": precision,
        "settings": benchmark.settings,
        "questions": benchmark.questions,
        "tokens": benchmark.tokens,
        "scoring": _scoring(rewards, benchmark),
    }
    return dict(as_written(identity))


def _scoring(rewards: RewardsConfig, benchmark: Benchmark) -> dict[str, Any]:
    """Return the settings of the verifiers that score a benchmark."""
    names = set(benchmark.verifiers)
    for prompt in benchmark.prompts:
        # A composite verifier counts in addition to its parts.
        names.add(prompt.verifier)
    return {
        "timeout_s": rewards.timeout_s,
        "timeouts": {name: seconds for name, seconds in rewards.timeouts.items() if name in names},
        "code": asdict(rewards.code) if "code" in names else None,
    }


def short_id(identity: Any) -> str:
    """Return eight hexadecimal digits that identify JSON-able data."""
    text = json.dumps(identity, sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=4)
    return digest.hexdigest()


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the names of the settings and other data in which two evaluations' identities differ.

    A setting inside a section has its own name.
    """
    first = _flat(one)
    second = _flat(other)
    names = sorted(first.keys() | second.keys())
    return [name for name in names if first.get(name) != second.get(name)]


def _flat(identity: Mapping[str, Any]) -> dict[str, Any]:
    entries = dict(identity)
    settings = entries.pop("settings", {})
    return {**entries, **settings}


def weights_digest(folder: Path) -> str:
    """Return a digest of all bytes of a model's weights and config.

    The digest changes with any training step and not with copying. The engines read the files next, so most of the time
    for this is not lost. Raises ModelError for a folder without weights.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        files = sorted(folder.glob("*.bin"))
    if not files:
        raise ModelError(
            f"{folder} has no *.safetensors: "
            f"set policy.model=FOLDER of a Hugging Face model, or evaluation.checkpoint=RUN"
        )
    for name in BESIDE_WEIGHTS:
        if (folder / name).exists():
            files.append(folder / name)
    # Hashing releases the interpreter's lock, and a parallel file system serves several readers at once.
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        digests = "".join(pool.map(_file_digest, files))
    digest = hashlib.blake2b(digests.encode(), digest_size=16)
    return digest.hexdigest()


def _file_digest(path: Path) -> str:
    digest = hashlib.blake2b(path.name.encode(), digest_size=16)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
