"""Folders of runs that never ran, for tests of the report and of how fast it opens: metrics, settings, heartbeat and a
rollout store."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

from nemo_brorl.config.records import StoreConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.timeline import CHUNKS, Timeline, Work, chunk_key
from nemo_brorl.rollouts.ledger import close_group
from nemo_brorl.training.store.writer import StoreWriter
from nemo_brorl.training.trace_files import TraceFiles
from nemo_brorl.types import (
    ChunkArrays,
    Prompt,
    RolloutChunk,
    RolloutRequest,
    Sampling,
    ScoredGroup,
    StepRecord,
    StoredGroup,
)
from tests.support.fakes import score_chunk

# What a model may write: markup, a program, escape sequences of a terminal, marks of direction, controls, no width.
HOSTILE = (
    "<script>document.title='taken'</script><img src=x onerror=\"alert(1)\"><a href='javascript:alert(2)'>x</a>",
    "</script><script>alert(3)</script><!-- <style>*{display:none}</style>",
    "\x1b[31mred\x1b[0m\x1b]0;title\x07 \x00\x08\x7f",
    "left \u202eright to left\u202c and \u2066isolated\u2069 \u200b\ufeff שלום عالم",
    "![x](https://example.org/x.png) <svg/onload=alert(4)> <meta http-equiv=refresh content='0;url=https://example.org'>",
)
PLAIN = ("so 3 + 4 = 7 <answer>7</answer>", "hm, 3 + 4 = 8 <answer>8</answer>")  # right, wrong
PAYLOAD = {"question": "What is 3 + 4?", "answer": "7"}
SAMPLING = Sampling(temperature=1.0, top_p=1.0, max_tokens=64)


def put_run(
    folder: Path,
    num_steps: int = 6,
    prompts: int = 8,
    size: int = 16,
    responses: Sequence[str] = PLAIN,
    seed: int = 0,
    task: str = "sums",
    metrics: Sequence[str] = (),
) -> Path:
    """A run of `num_steps` steps of `prompts` groups of `size`; prompts grow easier. Right rollouts answer with the
    responses but the last one in turn, wrong ones with that. `metrics`: names of further ones, of random values."""
    folder.mkdir(parents=True)
    put_tokenizer(folder / "hf")
    config = BroRLConfig()
    config.trainer.max_steps = num_steps
    config.trainer.seed = seed
    config.policy.model = "nowhere"
    OmegaConf.save(OmegaConf.structured(config), folder / "config.yaml")
    (folder / "revision.txt").write_text("0123abc\n")
    generator = np.random.default_rng(seed)
    writer = StoreWriter(folder, StoreConfig(), folder)
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(num_steps + 1):
            groups = tuple(_groups(step, prompts, size, responses, task, num_steps, generator)) if step else ()
            if step:
                writer.write(StepRecord(step, step, 1e-3, 1.0, groups))
            drawn = dict(zip(metrics, generator.random(len(metrics)).tolist(), strict=True))
            row = drawn | _row(step, num_steps, groups)
            file.write(json.dumps(row) + "\n")
    put_answers(folder, 0, responses[-1], 0.0)
    put_answers(folder, num_steps, responses[0], 1.0)
    put_heartbeat(folder, "ended")
    return folder


def put_answers(folder: Path, step: int, response: str, *rewards: float) -> None:
    """The response of a validation to each of as many held-out questions as there are rewards."""
    path = folder / "validations" / f"step_{step}.jsonl"
    path.parent.mkdir(exist_ok=True)
    rows = [
        {"step": step, "uid": f"held_out/{number}", "question": f"What is {number}? {response}", "response": response}
        | {"reward": reward, "is_right": reward == 1}
        for number, reward in enumerate(rewards)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def put_heartbeat(folder: Path, state: str, written_at: float | None = None) -> None:
    """What the run says it does."""
    row = {
        "state": state,
        "stage": "generate",
        "detail": "3 of 8 rollouts",
        "stage_s": 1.0,
        "silent_s": 0.1,
        "written_at": time.time() if written_at is None else written_at,
        "late": [],
    }
    (folder / "heartbeat.json").write_text(json.dumps(row))


def put_tokenizer(folder: Path) -> None:
    """A tokenizer whose tokens are bytes: id = byte; 256 ends a response."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=ord)
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that stand for themselves
    vocabulary = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    vocabulary.update(zip([one for one in alphabet if ord(one) > 255], others, strict=True))
    vocabulary["<eos>"] = 256
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))


def put_timeline(folder: Path, step: int, num_chunks: int = 8) -> None:
    """A step of 10 s: two engines sample chunks for 4 s, verifiers score them, two ranks learn two mini-batches."""
    timeline = Timeline(now=iter([1000.0, 1000.0, 1006.0, 1006.5, 1009.5, 1010.0]).__next__)
    timeline.begin(step)
    keys = [chunk_key(f"train/{number}", 0) for number in range(num_chunks)]
    for number, key in enumerate(keys):
        began_at = 1000.0 + number * 0.25
        sampled = Work("sample", began_at, began_at + 4.0, CHUNKS, (key,))
        scored = Work("score", began_at + 4.0, began_at + 4.25, CHUNKS, (key,))
        timeline.record_work(f"engine {number % 2}", [sampled])
        timeline.record_work(f"verifier {number % 2}", [scored])
    with timeline.stage("collect"):
        pass
    with timeline.stage("update"):
        first = Work("mini-batch 1 of 2", 1006.5, 1008.0, rollouts=tuple(keys[:4]))
        second = Work("mini-batch 2 of 2", 1008.0, 1009.5, rollouts=tuple(keys[4:]))
        for rank in range(2):
            timeline.record_work(f"policy rank {rank}", [first, second])
    done = timeline.end()
    assert done is not None
    TraceFiles(folder, keep_steps=100).write(done)


def _groups(
    step: int,
    prompts: int,
    size: int,
    responses: Sequence[str],
    task: str,
    num_steps: int,
    generator: np.random.Generator,
) -> Iterator[StoredGroup]:
    for number in range(prompts):
        skill = generator.beta(0.6 + 2.0 * step / num_steps, 1.5)
        rewards = (generator.random(size) < skill).astype(np.float32)
        uid = f"train/{step * prompts + number}"
        scored = _scored(Prompt(uid, task, "exact_match", (1, 2), PAYLOAD), step, rewards, responses, generator)
        if rewards.min() == rewards.max():
            fate = "all_correct" if rewards[0] else "all_wrong"
            yield StoredGroup(scored, "sampled", fate)
        else:
            yield StoredGroup(
                scored=scored,
                origin="sampled",
                fate="trained",
                shaped=rewards,
                advantages=(rewards - rewards.mean()) / rewards.std(),
                trained=np.arange(size),
            )


def _scored(
    prompt: Prompt,
    step: int,
    rewards: np.ndarray,
    responses: Sequence[str],
    generator: np.random.Generator,
) -> ScoredGroup:
    size = len(rewards)
    question = "What is 3 + 4?" if responses is PLAIN else f"What is this? {responses[0]}"
    prompt = replace(prompt, messages=({"role": "user", "content": question},))
    texts = []
    for place in range(size):
        is_wrong = rewards[place] == 0
        texts.append(responses[-1] if is_wrong else responses[place % max(1, len(responses) - 1)])
    ids = [[*text.encode(), 256] for text in texts]
    lengths = np.array([len(one) for one in ids], np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    log_probs = -generator.exponential(0.4, int(offsets[-1])).astype(np.float32)
    data = ChunkArrays(np.concatenate([np.array(one, np.int32) for one in ids]), log_probs, offsets)
    request = RolloutRequest(prompt, 0, size, 0, SAMPLING)
    chunk = RolloutChunk(request, request.indices, lengths, np.ones(size, bool), step - 1, step - 1, 0, data)
    said = "" if responses is PLAIN else f" {responses[0]}"
    reasons = tuple(f"exact_match {reward:g}; format 0.5{said}"[:300] for reward in rewards)
    return close_group(prompt, [replace(score_chunk(chunk, rewards.tolist()), reasons=reasons)])


def _row(step: int, num_steps: int, groups: Sequence[StoredGroup]) -> dict[str, float]:
    row: dict[str, float] = {"step": step}
    if step % 2 == 0:
        row["validation/pass_at_1"] = 0.2 + 0.5 * step / num_steps
        row["validation/pass_at_1_standard_error"] = 0.02
        row["validation/pass_at_8"] = 0.5 + 0.4 * step / num_steps
        row["time/validate_s"] = 2.0
    if groups:
        kept = [stored.fate == "trained" for stored in groups]
        rewards = [float(stored.scored.rewards.mean()) for stored in groups]
        tokens = sum(int(stored.scored.group.lengths.sum()) for stored in groups)
        row["reward/mean"] = float(np.mean(rewards))
        row["dynamic_sampling/keep_rate"] = float(np.mean(kept))
        row["rollouts/group_size"] = float(len(groups[0].scored.rewards))
        row["rollouts/generated_tokens"] = float(tokens * step)
        row["rollouts/response_tokens"] = tokens / len(groups) / row["rollouts/group_size"]
        row["generation/num_samples"] = len(groups) * row["rollouts/group_size"]
        row["policy/kl_to_reference"] = 0.01 * step
        row["policy/entropy"] = 1.0 / step
        row["policy/log_prob_mismatch"] = 3e-7
        row["policy/loss"] = -0.01
        row["mass_balance/unsampled_mass"] = 0.4 / step
        row["time/collect_s"] = 5.0
        row["time/generate_s"] = 4.5
        row["time/update_s"] = 3.0
    return row
