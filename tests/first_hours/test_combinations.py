"""Ten shapes of data, five tokenizers and four reward signatures pass the checks of a start and are scored rightly."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from brorl_graders import Pool

from graders.tests.support.names import allow_also
from nemo_brorl.commands.check_inputs import check_inputs
from nemo_brorl.commands.wiring import read_inputs
from nemo_brorl.config.load import CommandLine, load_config
from nemo_brorl.evaluation import input_checks
from nemo_brorl.prompts import prompt_check
from nemo_brorl.scoring.grader_settings import configure
from tests.first_hours.shapes import REWARDS, ROWS, SIGNATURES, TOKENIZERS, write_data, write_tokenizer

ENOUGH = ("evaluation.num_prompts=1", "rollouts.prompts_per_step=1", "rollouts.num_per_prompt=8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("first_hours")
    (folder / "brought.py").write_text(REWARDS)
    for number in range(len(TOKENIZERS)):
        write_tokenizer(folder / f"model_{number}", number)
    for name in ROWS:
        write_data(folder, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", str(folder))
        yield folder


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[Pool]:
    """The processes that score, for all combinations."""
    allow_also(verifiers=[f"brought:{signature}" for signature in SIGNATURES])
    with Pool() as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_checks, "Pool", lambda deadlines: contextlib.nullcontext(pool))
        # That tokens are those of transformers is tested with sixty tokenizers, in processes of seconds.
        patch.setattr(prompt_check, "differences", lambda *given: [])
        yield pool


@pytest.mark.parametrize("signature", SIGNATURES)
@pytest.mark.parametrize("number", range(len(TOKENIZERS)))
@pytest.mark.parametrize("name", ROWS)
def test_what_newcomers_bring_is_taken_and_scored(
    folder: Path, pool: Pool, caplog: pytest.LogCaptureFixture, name: str, number: int, signature: str
) -> None:
    caplog.set_level(logging.WARNING)
    given = (f"policy.model={folder / f'model_{number}'}", f"data.path={folder / name}")
    line = CommandLine("your_model", (*given, f"data.verifier=brought:{signature}", *ENOUGH))
    config = load_config(*line)
    configure(config)
    check_inputs(config, line)
    inputs = read_inputs(config, folder / f"model_{number}")
    assert caplog.text == ""
    tokenizer = inputs.tokenizer
    for prompt in inputs.prompts.peek(3):
        right = prompt.payload["answer"]
        assert prompt.messages[-1]["content"].startswith(f"{int(right) - 42} + 42?")
        responses = [f"<answer>{right}</answer>", "<answer>0</answer>"]
        texts = [tokenizer.decode(tokenizer.encode(text)) for text in responses]
        assert pool.judge(prompt.verifier, prompt.payload, texts).scores == [1.0, 0.0]
