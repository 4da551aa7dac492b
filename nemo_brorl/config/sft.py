"""Declare settings of supervised fine-tuning, and of the small base models that `brorl base` makes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nemo_brorl.config.declare import path_setting, section, setting


@dataclass
class DemonstrationsConfig:
    """Right and wrong answers to generated questions, on which `brorl base` trains."""

    tagged_fraction: float = setting(
        1.0, "share of demonstrations with the answer in tags; the rest have it without tags", within=(0, 1)
    )
    worked_sums: bool = setting(False, "show every step before the answer in demonstrations of chain_sum")
    dropped_carry_rate: float = setting(
        0.0, "probability that a worked sum forgets a carry or a borrowed ten", within=(0, 1)
    )
    slip_rate: float = setting(
        0.0,
        "probability that a step of a worked sum is off by one, or that a tool call or the reading of its "
        "result goes wrong",
        within=(0, 1),
    )
    calling_rate: float | None = setting(
        None,
        "probability that a demonstration in the environment calculator calls it; otherwise it guesses. "
        "null: it answers right at once",
        within=(0, 1),
    )


@dataclass
class NewModelConfig:
    """A small model that `brorl base` creates and trains from scratch until it is right sometimes."""

    output: str = path_setting("runs/base_cpu", "folder of the new model")
    hidden_size: int = setting(256, at_least=1)
    num_layers: int = setting(4, at_least=1)
    num_attention_heads: int = setting(4, at_least=1)
    num_key_value_heads: int = setting(2, at_least=1)
    intermediate_size: int = setting(512, at_least=1)
    vocab_size: int = setting(512, at_least=1)
    max_position_embeddings: int = setting(512, at_least=1)
    precision: str = setting(
        "auto",
        "number format in which the new model is trained; auto: bf16 if the processor supports it",
        choices=("auto", "fp32", "bf16"),
    )
    probe_interval: int = setting(100, "optimizer steps between measurements of pass@1", at_least=1)
    target_pass_at_1: float = setting(0.25, "pass@1 at which training stops", within=(0, 1))
    min_pass_at_1: float = setting(
        0.2, "lowest pass@1 of a usable base model; below it the base is refused", within=(0, 1)
    )
    max_pass_at_1: float = setting(
        0.5, "highest pass@1 of a usable base model; above it the base is refused", within=(0, 1)
    )
    time_limit_s: float = setting(200.0, "most seconds of training", above=0)

    def violations(self) -> Iterator[str]:
        heads, groups = self.num_attention_heads, self.num_key_value_heads
        if self.hidden_size % heads:
            yield f"sft.new.hidden_size={self.hidden_size} is not divisible by sft.new.num_attention_heads={heads}"
        if heads % groups:
            yield f"sft.new.num_attention_heads={heads} is not divisible by sft.new.num_key_value_heads={groups}"
        if not self.min_pass_at_1 <= self.target_pass_at_1 <= self.max_pass_at_1:
            yield (
                f"sft.new.target_pass_at_1={self.target_pass_at_1} is outside sft.new.min_pass_at_1="
                f"{self.min_pass_at_1} … sft.new.max_pass_at_1={self.max_pass_at_1}: set a target between them"
            )


@dataclass
class SftConfig:
    """Supervised fine-tuning of `policy.model`, on files (`brorl sft`) or generated demonstrations (`brorl base`)."""

    base: str = setting(
        "auto",
        "model that is trained. policy: policy.model; new: a new small model; auto: policy.model if "
        "data.source reads files",
        choices=("auto", "policy", "new"),
    )
    epochs: float = setting(3.0, "passes over the conversations; max_steps may end training earlier", above=0)
    max_tokens: int = setting(1024, "longest conversation in tokens", at_least=2)
    too_long: str = setting(
        "refuse",
        "treatment of longer conversations. refuse: an error; cut: their end is left out; drop: they are left out",
        choices=("refuse", "cut", "drop"),
    )
    val_examples: int = setting(256, "held-out conversations for the validation loss", at_least=1)
    lr_schedule: str = setting("cosine", "learning rate after the warm-up", choices=("cosine", "linear", "constant"))
    warmup_steps: int = setting(20, "optimizer steps of warm-up, over which the learning rate rises to lr", at_least=0)
    last_lr_fraction: float = setting(0.1, "learning rate at the last step, as a share of lr", within=(0, 1))
    batch_size: int = setting(32, "examples per optimizer step", at_least=1)
    lr: float = setting(2e-3, "highest learning rate", above=0)
    max_steps: int = setting(1000, "most optimizer steps", at_least=1)
    demonstrations: DemonstrationsConfig = section(DemonstrationsConfig)
    new: NewModelConfig = section(NewModelConfig)

    def violations(self) -> Iterator[str]:
        yield from self.new.violations()
