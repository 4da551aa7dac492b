"""Part c: measure a training step of the 1.5B shape with padded, packed and shared-prompt rows.

A step is forward, backward, clipping and Adam, in bf16 and FP8.

    python -m bench.gpu.throughput [--tiny] [--results FOLDER] [--micro-batch 16384] [--repeats 3] [--rows bf16 kept]
        [--profile]

*Layouts*: one prompt of 2,000 tokens and 64 responses of 250 to 750, mean 500, in micro-batches of at most
`--micro-batch` tokens. *packed* gives every response its own copy of the prompt; *padded* also makes all responses as
long as the longest, which is what right-padding costs; *shared* computes the prompt once in a micro-batch. *Recipes*:
documents of 2,048 tokens, one micro-batch's worth, four to a step. *kept* is bf16 on these documents with
`policy.recompute=null`, which needs 64 GiB; the other rows recompute all layers.

Floors are FLOPs over the measured matrix rate plus the optimizer's bytes over the measured bandwidth (`floors.py`).
Where FP8 is below its target, or with `--profile`, the kernels that take the most time are written down for bf16 and
the best recipe. Where *kept* is below its target, its kernels are written down.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from bench.gpu.ceilings import measure_once
from bench.gpu.floors import TokenWork, separate_documents, shared_prompt, training_flops, training_seconds
from bench.gpu.one_rank import OneRank, TrainingStep, config_for, open_rank, packed_group
from bench.gpu.parity import RECIPES
from bench.gpu.record import Row
from bench.gpu.setting import Setting, median_seconds, open_setting, peak_memory
from bench.gpu.shapes import QWEN_1_5B, TINY, make_model

FP8_GAIN, SHARED_GAIN = 1.25, 3.0  # targets
FRACTIONS = {"bf16": 0.45, "kept": 0.60}  # targets, of the matrix rate
POLICIES: dict[str, dict[str, Any]] = {"kept": {"recompute": None}, **RECIPES}
TOP_KERNELS = 25
ROWS = ("bf16", "kept", "layouts", *RECIPES)


@dataclass(frozen=True)
class Sizes:
    """What is trained on."""

    prompt: int
    responses: tuple[int, int]  # shortest, longest
    num_responses: int
    document: int
    micro_batch: int  # tokens
    steps_rows: int  # micro-batches of a step of documents


SIZES = Sizes(2000, (250, 750), 64, 2048, 16384, 4)
TINY_SIZES = Sizes(24, (4, 12), 8, 32, 128, 2)


def draw(random: np.random.Generator, length: int, vocab_size: int) -> np.ndarray:
    """Token ids."""
    return random.integers(0, vocab_size, length, dtype=np.int32)


def micro_batches(costs: Sequence[int], common: int, budget: int) -> list[list[int]]:
    """Consecutive indices whose costs, and what they have in common, stay within a budget."""
    batches: list[list[int]] = []
    total = budget
    for index, cost in enumerate(costs):
        if total + cost > budget:
            batches.append([])
            total = common
        batches[-1].append(index)
        total += cost
    return batches


def layout_rows(learner: Any, layout: str, sizes: Sizes) -> tuple[list[Any], TokenWork]:
    """Rows of the group under a layout, and the work in them."""
    random = np.random.default_rng(0)
    vocab_size = learner.state.shape.vocab_size
    lengths = random.integers(sizes.responses[0], sizes.responses[1] + 1, sizes.num_responses).tolist()
    if layout == "padded":
        lengths = [max(lengths)] * len(lengths)
    prompt, responses = draw(random, sizes.prompt, vocab_size), [draw(random, length, vocab_size) for length in lengths]
    is_shared = layout == "shared"
    common, own = (sizes.prompt, 0) if is_shared else (0, sizes.prompt)
    rows, works = [], []
    for batch in micro_batches([length + own for length in lengths], common, sizes.micro_batch):
        part = [responses[i] for i in batch]
        rows.append(
            learner.state.row(
                [packed_group(prompt, part)] if is_shared else [packed_group(prompt, [one]) for one in part], 1.0
            )
        )
        part_lengths = [lengths[i] for i in batch]
        alone = separate_documents([sizes.prompt + length for length in part_lengths], sum(part_lengths))
        works.append(shared_prompt(sizes.prompt, part_lengths) if is_shared else alone)
    return rows, added(works)


def document_rows(learner: Any, sizes: Sizes) -> tuple[list[Any], TokenWork]:
    """Full micro-batches of documents of one length, all of whose tokens but the first are predicted."""
    random = np.random.default_rng(1)
    num = sizes.micro_batch // sizes.document
    rows = []
    for _ in range(sizes.steps_rows):
        documents = [draw(random, sizes.document, learner.state.shape.vocab_size) for _ in range(num)]
        rows.append(learner.state.row([packed_group(tokens[:1], [tokens[1:]]) for tokens in documents], 1.0))
    lengths = [sizes.document] * (num * sizes.steps_rows)
    return rows, separate_documents(lengths, sum(lengths) - len(lengths))


def added(works: Sequence[TokenWork]) -> TokenWork:
    """All of them."""
    return TokenWork(
        sum(work.tokens for work in works), sum(work.predicted for work in works), sum(work.pairs for work in works)
    )


def timed_step(setting: Setting, learner: Any, rows: Sequence[Any]) -> tuple[float, float | None]:
    """Median seconds of a step, and the peak of allocated memory in GiB (None on CPU)."""
    with peak_memory(setting.device) as peak:
        seconds = median_seconds(TrainingStep(learner, rows), setting.device, setting.extra.repeats, warm_ups=2)
    return seconds, peak[0] if peak else None


def add_rows(setting: Setting, name: str, learner: Any, work: TokenWork, timed: tuple[float, float | None]) -> None:
    """Seconds against the floor, tokens/s, memory."""
    seconds, peak = timed
    floor = training_seconds(learner.state.shape, work, setting.ceilings)
    setting.results.add(
        Row(f"{name}: step", seconds, "s", floor=floor, note=f"{work.tokens:,} tokens, {work.predicted:,} predicted")
    )
    setting.results.add(Row(f"{name}: tokens", work.tokens / seconds, "tokens/s", floor=work.tokens / floor))
    setting.results.add(Row(f"{name}: peak memory", peak, "GiB"))


def measure_layouts(setting: Setting, rank: OneRank, folder: Any, sizes: Sizes) -> None:
    """Measure a bf16 training step with shared-prompt, packed and padded rows."""
    seconds = {}
    for layout in ("shared", "packed", "padded"):
        with setting.results.attempt(layout), rank.learner(folder, config_for(setting)) as learner:
            rows, work = layout_rows(learner, layout, sizes)
            timed = timed_step(setting, learner, rows)
            add_rows(setting, layout, learner, work, timed)
            seconds[layout] = timed[0]
    if "shared" not in seconds:
        return
    for other, target in (("packed", SHARED_GAIN), ("padded", None)):
        if other in seconds:
            gain = seconds[other] / seconds["shared"]
            setting.results.add(Row(f"shared over {other}", gain, "×", at_least=target))


def measure_recipe(setting: Setting, rank: OneRank, folder: Any, sizes: Sizes, name: str) -> tuple[float, list[str]]:
    """Seconds of a step of documents, and what its kernels take."""
    with rank.learner(folder, config_for(setting, **POLICIES.get(name, {}))) as learner:
        rows, work = document_rows(learner, sizes)
        learner.fp8_check.first_scales(rows[0])
        timed = timed_step(setting, learner, rows)
        add_rows(setting, name, learner, work, timed)
        kernels = top_kernels(setting, TrainingStep(learner, rows[:1]))
        if name in FRACTIONS:
            fraction = training_flops(learner.state.shape, work) / timed[0] / setting.ceilings.bf16_flops
            row = Row(f"{name}: fraction of the matrix rate", fraction, "", at_least=FRACTIONS[name])
            setting.results.add(row)
            if name == "kept" and fraction < FRACTIONS[name]:
                write_kernels(setting, {name: kernels})
    return timed[0], kernels


def write_kernels(setting: Setting, kernels: dict[str, list[str]]) -> None:
    """Keep the kernels that take the most time, and print the first of them."""
    setting.results.detail(f"kernels, {', '.join(kernels)}", kernels)
    for name, lines in kernels.items():
        print(f"kernels of one micro-batch, {name}:", *lines[:12], sep="\n  ", flush=True)


def compare_recipes(setting: Setting, seconds: dict[str, float], kernels: dict[str, list[str]]) -> None:
    """FP8 against bf16, where both were measured."""
    measured = [name for name in RECIPES if name in seconds]
    if "bf16" not in seconds or not measured:
        return
    for name in measured:
        setting.results.add(Row(f"{name} over bf16", seconds["bf16"] / seconds[name], "×"))
    best = min(measured, key=seconds.__getitem__)
    gain = seconds["bf16"] / seconds[best]
    setting.results.add(Row("best recipe over bf16", gain, "×", at_least=FP8_GAIN, note=best))
    if setting.extra.profile or gain < FP8_GAIN:
        write_kernels(setting, {name: kernels[name] for name in ("bf16", best)})


def top_kernels(setting: Setting, step: TrainingStep) -> list[str]:
    """Return a line for each of the kernels that take the most time of one step.

    A line has share, milliseconds, calls and name. On CPU the lines are of operators.
    """
    activity = torch.profiler.ProfilerActivity
    activities = [activity.CPU] if setting.is_tiny else [activity.CPU, activity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        step()
    attribute = "self_cpu_time_total" if setting.is_tiny else "self_device_time_total"
    events = sorted(profile.key_averages(), key=lambda event: -getattr(event, attribute))
    if not setting.is_tiny:
        events = [event for event in events if event.device_type != torch.autograd.DeviceType.CPU]
    total = sum(getattr(event, attribute) for event in events) or 1.0
    return [f"{getattr(event, attribute) / total:6.1%} {getattr(event, attribute) / 1e3:9.2f} ms {event.count:6d} × "
            f"{event.key[:100]}"
            for event in events[:TOP_KERNELS]]  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the throughput part to its parser."""
    parser.add_argument("--micro-batch", type=int, help="tokens")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", nargs="+", choices=ROWS, help="only these")
    parser.add_argument("--profile", action="store_true", help="write down the kernels whatever the gain of FP8")


def main() -> None:
    """bf16 first, then the layouts, which hold a target, then FP8."""
    setting = open_setting("throughput", __doc__, add_arguments)
    measure_once(setting)
    sizes = TINY_SIZES if setting.is_tiny else SIZES
    if setting.extra.micro_batch:
        sizes = replace(sizes, micro_batch=setting.extra.micro_batch)
    shape = TINY if setting.is_tiny else QWEN_1_5B
    folder = make_model(setting.models / ("tiny" if setting.is_tiny else "1.5B_shape"), shape)
    seconds: dict[str, float] = {}
    kernels: dict[str, list[str]] = {}
    wanted = setting.extra.rows or ROWS
    with open_rank(setting) as rank:
        if "bf16" in wanted:
            with setting.results.attempt("bf16"):
                seconds["bf16"], kernels["bf16"] = measure_recipe(setting, rank, folder, sizes, "bf16")
        if "layouts" in wanted:
            measure_layouts(setting, rank, folder, sizes)
        for name in [name for name in POLICIES if name in wanted]:
            with setting.results.attempt(name):
                seconds[name], kernels[name] = measure_recipe(setting, rank, folder, sizes, name)
    compare_recipes(setting, seconds, kernels)
    setting.results.finish()


if __name__ == "__main__":
    main()
