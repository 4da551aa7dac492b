"""The side of TRL in `bench.gpu.peer`: steps of its GRPO trainer, which samples with vLLM on the same card.

The process needs TRL, accelerate and datasets, which no requirements file of ours names (README.md, "The peer"). TRL
1.16 warns of vLLM 0.32, because it knows versions up to 0.31.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class StepTimes(TrainerCallback):
    """Measure the seconds of every optimizer step, generation included."""

    def __init__(self) -> None:
        self.began = 0.0
        self.seconds: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Note the start of a step."""
        self.began = time.monotonic()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Note the end of a step."""
        self.seconds.append(time.monotonic() - self.began)


def exact_match(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """Return 1 for a response that is the answer."""
    texts = [completion[0]["content"].strip() for completion in completions]
    return [float(text == wanted) for text, wanted in zip(texts, answer, strict=True)]


def settings(options: argparse.Namespace) -> GRPOConfig:
    """Return the settings of steps with one generation and one update each."""
    samples = options.rollouts * options.prompts
    return GRPOConfig(
        output_dir=str(options.output.parent / "trl"),
        max_steps=options.steps,
        num_generations=options.rollouts,
        per_device_train_batch_size=options.micro_batch,
        gradient_accumulation_steps=samples // options.micro_batch,
        max_completion_length=options.response_tokens,
        learning_rate=1e-6,
        bf16=not options.cpu,
        use_cpu=options.cpu,
        gradient_checkpointing=False,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_enable_sleep_mode=not options.cpu,
        vllm_gpu_memory_utilization=0.35,
        vllm_max_model_length=options.max_model_len,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        seed=1,
    )


def main() -> None:
    """Train, and write seconds and mean response tokens of every step, and the prompts' mean tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    for name in ("steps", "rollouts", "prompts", "micro-batch", "response-tokens", "max-model-len"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.questions.read_text().splitlines()]
    questions = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": row["prompt"]}], "answer": row["answer"]} for row in rows]
    )
    # AutoTokenizer would replace the folder's tokenizer by Qwen2's because of the model's type.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(options.model)
    times = StepTimes()
    trainer = GRPOTrainer(
        model=str(options.model),
        reward_funcs=exact_match,
        args=settings(options),
        train_dataset=questions,
        processing_class=tokenizer,
        callbacks=[times],
    )
    if options.cpu:
        # TRL loads weights into vLLM's modules, whose parameters vLLM's CPU build has packed and cannot load again.
        trainer.vllm_generation.sync_weights = lambda: None
    trainer.train()
    steps = [row for row in trainer.state.log_history if "completions/mean_length" in row]
    first = steps[0]
    found = {
        "seconds": times.seconds,
        "response_tokens": [row["completions/mean_length"] for row in steps],
        "prompt_tokens": first["num_tokens"] / (options.rollouts * options.prompts) - first["completions/mean_length"],
    }
    options.output.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
