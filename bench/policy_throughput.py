"""Measure tokens per second of a training step against `transformers`, and of two ranks against one.

One policy rank is compared with plain `transformers` + AdamW, and two data-parallel ranks with one.

    python bench/policy_throughput.py [--repeats 5] [--vocabularies 128 32768] [--json FILE]

A step is forward, backward, gradient clipping and Adam on 32 documents of 64 tokens, in fp32 on one thread per process.
Each side is a process of its own; they take turns on the same documents, and every loss and gradient norm is compared.
`transformers` gets what suits it best: documents of equal length as one unpadded batch (no attention mask, no padding),
sdpa attention, one fused cross entropy without slicing the logits, fused AdamW. The policy reads the same documents as
one packed row, or as one of half the length on each of two ranks. A step of 4 such batches follows, over which
gradients are accumulated: what a rank's exchange of gradients costs falls on more tokens. Two ranks against one need
two idle cores; CPU time says nothing there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np

NUM_DOCUMENTS, LENGTH = 32, 64
NUM_STEPS = 2  # timed together
LR, BETAS, EPS, CLIP = 1e-4, (0.9, 0.95), 1e-8, 1.0
SAME = 1e-4  # largest relative difference of losses and gradient norms
VOCABULARIES = (128,)
Step = tuple[float, float]  # loss, gradient norm


class Side(Protocol):
    """Something that trains."""

    def prepare(self, documents: np.ndarray) -> Any:
        """Tokens [B, L] as the side wants to read them; not timed."""

    def step(self, batches: Sequence[Any]) -> Step:
        """One optimizer step on the token mean over all batches."""


class HuggingFace:
    """`transformers` as one would train with it on unpadded batches."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=LR, betas=BETAS, eps=EPS, weight_decay=0.0, fused=True
        )

    def prepare(self, documents: np.ndarray) -> Any:
        """Token ids [B, L] and labels, the last of each document left out."""
        import torch

        token_ids = torch.from_numpy(documents.astype(np.int64))
        return token_ids, torch.nn.functional.pad(token_ids[:, 1:], (0, 1), value=-100).flatten()

    def step(self, batches: Sequence[Any]) -> Step:
        """Forward, backward, clip, AdamW."""
        import torch

        self.optimizer.zero_grad()
        num_tokens = sum(int((labels >= 0).sum()) for _, labels in batches)
        total = 0.0
        for token_ids, labels in batches:
            logits = self.model(token_ids, use_cache=False).logits.flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / num_tokens
            loss.backward()
            total += float(loss.detach())
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        return total, float(norm)


class PolicyRank:
    """One rank of the Megatron policy."""

    def __init__(self, folder: Path, rank: int, world_size: int, meeting: str) -> None:
        from nemo_brorl.config.policy import OptimConfig
        from nemo_brorl.config.rank_settings import RankSettings
        from nemo_brorl.config.schema import BroRLConfig
        from nemo_brorl.policy.process.device import open_device

        device = open_device(on_gpu=False, num_threads=1)
        import torch.distributed as dist

        from nemo_brorl.config.parallel_layout import layout_of
        from nemo_brorl.policy.process import process_groups
        from nemo_brorl.policy.rank.learner import Learner

        config = BroRLConfig()
        config.policy.data_parallel_size = world_size
        config.policy.optim = OptimConfig(lr=LR, betas=list(BETAS), eps=EPS, clip_grad=CLIP)
        config.algorithm.kl.coefficient = 0.0
        process_groups.open_groups(layout_of(config), rank, dist.FileStore(meeting, world_size), device, seed=1)
        self.learner = Learner(RankSettings.from_config(config), folder, device)

    def prepare(self, documents: np.ndarray) -> Any:
        """Build one packed row of all documents.

        A document's first token is the prompt, and the rest is its response.
        """
        from nemo_brorl.policy.rows.packed_rows import PackedGroup, Response

        zeros = np.zeros(LENGTH - 1, np.float32)
        packed_groups = [
            PackedGroup(tokens[:1], (Response(i, 0, tokens[1:], zeros, 0.0, True),))
            for i, tokens in enumerate(documents)
        ]
        return self.learner.state.row(packed_groups, 1.0)

    def step(self, batches: Sequence[Any]) -> Step:
        """Train on one mini-batch as `Update` does, and return its mean loss and gradient norm."""
        from nemo_brorl.policy.rank.pipeline import train_rows
        from nemo_brorl.policy.state.optimizer import guarded_step

        def loss(index: int, row: Any, scores: Any) -> tuple[Any, dict[str, Any]]:
            total = -scores.log_probs.sum()
            return total, {"loss": total.detach()}

        values = train_rows(self.learner.state.chunks, batches, loss)
        norm = guarded_step(
            self.learner.state.optimizer, LR, self.learner.state.settings.policy.optim, None, self.learner.state.device
        )
        assert norm is not None
        return sum(float(value["loss"]) for value in values) / sum(row.num_loss_tokens for row in batches), norm


@dataclass(frozen=True)
class Task:
    """What to run: `num_steps` steps of `num_rows` rows each, drawn with `seed`."""

    seed: int
    num_steps: int
    num_rows: int  # of a step; ranks share the documents of each


@dataclass(frozen=True)
class Result:
    """What a process did."""

    wall_s: float
    cpu_s: float
    steps: tuple[Step, ...]


def serve(
    connection: Connection, folder: Path, vocab_size: int, rank: int | None, world_size: int, meeting: str
) -> None:
    """Build one side of the comparison in this process, and run each task that arrives until None does."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    side: Side = HuggingFace(folder) if rank is None else PolicyRank(folder, rank, world_size, meeting)
    while (task := connection.recv()) is not None:
        random = np.random.default_rng(task.seed)
        documents = random.integers(
            0, vocab_size, (task.num_steps, task.num_rows, NUM_DOCUMENTS, LENGTH), dtype=np.int32
        )
        batches = [[side.prepare(part[rank or 0 :: world_size]) for part in step] for step in documents]
        wall, cpu = time.perf_counter(), time.process_time()
        steps = tuple(side.step(part) for part in batches)
        connection.send(Result(time.perf_counter() - wall, time.process_time() - cpu, steps))


class Team:
    """The processes of one side."""

    def __init__(self, folder: Path, vocab_size: int, world_size: int | None, meeting: str) -> None:
        context = mp.get_context("spawn")
        self.connections: list[Connection] = []
        self.processes = []
        for rank in [None] if world_size is None else range(world_size):
            mine, theirs = context.Pipe()
            arguments = (theirs, folder, vocab_size, rank, world_size or 1, meeting)
            process = context.Process(target=serve, args=arguments, daemon=True)  # gone with us, whatever happens
            process.start()
            self.connections.append(mine)
            self.processes.append(process)

    def run(self, task: Task) -> Result:
        """Run a task on all processes of the team, and return the slowest process's times.

        Losses are averaged over equal shares.
        """
        for connection in self.connections:
            connection.send(task)
        results = [connection.recv() for connection in self.connections]
        steps = tuple(
            (statistics.mean(loss for loss, _ in ranks), ranks[0][1])
            for ranks in zip(*(result.steps for result in results), strict=True)
        )
        return Result(max(result.wall_s for result in results), max(result.cpu_s for result in results), steps)

    def close(self) -> None:
        """End the processes."""
        for connection in self.connections:
            connection.send(None)
        for process in self.processes:
            process.join(timeout=60)


def make_model(folder: Path, vocab_size: int) -> Path:
    """Save a random Qwen2 with 4 layers and hidden size 256 in `folder`, and return the folder."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    sizes = {
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    Qwen2ForCausalLM(
        Qwen2Config(vocab_size=vocab_size, max_position_embeddings=256, tie_word_embeddings=True, **sizes)
    ).save_pretrained(folder)
    return folder


def compare(teams: dict[str, Team], num_rows: int, seed: int, repeats: int) -> dict[str, Any]:
    """Return the median speeds of all teams over repeats in which they take turns.

    The first repeat warms up and is not counted. Raises AssertionError where teams compute different things.
    """
    taken: dict[str, list[Result]] = {name: [] for name in teams}
    for repeat in range(repeats + 1):
        for name in teams if repeat % 2 else reversed(teams):
            taken[name].append(teams[name].run(Task(seed + repeat, NUM_STEPS, num_rows)))
    for name in teams:
        for expected, result in zip(taken["transformers"], taken[name], strict=True):
            np.testing.assert_allclose(np.array(result.steps), np.array(expected.steps), rtol=SAME, err_msg=name)
    tokens = NUM_STEPS * num_rows * NUM_DOCUMENTS * LENGTH
    wall = {
        name: tokens / statistics.median(result.wall_s for result in results[1:]) for name, results in taken.items()
    }
    cpu = {name: tokens / statistics.median(result.cpu_s for result in results[1:]) for name, results in taken.items()}
    ratios = {
        "one rank over transformers": wall["one rank"] / wall["transformers"],
        "one rank over transformers, by CPU time": cpu["one rank"] / cpu["transformers"],
        "two ranks over one": wall["two ranks"] / wall["one rank"],
    }
    return {"tokens_per_s": wall, "tokens_per_cpu_s_of_a_process": cpu, "ratios": ratios}


def measure(vocab_size: int, rows_per_step: Sequence[int], repeats: int) -> dict[str, Any]:
    """All comparisons for one model."""
    with tempfile.TemporaryDirectory() as name:
        folder = make_model(Path(name), vocab_size)
        sizes = {"transformers": None, "one rank": 1, "two ranks": 2}
        teams = {name: Team(folder, vocab_size, size, str(folder / name)) for name, size in sizes.items()}
        results = {str(rows): compare(teams, rows, 1000 * rows, repeats) for rows in rows_per_step}
        for team in teams.values():
            team.close()
    return results


def parse_arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--vocabularies", type=int, nargs="*", default=VOCABULARIES)
    parser.add_argument("--rows-per-step", type=int, nargs="*", default=(1, 4))
    parser.add_argument("--json", type=Path, help="write the numbers here")
    return parser.parse_args()


def main() -> None:
    """Run and print."""
    options = parse_arguments()
    results = {}
    for vocab_size in options.vocabularies:
        results[str(vocab_size)] = measure(vocab_size, options.rows_per_step, options.repeats)
        for rows, numbers in results[str(vocab_size)].items():
            print(f"vocabulary {vocab_size}, {int(rows) * NUM_DOCUMENTS * LENGTH} tokens a step")
            for side, rate in numbers["tokens_per_s"].items():
                print(
                    f"    {side:40} {rate:10,.0f} tokens/s {numbers['tokens_per_cpu_s_of_a_process'][side]:10,.0f} per "
                    "CPU second"
                )
            for name, ratio in numbers["ratios"].items():
                print(f"    {name:40} {ratio:10.2f}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
