"""Settings, on the command line and in a file: a configuration, or one message."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from nemo_brorl.config.load import load_config, load_run_config
from nemo_brorl.config.schema import settings as declared
from nemo_brorl.core.errors import ConfigError
from tests.fuzz.hostile import Damage, damages, responses, values
from tests.fuzz.profile import fuzz, no_hang

NAMES = sorted(declared())
SMALL = """trainer: {max_steps: 3, seed: 1}
policy: {model: nowhere, optim: {lr: 1e-3, betas: [0.9, 0.98]}}
data: {tasks: [{name: gcd, config: {max_value: 60}}], answer_instruction: "a, b"}
rollouts: {num_per_prompt: 8, prompts_per_step: 2}
"""
WRITTEN = [
    "null",
    "true",
    "-1",
    "0",
    "1",
    "7",
    "1e9",
    "nan",
    "inf",
    "''",
    "auto",
    "[]",
    "{}",
    "[1,2]",
    "{a:1}",
    "???",
    "${a}",
    "x",
]
words = st.sampled_from(WRITTEN) | st.integers().map(str) | st.floats().map(str) | responses
names = st.sampled_from(NAMES) | st.sampled_from(NAMES).map(lambda name: name.rpartition(".")[0]) | st.text(max_size=9)
overrides = st.builds(
    lambda sign, name, equals, word: f"{sign}{name}{equals}{word}",
    st.sampled_from(["", "", "", "+", "++", "~"]),
    names,
    st.sampled_from(["=", "=", "=", "", "=="]),
    words,
)


def load(overrides: list[str], folder: Path | None = None) -> None:
    """Nothing but ConfigError may come of it."""
    with no_hang("load_config"):
        try:
            if folder is None:
                load_config("brorl_cpu", overrides)
            else:
                load_run_config(folder, overrides)
        except ConfigError as error:
            assert str(error)


@fuzz(0.05)
@given(st.lists(overrides, min_size=1, max_size=2))
def test_overrides_load_or_are_refused_with_one_message(given: list[str]) -> None:
    load(given)


@fuzz(0.025)
@given(damages)
def test_a_damaged_yaml_loads_or_is_refused_with_one_message(damage: Damage) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.yaml").write_bytes(damage.of(SMALL.encode()))
        load([], Path(folder))


@fuzz(0.025)
@given(st.sampled_from(NAMES), values)
def test_any_value_in_a_yaml_loads_or_is_refused_with_one_message(name: str, value: Any) -> None:
    tree: Any = value
    for word in reversed(name.replace("[]", "").split(".")):
        tree = {word: tree}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.yaml").write_text(yaml.safe_dump(tree))
        load([], Path(folder))
