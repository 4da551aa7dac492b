"""A row of the table of families means what transformers does with a config.json of that family."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.families import FAMILIES, LACKING
from nemo_brorl.core.model_shape import ModelShape, model_family, read_model_shape

WINDOW = 8
# Sizes of a model that runs in a moment. Everything else is the family's own default.
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 64,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
OF_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


def default_config(family: str, **changes: Any) -> dict[str, Any]:
    """What transformers writes as config.json of a family, but small."""
    sizes = SMALL | (OF_EXPERTS if FAMILIES[family].has_experts else {}) | changes
    return transformers.AutoConfig.for_model(family, **sizes).to_dict()


def read(config: dict[str, Any], folder: Path) -> ModelShape:
    (folder / "config.json").write_text(json.dumps(config))
    return read_model_shape(folder)


def read_or_refused(config: dict[str, Any], folder: Path) -> ModelShape | str:
    try:
        return read(config, folder)
    except ModelError as error:
        return str(error)


def windows() -> Iterator[Any]:
    """Every family with a window by its number, and, where it has one, by its switch."""
    for family, row in FAMILIES.items():
        yield pytest.param(family, {"sliding_window": WINDOW}, id=family)
        if row.window_switch:
            switched = {"sliding_window": WINDOW, row.window_switch: True}
            yield pytest.param(family, switched | {"max_window_layers": 2}, id=f"{family}, {row.window_switch}")


@pytest.mark.parametrize(("family", "window"), windows())
@torch.no_grad()
def test_a_window_is_refused_where_it_changes_what_transformers_computes(
    family: str, window: dict[str, Any], tmp_path: Path
) -> None:
    config = default_config(family, **window)
    found = read_or_refused(config, tmp_path)
    if isinstance(found, str):
        assert f"see only the last sliding_window={WINDOW} tokens" in found
        return
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config)).eval()
    for param in model.parameters():
        param.normal_()
    token_ids = torch.arange(2 * WINDOW)[None]
    logits = model(token_ids).logits
    # A token that only a window would hide: it is further from the last one than the window.
    assert not torch.equal(model(token_ids.index_fill(1, torch.tensor([1]), 5)).logits[0, -1], logits[0, -1])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_default_config_of_transformers_is_read_or_its_window_is_refused(family: str, tmp_path: Path) -> None:
    found = read_or_refused(default_config(family), tmp_path)
    assert isinstance(found, ModelShape) or "see only the last sliding_window=4096 tokens" in found
    assert isinstance(found, ModelShape) or family == "mistral"


@pytest.mark.parametrize("switch", [{}, {"use_sliding_window": True}], ids=["as it is", "with windows"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_key_that_a_config_leaves_out_has_the_value_that_transformers_gives_it(
    family: str, switch: dict[str, Any], tmp_path: Path
) -> None:
    whole = transformers.AutoConfig.for_model(family, **switch).to_dict()
    whole.pop("layer_types", None)  # computed from other keys
    for name in whole.keys() - {"model_type"}:
        config = {key: value for key, value in whole.items() if key != name}
        found = read_or_refused(config, tmp_path)
        completed = read_or_refused(transformers.AutoConfig.for_model(**config).to_dict(), tmp_path)
        assert found == completed or re.search(r"has no '\w+'", str(found)), name


@pytest.mark.parametrize("other", LACKING)
def test_another_family_of_transformers_is_refused_with_what_is_missing_and_the_nearest_family(
    other: str, tmp_path: Path
) -> None:
    config = transformers.AutoConfig.for_model(other).to_dict()
    part, nearest = LACKING[other]
    assert read_or_refused(config, tmp_path) == (
        f"{tmp_path}/config.json: model_type '{other}' cannot be trained: missing is {part}. "
        f"The nearest family is {nearest} ({FAMILIES[nearest].models})"
    )


def test_brorl_try_names_the_family_of_a_model(tmp_path: Path) -> None:
    read(default_config("qwen2"), tmp_path)
    assert model_family(tmp_path) == "qwen2 (Qwen2, Qwen2.5)"


def test_a_family_that_nobody_knows_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    found = read_or_refused({"model_type": "bert"}, tmp_path)
    assert str(found).endswith(
        "model_type 'bert' cannot be trained: supported are llama, qwen2, qwen3, qwen3_moe, mistral, seed_oss, "
        "smollm3, granite, olmo2, glm4"
    )
