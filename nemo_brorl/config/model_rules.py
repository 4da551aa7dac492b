"""Rules that need the model's own config.json, read with the json module alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nemo_brorl.config.derived import longest_response
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.errors import ConfigError, ModelError


@dataclass(frozen=True)
class ModelShape:
    """The numbers of a Hugging Face config.json that rules and memory estimates need."""

    folder: Path
    hidden_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    is_tied: bool

    @property
    def num_parameters(self) -> int:
        """Of a Qwen2/Llama-like model; norms and biases left out."""
        head = self.hidden_size // self.num_attention_heads
        attention = 2 * self.hidden_size * (self.hidden_size + head * self.num_key_value_heads)
        embeddings = (1 if self.is_tied else 2) * self.vocab_size * self.hidden_size
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size) + embeddings


def local_model(config: BroRLConfig) -> Path | None:
    """The folder of `policy.model`; None when it is a Hugging Face name (`owner/name`, found later through the hub's cache).

    Raises ModelError when it looks like a folder and is not there.
    """
    model = config.policy.model
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    is_name = model.count("/") == 1 and not model.startswith((".", "~", "runs/"))
    if is_name and not folder.parent.is_dir():
        return None
    raise ModelError(
        f"policy.model={model}: there is no such folder. `make train` or `python -m nemo_brorl.sft` makes a small model in "
        f"sft.output={config.sft.output}; or write the folder or the name of a Hugging Face model"
    )


def read_shape(folder: Path) -> ModelShape:
    """The shape of a Hugging Face model folder. Raises ModelError when config.json is missing, broken or lacks a number."""
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return ModelShape(
            folder=folder,
            hidden_size=int(raw["hidden_size"]),
            num_layers=int(raw["num_hidden_layers"]),
            num_attention_heads=int(raw["num_attention_heads"]),
            num_key_value_heads=int(raw.get("num_key_value_heads", raw["num_attention_heads"])),
            intermediate_size=int(raw["intermediate_size"]),
            vocab_size=int(raw["vocab_size"]),
            max_position_embeddings=int(raw["max_position_embeddings"]),
            is_tied=bool(raw.get("tie_word_embeddings", False)),
        )
    except FileNotFoundError as error:
        raise ModelError(f"{folder} has no config.json: policy.model must be a Hugging Face model folder") from error
    except (ValueError, TypeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    except KeyError as error:
        raise ModelError(f"{path} has no {error}: policy.model must be a decoder such as Qwen2 or Llama") from error


def check_model_rules(config: BroRLConfig) -> None:
    """Check the settings against the model's shape when `policy.model` is a folder.

    Raises ModelError for a missing or broken folder and ConfigError with every setting that does not fit.
    """
    folder = local_model(config)
    if folder is None:
        return
    found = list(misfits(config, read_shape(folder)))
    if found:
        raise ConfigError(f"the settings do not fit the model {config.policy.model}:\n" + "\n".join(f"  - {text}" for text in found))


def misfits(config: BroRLConfig, shape: ModelShape) -> Iterator[str]:
    """One message for every setting that does not fit the model."""
    yield from _tensor_parallel(config, shape)
    yield from _pipeline_parallel(config, shape)
    limit = config.generation.max_model_len
    if limit > shape.max_position_embeddings:
        yield (
            f"generation.max_model_len={limit} is more than the model's {shape.max_position_embeddings} positions: write "
            f"generation.max_model_len={shape.max_position_embeddings}, which leaves "
            f"{shape.max_position_embeddings - longest_response(config)} for the prompt"
        )


def _tensor_parallel(config: BroRLConfig, shape: ModelShape) -> Iterator[str]:
    for name, size in (
        ("policy.tensor_model_parallel_size", config.policy.tensor_model_parallel_size),
        ("generation.tensor_parallel_size", config.generation.tensor_parallel_size),
    ):
        if shape.num_attention_heads % size:
            heads = shape.num_attention_heads
            yield f"{name}={size} does not divide the model's {heads} attention heads: write {_divisor(size, heads)}"
        if shape.num_key_value_heads % size and size % shape.num_key_value_heads:
            yield (
                f"{name}={size} neither divides nor is a multiple of the model's {shape.num_key_value_heads} key-value heads: "
                f"write {_divisor(size, shape.num_key_value_heads)}"
            )
    size = config.policy.tensor_model_parallel_size
    if size > shape.num_key_value_heads:
        yield (
            f"policy.tensor_model_parallel_size={size} is more than the model's {shape.num_key_value_heads} key-value heads, which "
            f"the policy does not copy: write {shape.num_key_value_heads} or less"
        )
    for what, number in (("intermediate_size", shape.intermediate_size), ("vocab_size", shape.vocab_size)):
        if number % size:
            yield f"policy.tensor_model_parallel_size={size} does not divide the model's {what} of {number}: write {_divisor(size, number)}"


def _pipeline_parallel(config: BroRLConfig, shape: ModelShape) -> Iterator[str]:
    stages = config.policy.pipeline_model_parallel_size
    virtual = config.policy.virtual_pipeline_model_parallel_size or 1
    if shape.num_layers % stages:
        yield (
            f"policy.pipeline_model_parallel_size={stages} does not divide the model's {shape.num_layers} layers: write "
            f"{_divisor(stages, shape.num_layers)}"
        )
    elif shape.num_layers // stages % virtual:
        per_stage = shape.num_layers // stages
        yield (
            f"policy.virtual_pipeline_model_parallel_size={virtual} does not divide the {per_stage} layers of a pipeline stage: "
            f"write {_divisor(virtual, per_stage)} or null".replace("write 1 or null", "write null")
        )


def _divisor(at_most: int, of: int) -> int:
    """The largest divisor of `of` that is not above `at_most`."""
    return max(divisor for divisor in range(1, at_most + 1) if of % divisor == 0)
