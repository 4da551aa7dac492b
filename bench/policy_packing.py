"""Compare shared-prompt rows with plain packed rows and padded Hugging Face batches.

The work is one prompt and N responses, forward and backward.

    python bench/policy_packing.py [--responses 512] [--prompts 20 200] [--repeats 3] [--json FILE]

All three compute the gradient of the mean −log p of the response tokens with the same weights, in fp32, on one thread,
64 responses at a time; every gradient is compared. The Hugging Face side is `transformers` with its sdpa attention,
batches in the order of sampling, padded on the right, and logits of the response tokens only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.policy.process.device import open_device

DEVICE = open_device(on_gpu=False, num_threads=1)  # before megatron is imported

from nemo_brorl.config.parallel_layout import layout_of  # noqa: E402
from nemo_brorl.policy.model.log_probs import TokenScores  # noqa: E402
from nemo_brorl.policy.process import process_groups  # noqa: E402
from nemo_brorl.policy.rank.learner import Learner  # noqa: E402
from nemo_brorl.policy.rank.pipeline import train_rows  # noqa: E402
from nemo_brorl.policy.rows.packed_rows import PackedGroup, Response, Row  # noqa: E402

MICRO_BATCH = 64  # responses
VOCAB_SIZE = 128
TOLERANCE = 1e-5  # largest difference of a gradient over its largest entry
Gradients = dict[str, torch.Tensor]  # under Hugging Face names


def make_model_folder(folder: Path) -> Path:
    """Save a random Qwen2 of 3.0 M parameters in `folder`, and return the folder.

    Norms and biases are random, too.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCAB_SIZE,
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            initializer_range=0.05,
        )
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder


def make_group(prompt_length: int, num_responses: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Prompt tokens and the responses' tokens, 8 to 56 each."""
    random = np.random.default_rng(prompt_length)
    lengths = random.integers(8, 57, num_responses)
    prompt = random.integers(0, VOCAB_SIZE, prompt_length, dtype=np.int32)
    return prompt, [random.integers(0, VOCAB_SIZE, length, dtype=np.int32) for length in lengths]


def make_rows(
    learner: Learner, prompt: np.ndarray, responses: Sequence[np.ndarray], is_shared: bool, micro_batch: int
) -> list[Row]:
    """Rows of `micro_batch` responses each."""
    made = [
        Response(0, index, tokens, np.zeros(len(tokens), np.float32), 0.0, True)
        for index, tokens in enumerate(responses)
    ]
    parts = [made[start : start + micro_batch] for start in range(0, len(made), micro_batch)]
    if is_shared:
        return [learner.state.row([PackedGroup(prompt, tuple(part))], 1.0) for part in parts]
    return [learner.state.row([PackedGroup(prompt, (response,)) for response in part], 1.0) for part in parts]


def cross_entropy(index: int, row: Row, scores: TokenScores) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    return -scores.log_probs.sum(), {}


def megatron_gradients(learner: Learner) -> Gradients:
    """Return the gradients in Megatron's buffers under Hugging Face names.

    The names come from the export's own mapping of weights, run on gradients.
    """
    params = [param for model in learner.state.models for param in model.parameters()]
    weights = [param.detach().clone() for param in params]
    with torch.no_grad():
        for param in params:
            param.copy_(param.main_grad)
        gradients = {name: tensor.clone() for name, tensor in learner.hf_export.stream()}
        for param, weight in zip(params, weights, strict=True):
            param.copy_(weight)
    return gradients


class PaddedHuggingFace:
    """`transformers` as a careful user would train with it."""

    def __init__(self, folder: Path, prompt: np.ndarray, responses: Sequence[np.ndarray]) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32)
        self.prompt_length = len(prompt)
        self.num_tokens = sum(len(response) for response in responses)
        parts = [responses[start : start + MICRO_BATCH] for start in range(0, len(responses), MICRO_BATCH)]
        self.batches = [self._pad(prompt, part) for part in parts]

    def _pad(self, prompt: np.ndarray, responses: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and attention mask [64, S]."""
        longest = len(prompt) + max(len(response) for response in responses)
        token_ids = torch.zeros(len(responses), longest, dtype=torch.long)
        mask = torch.zeros(len(responses), longest, dtype=torch.long)
        for index, response in enumerate(responses):
            whole = np.concatenate([prompt, response])
            token_ids[index, : len(whole)] = torch.from_numpy(whole)
            mask[index, : len(whole)] = 1
        return token_ids, mask

    def train(self) -> None:
        """Forward and backward over all batches."""
        self.model.zero_grad(set_to_none=True)
        for token_ids, mask in self.batches:
            hidden = self.model.model(token_ids, attention_mask=mask, use_cache=False).last_hidden_state
            is_response = mask[:, self.prompt_length :].bool()
            logits = self.model.lm_head(hidden[:, self.prompt_length - 1 : -1][is_response])
            targets = token_ids[:, self.prompt_length :][is_response]
            (torch.nn.functional.cross_entropy(logits, targets, reduction="sum") / self.num_tokens).backward()

    def gradients(self) -> Gradients:
        return {name: param.grad for name, param in self.model.named_parameters()}


class Side:
    """One way to compute the gradients, with the times of its runs."""

    def __init__(self, work: Callable[[], Any], gradients: Callable[[], Gradients], repeats: int) -> None:
        self.work, self.gradients, self.repeats = work, gradients, repeats
        self.cpu: list[float] = []
        self.wall: list[float] = []

    def run(self) -> None:
        if len(self.cpu) == self.repeats:
            return
        cpu_start, wall_start = time.process_time(), time.perf_counter()
        self.work()
        self.cpu.append(time.process_time() - cpu_start)
        self.wall.append(time.perf_counter() - wall_start)


def largest_difference(first: Gradients, second: Gradients) -> float:
    """Over all gradients: largest difference over the largest entry."""
    return max(float((first[name] - other).abs().max() / other.abs().max()) for name, other in second.items())


def measure(learner: Learner, folder: Path, prompt_length: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One prompt length: the sides take turns, so that a busy machine is busy for all; medians and their ratios."""
    prompt, responses = make_group(prompt_length, arguments.responses)
    few = max(1, arguments.repeats * 40 // (40 + prompt_length))
    sides = {}
    for name, is_shared, repeats in (("shared", True, arguments.repeats), ("plain", False, few)):
        rows = make_rows(
            learner, prompt, responses, is_shared, arguments.shared_micro_batch if is_shared else MICRO_BATCH
        )
        sides[name] = Side(
            partial(train_rows, learner.state.chunks, rows, cross_entropy),
            partial(megatron_gradients, learner),
            repeats,
        )
    if not arguments.skip_hf:
        padded = PaddedHuggingFace(folder, prompt, responses)
        sides["padded"] = Side(padded.train, padded.gradients, few)
    gradients = {}
    for _ in range(arguments.repeats):
        for name, side in sides.items():
            side.run()
            gradients.setdefault(name, side.gradients())
    differences = {
        name: largest_difference(gradients["shared"], other) for name, other in gradients.items() if name != "shared"
    }
    cpu = {name: statistics.median(side.cpu) for name, side in sides.items()}
    return {
        "prompt_tokens": prompt_length,
        "responses": len(responses),
        "response_tokens": sum(len(response) for response in responses),
        "cpu_s": cpu,
        "wall_s": {name: statistics.median(side.wall) for name, side in sides.items()},
        "responses_per_cpu_s": {name: len(responses) / seconds for name, seconds in cpu.items()},
        "shared_over": {name: cpu[name] / cpu["shared"] for name in differences},
        "largest_gradient_difference": differences,
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    lines = ["prompt  side      CPU s   wall s  responses/s  shared over it  gradients differ by"]
    for result in results:
        for name, cpu_s in result["cpu_s"].items():
            ratio = result["shared_over"].get(name)
            tail = "" if ratio is None else f"{ratio:14.2f}  {result['largest_gradient_difference'][name]:19.1e}"
            rate = result["responses_per_cpu_s"][name]
            lines.append(
                f"{result['prompt_tokens']:6}  {name:8}{cpu_s:7.2f}  {result['wall_s'][name]:7.2f}  {rate:11.1f}  "
                f"{tail}"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, default=512)
    parser.add_argument("--prompts", type=int, nargs="+", default=[20, 200])
    parser.add_argument(
        "--repeats", type=int, default=3, help="of the fast sides; the slow ones at long prompts are run less often"
    )
    parser.add_argument("--shared-micro-batch", type=int, default=MICRO_BATCH, help="responses of a shared-prompt row")
    parser.add_argument("--skip-hf", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    config = BroRLConfig()
    layout = layout_of(config)
    process_groups.open_groups(layout, 0, torch.distributed.HashStore(), DEVICE, seed=1)
    with tempfile.TemporaryDirectory() as name:
        folder = make_model_folder(Path(name))
        learner = Learner(RankSettings.from_config(config), folder, DEVICE)
        results = [measure(learner, folder, length, arguments) for length in arguments.prompts]
    print(table(results))
    process_groups.close_groups()
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    worst = max(difference for result in results for difference in result["largest_gradient_difference"].values())
    assert worst < TOLERANCE, f"gradients differ by {worst:.1e}, more than {TOLERANCE:g}"


if __name__ == "__main__":
    main()
