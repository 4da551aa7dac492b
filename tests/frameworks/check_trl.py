"""TRL trains a model of random weights for a step with the README's example, and logs what was read."""

from __future__ import annotations

import pickle
import tempfile

import torch
from datasets import Dataset
from example import run_example
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig

WORDS = ["<pad>", "<eos>", "3", "4", "7", "+", "=", "?"]
tokens = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, "?"))
tokens.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="<pad>", eos_token="<eos>")
torch.manual_seed(0)
shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
with tempfile.TemporaryDirectory() as folder:
    config = LlamaConfig(vocab_size=len(WORDS), pad_token_id=0, eos_token_id=1, bos_token_id=1, **shape)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    sizes = {"per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 4, "max_steps": 1}
    settings = GRPOConfig(output_dir=folder, use_cpu=True, report_to=[], save_strategy="no", **sizes)
    dataset = Dataset.from_list([{"prompt": "3 + 4 =", "answer": "7"}] * 4)
    names = run_example("TRL", {"model": folder, "settings": settings, "dataset": dataset})
    trainer = names["trainer"]
    assert trainer.reward_func_names == ["math"]
    [logged] = [entry for entry in trainer.state.log_history if "rewards/math/mean" in entry]
    print("trained a step:", {key: logged[key] for key in ("rewards/math/mean", "loss") if key in logged})

# The trainer's own path from completions to rewards: right, wrong, no text, messages, and a reference for each row
[reward] = trainer.reward_funcs
texts = ["\\boxed{7}", "It is 8.", None, [{"role": "assistant", "content": "The answer is 9."}]]
rows = [{"prompt": "3 + 4 =", "answer": answer} for answer in ("7", "7", "7", "9")]
found = trainer._calculate_rewards(rows, [row["prompt"] for row in rows], texts, [[0]] * 4)
assert found[:, 0].tolist()[:2] == [1.0, 0.0] and found[2, 0].isnan() and found[3, 0] == 1.0
assert trainer._pending_extra_logs["math_answer"][-4:] == ["7", "8", "", "9"]
same = pickle.loads(pickle.dumps(reward))
assert same(prompts=["?"], completions=["\\boxed{7}"], answer=["7"]) == [1.0]
print("rewards of TRL:", found[:, 0].tolist())
