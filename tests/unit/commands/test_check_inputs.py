"""Questions are checked before anything starts: references earn, prompts fit, and there are as many as asked."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_brorl.commands.check_inputs import check_inputs
from nemo_brorl.config.load import CommandLine, load_config
from nemo_brorl.core.errors import BroRLError, DataError
from nemo_brorl.evaluation import input_checks
from nemo_brorl.scoring.grader_settings import configure
from tests.unit.prompts.files import write_jsonl

MODEL = "policy.model=models/sums"  # 512 positions; your_model has 256 tokens for prompts and 128 for responses


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes seconds to start the processes that score."""
    monkeypatch.setattr(input_checks, "JUDGING_S", 60.0)


@pytest.fixture
def own_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of reward functions, importable in children, too."""
    (tmp_path / "pays.py").write_text(
        "def points(payload, response):\n    return 5.0 if payload['answer'] in response else -5.0\n"
        "def other(payload, response):\n    return 1.0 if 'please' in response else 0.0\n"
        "def fails(payload, response):\n    raise KeyError('x' if 'tags' in payload else 'y')\n"
        "def half_fails(payload, response):\n    return 1.0 if int(payload['answer']) % 2 else payload['no']\n"
        "def abstains(payload, response):\n    return None\n"
        "def at_most(payload, response):\n    return 0.9 if payload['answer'] in response.split('>') else 0.1\n"
        "def endless(payload, response):\n    while True:\n        pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield "pays"


def found(*overrides: str) -> list[str]:
    line = CommandLine("your_model", (MODEL, *overrides))
    config = load_config(*line)
    configure(config)
    return check_inputs(config, line, reads_files=True)


def sums(num: int, length: int = 0) -> list[dict[str, Any]]:
    return [{"prompt": f"{n} + 1 = ?{' a' * length}", "answer": str(n + 1)} for n in range(num)]


def file_of(tmp_path: Path, rows: list[dict[str, Any]]) -> str:
    return f"data.path={write_jsonl(tmp_path / 'rows.jsonl', rows)}"


ENOUGH = ("evaluation.num_prompts=1", "rollouts.prompts_per_step=1")


@pytest.mark.parametrize("verifier", ["exact_match", "math"])
@pytest.mark.parametrize("place", ["auto", "tags", "boxed", "last"])
def test_good_references_earn_wherever_the_answer_is_read(tmp_path: Path, verifier: str, place: str) -> None:
    given = (f"data.verifier={verifier}", f"data.answer_format={place}")
    assert found(file_of(tmp_path, sums(30)), *given, *ENOUGH) == []


def test_references_that_do_not_earn_refuse_the_run_with_three_lines(tmp_path: Path) -> None:
    rows = sums(40)
    for number in (3, 7, 20, 21):
        rows[number]["answer"] = f"<answer>{number}"
    refusal = r"\d of \d+ references do not earn .*'<answer>\d+' got 0 from exact_match.* Set rewards\S+=\S+ to"
    given = (file_of(tmp_path, rows), "data.verifier=exact_match", *ENOUGH)
    with pytest.raises(DataError, match=refusal) as raised:
        found(*given)
    assert len(re.findall(r"rows.jsonl, line (4|8|21|22): ", str(raised.value))) == 3
    (said,) = found(*given, str(raised.value).rpartition("Set ")[2].split()[0])
    assert "do not earn" in said
    assert found(*given, "rewards.reference_answers=off") == []


def test_one_reference_of_many_that_does_not_earn_is_a_warning(tmp_path: Path) -> None:
    rows = sums(60)
    rows[5]["answer"] = "<answer>6"
    (said,) = found(file_of(tmp_path, rows), "data.verifier=exact_match", "data.held_out_fraction=0.02", *ENOUGH)
    assert said.startswith("1 of ") and "line 6: '<answer>6' got 0 from exact_match" in said


def test_references_of_an_own_held_out_file_are_tried_too(tmp_path: Path) -> None:
    wrong = [{"prompt": f"{n} - 1 = ?", "answer": f"<answer>{n}"} for n in range(20)]
    held_out = f"data.held_out_path={write_jsonl(tmp_path / 'held_out.jsonl', wrong)}"
    with pytest.raises(DataError, match=r"20 of 60 references .*held_out\.jsonl, line"):
        found(file_of(tmp_path, sums(40)), held_out, "data.verifier=exact_match", *ENOUGH)


def test_another_verifier_of_the_held_out_file_is_named(tmp_path: Path) -> None:
    other = [{"prompt": f"{n} + 2 = ?", "answer": str(n + 2), "by": "math"} for n in range(8)]
    rows = [row | {"by": "exact_match"} for row in sums(30)]
    given = (
        f"data.held_out_path={write_jsonl(tmp_path / 'held.jsonl', other)}",
        "data.columns.verifier=by",
    )
    (said,) = found(file_of(tmp_path, rows), *given, *ENOUGH)
    assert "8 of 8 held-out questions are scored by math (such as held.jsonl, line " in said
    assert "training questions by exact_match: validation measures something else" in said


def test_letters_of_options_and_parts_of_a_composition_earn(tmp_path: Path) -> None:
    choices = [{"prompt": f"{n}?", "answer": n % 2, "options": ["Rome", "Oslo"]} for n in range(20)]
    layout = ("data.verifier=multiple_choice", "data.columns.prompt=prompt", "data.columns.answer=answer")
    assert found(file_of(tmp_path, choices), *layout, "data.columns.payload={choices: options}", *ENOUGH) == []
    parts = "{verifier: format, weight: 1, options: {structure: think}}, {verifier: math, weight: 9}"
    options = f"data.verifier_options={{parts: [{parts}]}}"
    assert found(file_of(tmp_path, sums(20)), "data.verifier=composite", options, *ENOUGH) == []


def test_what_has_no_reference_or_runs_programs_is_passed_over(tmp_path: Path) -> None:
    rules = [
        {"prompt": f"Say {n}.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]} for n in range(12)
    ]
    assert found(file_of(tmp_path, rules), *ENOUGH) == []
    assert found() == []


def test_an_own_function_with_another_scale_earns_and_one_with_another_aim_is_a_warning(
    tmp_path: Path, own_rewards: str
) -> None:
    rows = file_of(tmp_path, sums(20))
    assert found(rows, f"data.verifier={own_rewards}:points", *ENOUGH) == []
    (said,) = found(rows, f"data.verifier={own_rewards}:other", *ENOUGH)
    assert re.search(r"references do not earn the full reward .* got 0 from pays:other", said)


@pytest.mark.parametrize(
    ("name", "words"), [("fails", r"KeyError: 'y' \(pays.py:\d+\)"), ("abstains", "it returned None")]
)
def test_an_own_function_that_fails_on_all_references_is_refused(
    tmp_path: Path, own_rewards: str, name: str, words: str
) -> None:
    given = (file_of(tmp_path, sums(20)), f"data.verifier={own_rewards}:{name}", *ENOUGH)
    with pytest.raises(DataError, match=rf"got no reward from pays:{name} \(.*{words}.*Mend pays:{name}\.") as raised:
        found(*given)
    (said,) = found(*given, str(raised.value).rpartition("Set ")[2].split()[0])
    assert "Mend pays" in said


def test_an_own_function_that_fails_on_some_is_a_warning(tmp_path: Path, own_rewards: str) -> None:
    (said,) = found(file_of(tmp_path, sums(20)), f"data.verifier={own_rewards}:half_fails", *ENOUGH)
    assert "KeyError: 'no'" in said


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("data.verifier=exact_match", "data.success_reward=10"), r"earn at most 1 from exact_match, .* from 10 on"),
        (("data.verifier=pays:at_most",), r"earn at most 0\.9 from pays:at_most, .* from 1 on"),
    ],
)
def test_a_full_mark_that_no_reference_earns_is_said_with_one_that_they_earn(
    tmp_path: Path, own_rewards: str, given: tuple[str, ...], words: str
) -> None:
    rows = file_of(tmp_path, sums(20))
    (said,) = found(rows, *given, *ENOUGH)
    assert re.search(words, said)
    assert found(rows, given[0], re.search(r"data\.success_reward=\S+", said)[0], *ENOUGH) == []


def test_an_own_function_that_takes_longer_than_the_check_is_not_tried_and_the_log_says_so(
    tmp_path: Path, own_rewards: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(input_checks, "JUDGING_S", 0.2)
    rows = file_of(tmp_path, sums(20))
    assert found(rows, f"data.verifier={own_rewards}:endless", "rewards.timeout_s=600", *ENOUGH) == []
    assert "0 of 18 references were scored" in caplog.text


def test_fewer_held_out_questions_than_asked_are_said_with_their_error(tmp_path: Path) -> None:
    rows = file_of(tmp_path, sums(60))
    (said,) = found(rows, "evaluation.num_prompts=256", "data.held_out_fraction=0.1")
    number = int(re.match(r"(\d+) held-out questions, 256 asked", said)[1])
    assert f"up to {50 / number**0.5:.0f} points" in said
    share = re.search(r"set (data.held_out_fraction=\S+)", said)[1]
    (better,) = found(rows, "evaluation.num_prompts=256", share)
    assert int(better.split()[0]) > number


def test_fewer_than_eight_held_out_questions_cannot_tell_validations_apart(tmp_path: Path) -> None:
    (said,) = found(file_of(tmp_path, sums(12)), "rollouts.prompts_per_step=4")
    assert "32 asked" in said and "Fewer than 8 cannot tell" in said


def test_a_held_out_file_that_is_too_small_is_said_with_a_number_that_is_taken(tmp_path: Path) -> None:
    few = write_jsonl(tmp_path / "h.jsonl", [{"prompt": f"h{n}", "answer": "1"} for n in range(9)])
    given = (file_of(tmp_path, sums(60)), f"data.held_out_path={few}")
    (said,) = found(*given)
    assert said.startswith("9 held-out questions, 32 asked")
    assert found(*given, re.search(r"evaluation.num_prompts=\d+", said)[0]) == []


def test_a_step_of_more_prompts_than_questions_is_said(tmp_path: Path) -> None:
    given = (file_of(tmp_path, sums(5)), "evaluation.num_prompts=1")
    (said,) = found(*given, "rollouts.prompts_per_step=16")
    assert re.match(r"[34] training questions, 16 a step: a step takes questions more than once", said)
    assert found(*given, re.search(r"rollouts.prompts_per_step=\d+", said)[0]) == []


def test_the_steps_of_an_epoch_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("nemo_brorl").propagate = True
    with caplog.at_level(logging.INFO, "nemo_brorl"):
        found(file_of(tmp_path, sums(60)), "evaluation.num_prompts=1")
    (said,) = [text for text in caplog.messages if "one epoch" in text]
    number = int(said.split()[0])
    assert said == f"{number} training questions, 8 a step: one epoch is {-(-number // 8)} steps"


def test_long_prompts_are_counted_with_a_length_that_takes_them(tmp_path: Path) -> None:
    rows = [*sums(40), *({**row, "prompt": f"long {row['prompt']}"} for row in sums(20, length=280))]
    given = (file_of(tmp_path, rows), "data.verifier=math", *ENOUGH)
    said = found(*given)
    assert re.match(
        r"\d+ of \d+ prompts are longer than data.max_prompt_tokens=256 .*rows.jsonl, line \d+ has", said[0]
    )
    wanted = re.search(r"data.max_prompt_tokens=(\d+) to take", said[0])
    if wanted is None:
        assert "positions leave 384 tokens for prompts" in said[0]
    assert found(*given, "rollouts.max_response_tokens=16", "data.max_prompt_tokens=480") == [] or wanted is None


def test_held_out_prompts_that_are_all_too_long_are_refused_by_their_length(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"held-out prompts are longer than data.max_prompt_tokens=256, up to \d+ tokens"
    ):
        found(file_of(tmp_path, sums(20, length=400)), *ENOUGH)


def test_options_and_forms_that_no_verifier_reads_are_named(tmp_path: Path) -> None:
    rows = file_of(tmp_path, sums(20))
    (said,) = found(rows, "data.verifier=math", "data.verifier_options={tolerence: 1}", *ENOUGH)
    assert said.startswith("data.verifier_options.tolerence=1 is not read: math reads ")
    rules = [
        {"prompt": f"Say {n}.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]} for n in range(12)
    ]
    (said,) = found(file_of(tmp_path, rules), "data.answer_format=boxed", *ENOUGH)
    assert said == "data.answer_format=boxed is not read: instruction_following looks for no answer at a place"


def test_a_time_limit_of_an_unknown_verifier_is_named() -> None:
    (said,) = found("rewards.timeouts={mth: 3}")
    assert said.startswith("rewards.timeouts.mth=3 is not read: unknown verifier 'mth'")
    assert found("rewards.timeouts={math: 3}") == []


def test_five_settings_without_effect_are_named_and_the_others_counted() -> None:
    names = (
        "preset=ifeval",
        "dataset_split=a",
        "max_bad_rows=1",
        "held_out_path=b",
        "columns.prompt=c",
        "columns.task=d",
    )
    said = found(*(f"data.{name}" for name in names), "sft.lr=1")
    assert len(said) == 6
    assert said[-1] == "2 more settings are not read"


@pytest.mark.parametrize(
    "given",
    [
        ("rollouts.max_response_tokens=600",),
        ("data.max_prompt_tokens=600",),
        ("rollouts.max_response_tokens=600", "evaluation.max_response_tokens=700"),
        ("generation.max_model_len=2000",),
    ],
)
def test_the_lengths_proposed_for_a_small_model_are_taken(given: tuple[str, ...]) -> None:
    from nemo_brorl.config.model_rules import check_model_rules

    with pytest.raises(BroRLError, match="512 positions: set ") as raised:
        check_model_rules(load_config("your_model", [MODEL, *given]))
    proposed = str(raised.value).rpartition("positions: set ")[2].split()
    check_model_rules(load_config("your_model", [MODEL, *given, *proposed]))
