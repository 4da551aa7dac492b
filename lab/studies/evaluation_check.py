"""Check `brorl evaluate` against plain transformers on the same prompts, with independent code for everything else.

    python lab/studies/evaluation_check.py --model FOLDER --evaluation RUN/evaluation.json [--config-name NAME]
    [--samples 16] [--json FILE]

`RUN/evaluation.json` is what `brorl evaluate policy.model=FOLDER` left, with the held-out prompts of Reasoning Gym.
Here transformers' own chat template renders the questions and `model.generate` (the model library's sampling loop on
PyTorch) answers them. An expression of this file extracts the answers, and the task's `score_answer` scores them. Only
the questions and the number of samples are shared.

Two independent measurements of one mean are compared in two ways. The loose test: ours lies in the interval of theirs
over prompts. The sharp test: on the same prompts only the samples differ, so the difference has the error of sampling
alone, √(Σ p(1−p)(1/n + 1/m)) / P. Beyond three of these errors the two do not measure the same.

The tokenizer is read from the unchanged tokenizer.json (`PreTrainedTokenizerFast`). `AutoTokenizer` of Transformers 5
replaces the file's word pattern by that of the model's family. The number of prompts that it would read differently is
printed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reasoning_gym.factory import create_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from nemo_brorl.config.load import load_config
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.evaluation.benchmarks import held_out_prompts
from nemo_brorl.prompts.sources import Sources
from nemo_brorl.scoring.grader_settings import configure
from nemo_brorl.types import Prompt

ANSWER = re.compile(r".*<answer>(.*?)</answer>", re.DOTALL)
SHARP_ERRORS = 3.0
NUM_RESAMPLES = 4000
RIGHT = 1 - 1e-6


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--evaluation", type=Path, required=True, help="evaluation.json of the same model")
    parser.add_argument("--config-name", default="brorl_cpu")
    parser.add_argument("--samples", type=int, default=16, help="of each prompt")
    parser.add_argument("--batch", type=int, default=256, help="sequences at a time")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    return parser.parse_intermixed_args()


def read_prompts_right(path: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Return which samples of each prompt were right, and how they were drawn, from an evaluation.json.

    Samples are digits by prompt uid, with 1 for a right one. The evaluation must be of the held-out prompts.
    """
    benchmark = json.loads(path.read_text())["benchmarks"]["held_out"]
    return benchmark["prompts"], benchmark["settings"]


def conversation(tokenizer: Any, question: str, system_prompt: str | None) -> list[int]:
    """Return the token ids of a question, which transformers renders with the model's chat template."""
    messages = [{"role": "system", "content": system_prompt}] if system_prompt else []
    messages.append({"role": "user", "content": question})
    return tokenizer(
        tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False), add_special_tokens=False
    ).input_ids


def answer_all(
    model: Any, tokenizer: Any, rows: Sequence[list[int]], settings: dict[str, Any], batch: int
) -> list[str]:
    """Return one response for each row of token ids, sampled in batches padded on the left."""
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    texts: list[str] = []
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        longest = max(map(len, part))
        ids = torch.tensor([[pad] * (longest - len(row)) + row for row in part])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in part])
        greedy = settings["temperature"] == 0
        drawn = {} if greedy else {"temperature": settings["temperature"], "top_p": settings["top_p"], "top_k": 0}
        with torch.inference_mode():
            output = model.generate(
                ids,
                attention_mask=mask,
                do_sample=not greedy,
                max_new_tokens=settings["max_response_tokens"],
                pad_token_id=pad,
                **drawn,
            )
        texts += tokenizer.batch_decode(output[:, longest:], skip_special_tokens=True)
        sys.stderr.write(f"\r  {len(texts)}/{len(rows)} responses")
    sys.stderr.write("\n")
    return texts


def is_right(prompt: Prompt, response: str) -> bool:
    """Return whether the task's own scorer accepts the text between a response's last answer tags."""
    found = ANSWER.match(response)
    if found is None:
        return False
    task = create_dataset(prompt.payload["dataset"], **prompt.payload["config"], seed=0, size=1)
    return task.score_answer(found[1].strip(), dict(prompt.payload)) >= RIGHT


def measure(
    options: argparse.Namespace, config: BroRLConfig, prompts: Sequence[Prompt], settings: dict[str, Any]
) -> np.ndarray:
    """Sample answers to each prompt with plain transformers, and return the share of right samples [prompts]."""
    torch.manual_seed(options.seed)
    tokenizer, automatic = (
        PreTrainedTokenizerFast.from_pretrained(options.model),
        AutoTokenizer.from_pretrained(options.model),
    )
    model = AutoModelForCausalLM.from_pretrained(
        options.model, dtype=torch.float32 if config.generation.precision == "fp32" else torch.bfloat16
    )
    rows = [conversation(tokenizer, prompt.payload["question"], settings["system_prompt"]) for prompt in prompts]
    different = sum(tuple(row) != prompt.token_ids for row, prompt in zip(rows, prompts, strict=True))
    print(f"prompts that transformers reads as other tokens: {different} of {len(rows)}")
    if others := sum(
        conversation(automatic, prompt.payload["question"], settings["system_prompt"]) != row
        for row, prompt in zip(rows, prompts, strict=True)
    ):
        print(
            f"AutoTokenizer does not keep to this model's tokenizer.json: {others} of {len(rows)} prompts would be "
            "read otherwise"
        )
    repeated = [row for row in rows for _ in range(options.samples)]
    by_length = sorted(range(len(repeated)), key=lambda index: len(repeated[index]))
    texts = [""] * len(repeated)
    for index, text in zip(
        by_length, answer_all(model, tokenizer, [repeated[i] for i in by_length], settings, options.batch), strict=True
    ):
        texts[index] = text
    verdicts: dict[tuple[int, str], bool] = {}
    right = np.zeros((len(prompts), options.samples))
    for index, text in enumerate(texts):
        place, sample = divmod(index, options.samples)
        if (place, text) not in verdicts:
            verdicts[place, text] = is_right(prompts[place], text)
        right[place, sample] = verdicts[place, text]
    return right.mean(axis=1)


def compare(mine: np.ndarray, num_mine: int, theirs: np.ndarray, num_theirs: int) -> dict[str, Any]:
    """Compare two measurements of pass@1 on the same prompts by a loose and a sharp test of whether they agree.

    The loose test asks whether the first mean lies in the 95 % interval of the second one over prompts, the sharp test
    whether the means differ by at most SHARP_ERRORS standard errors of sampling. Returns the numbers of both tests.
    """
    means = theirs[np.random.default_rng(0).integers(0, len(theirs), (NUM_RESAMPLES, len(theirs)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    share = (mine * num_mine + theirs * num_theirs) / (num_mine + num_theirs)
    error = float(np.sqrt((share * (1 - share)).sum() * (1 / num_mine + 1 / num_theirs)) / len(mine))
    difference = float(mine.mean() - theirs.mean())
    return {
        "num_prompts": len(mine),
        "evaluate_pass_at_1": float(mine.mean()),
        "transformers_pass_at_1": float(theirs.mean()),
        "transformers_interval": [float(low), float(high)],
        "is_within": bool(low <= mine.mean() <= high),
        "difference": difference,
        "sampling_error": error,
        "errors_apart": abs(difference) / error if error else 0.0,
        "is_the_same": abs(difference) <= SHARP_ERRORS * error,
    }


def main() -> int:
    """Compare pass@1 of `brorl evaluate` with that of plain transformers, and return the exit code.

    0: the two agree by a loose and by a sharp test, 1: they do not.
    """
    options = parse_arguments()
    right, settings = read_prompts_right(options.evaluation)
    config = load_config(options.config_name, [f"evaluation.num_prompts={len(right)}", *options.overrides])
    configure(config)
    asked = held_out_prompts(config.evaluation, config.data, load_tokenizer(options.model), Sources(config.data))
    by_uid = {prompt.uid: prompt for prompt in asked}
    lacking = sorted(right.keys() - by_uid.keys())
    if lacking:
        sys.exit(
            f"these settings give no prompt {lacking[0]}: use the --config-name and the data settings of that "
            "evaluation"
        )
    start = time.monotonic()
    theirs = measure(options, config, [by_uid[uid] for uid in right], settings)
    seconds = time.monotonic() - start
    mine = np.array([digits.count("1") / len(digits) for digits in right.values()])
    found = compare(mine, settings["samples_per_prompt"], theirs, options.samples)
    low, high = found["transformers_interval"]
    print(
        f"brorl evaluate      {found['evaluate_pass_at_1']:.2%}  ({len(mine)} prompts × "
        f"{settings['samples_per_prompt']})"
    )
    print(
        f"plain transformers  {found['transformers_pass_at_1']:.2%}  ({len(mine)} prompts × {options.samples}, "
        f"{seconds:.0f} s)"
    )
    print(f"its 95% interval over prompts {low:.2%} … {high:.2%}: {'within' if found['is_within'] else 'OUTSIDE'}")
    print(
        f"difference {found['difference']:+.2%}: {found['errors_apart']:.2f} times the error of sampling, "
        f"{found['sampling_error']:.2%}"
    )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if found["is_within"] and found["is_the_same"] else 1


if __name__ == "__main__":
    sys.exit(main())
