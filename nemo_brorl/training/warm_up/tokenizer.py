"""A small tokenizer for a model made from nothing: byte-level BPE over the tasks' own text.

Text is split into words as Qwen2 splits it, because that is how `AutoTokenizer` reads the tokenizer of a Qwen2 model,
whatever its files say. So every digit is a token of its own, and numbers of any length are spelled the same way.
`<answer>` and `</answer>` are single tokens but not special ones: decoding keeps them, the verifier looks for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nemo_brorl.core.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END)
ANSWER_TAGS = ("<answer>", "</answer>")
BYTES = 256

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# For bases that are shown a tool: tools by name and parameters, calls as Hermes and Qwen write them.
TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n"
    "{% for tool in tools %}{{ tool['function']['name'] }}"
    "({{ tool['function']['parameters']['properties'] | join(', ') }})\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] %}"
    "<tool_call>{\"name\": \"{{ call['function']['name'] }}\", "
    "\"arguments\": {{ call['function']['arguments'] | tojson }}}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer(texts: Iterable[str], vocab_size: int, template: str = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """Learn merges on `texts` (whole rendered prompts are best) until there are `vocab_size` tokens, all told.

    The same texts give the same tokenizer. Raises ConfigError when `vocab_size` has no room for the bytes and the named
    tokens.
    """
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

    smallest = BYTES + len(SPECIAL_TOKENS) + len(ANSWER_TAGS)
    if vocab_size < smallest:
        raise ConfigError(
            f"sft.vocab_size={vocab_size} is too small for a byte-level tokenizer; write {smallest} or more"
        )
    qwen2 = Qwen2Tokenizer().backend_tokenizer
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = qwen2.normalizer
    tokenizer.pre_tokenizer = qwen2.pre_tokenizer
    tokenizer.decoder = qwen2.decoder
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(ANSWER_TAGS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in ANSWER_TAGS])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=IM_END, pad_token=END_OF_TEXT)
    wrapped.chat_template = template
    return wrapped
