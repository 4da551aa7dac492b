"""Questions that an environment answers: what its prompts and payloads are, and what is wrong before a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from brorl_launcher.doctor import data_files, sandbox

from graders.tests.support.bad_environments import COUNTER, LATER
from graders.tests.support.names import allow_also
from nemo_brorl.config.data import DataConfig, SourceConfig, TaskConfig
from nemo_brorl.core.errors import ConfigError, DataError, ModelError
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.prompts.sources import make_source
from nemo_brorl.prompts.stream import PromptStream
from nemo_brorl.scoring.turn_tokens import check_environment
from tests.support.source_tree import ROOT

OURS = load_tokenizer(ROOT / "models" / "sums")
WITH_TOOLS = replace(
    OURS,
    chat_template="{% for tool in tools %}{{ tool | tojson }}<tool_call>{% endfor %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
)
SUMS = [TaskConfig("chain_sum")]


def config(**settings: Any) -> DataConfig:
    """Settings of a source, whose environment may be used."""
    made = DataConfig(**{"tasks": SUMS, "verifier": "exact_match", "max_prompt_tokens": 2000, **settings})
    if made.environment is not None:
        allow_also(environments=[(made.environment, made.environment_settings)])
    return made


def test_a_question_of_any_source_becomes_the_task_of_an_episode() -> None:
    plain = make_source(config(), "train", 1)
    source = make_source(config(environment="verify_and_retry", environment_settings={"max_turns": 3}), "train", 1)
    before = plain.domains[0].source.question(5)
    question = source.domains[0].source.question(5)
    assert question.task == "chain_sum"
    assert question.verifier == "environment"
    assert question.messages == ({"role": "user", "content": before.text},)
    task = {"text": before.text, "verifier": "exact_match", "payload": before.payload}
    settings = {"max_turns": 3}
    assert question.payload == {"environment": "verify_and_retry", "settings": settings, "task": task}
    json.dumps(question.payload)


def test_rows_of_a_file_keep_their_epochs(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"{number} + 1 =", "answer": str(number + 1)} for number in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    own = config(source="jsonl", path=str(path), tasks=[], environment="calculator", held_out_fraction=0.2)
    train, held_out = (make_source(own, split, 0).domains[0].source for split in ("train", "held_out"))
    assert (train.size or 0) + (held_out.size or 0) == 20
    assert train.fingerprint
    assert train.question(0).tools[0]["function"]["name"] == "calculator"


def test_an_environment_draws_tasks_of_its_own_and_splits_share_none() -> None:
    own = config(source="environment", environment="mastermind", tasks=[], environment_settings={"length": 3})
    sources = {}
    for split in ("train", "held_out"):
        source = make_source(own, split, 3).domains[0].source
        sources[split] = {source.question(index).payload["task"]["secret"] for index in range(100)}
        assert source.question(7) == make_source(own, split, 3).domains[0].source.question(7)
    assert not sources["train"] & sources["held_out"]
    assert len(sources["train"]) > 50


def test_prompts_show_the_tools_as_the_template_does() -> None:
    own = config(environment="calculator")
    (prompt,) = PromptStream(make_source(own, "train", 0), WITH_TOOLS, own).take_prompts(1)
    text = OURS.backend.decode(list(prompt.token_ids), skip_special_tokens=False)
    assert '"name": "calculator"' in text
    assert text.endswith("<|im_start|>assistant\n")
    assert prompt.verifier == "environment"


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"environment": "chess"}, ConfigError, "unknown environment 'chess'"),
        ({"environment": "no_package:Game"}, ConfigError, "cannot be imported"),
        ({"environment": COUNTER, "environment_settings": {"start": "x"}}, ConfigError, "takes start: int"),
        ({"environment": "graders.tests.support.bad_environments:BadTool"}, ConfigError, "no JSON schema"),
        ({"environment": "calculator"}, ModelError, "no place for tools"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        check_environment(config(**settings), OURS)
    check_environment(config(environment="verify_and_retry"), OURS)
    check_environment(config(), OURS)
    check_environment(config(environment="calculator"), WITH_TOOLS)


def test_an_environment_without_tasks_needs_another_source() -> None:
    with pytest.raises(ConfigError, match="draws no tasks of its own"):
        make_source(config(source="environment", environment="calculator", tasks=[]), "train", 0)
    with pytest.raises(DataError, match="reset does not take its task: KeyError: 'secret'"):
        make_source(config(environment="mastermind"), "train", 0).domains[0].source.question(0)
    asynchronous = make_source(config(environment=LATER), "train", 0).domains[0].source
    assert asynchronous.question(0).text == "count"


def test_settings_say_what_lacks() -> None:
    where = list(config(environment_settings={"a": 1}).violations())
    assert where == ["data.environment_settings is set and data.environment is not: set its name, or leave them out"]
    (lacks,) = config(source="environment", tasks=[]).missing("data")
    assert lacks.startswith("data.source=environment needs data.environment")


def test_the_doctor_makes_the_environment_and_looks_at_the_models_template() -> None:
    model = str(ROOT / "models" / "sums")
    tasks = [{"name": "chain_sum"}]

    def of(**fields: Any) -> dict[str, Any]:
        allow_also(environments=[(fields["environment"], {})])
        return data_files.look_at_source({"source": fields, "model": model})

    good = of(tasks=tasks, environment="verify_and_retry")
    assert (
        good["found"] == "reasoning_gym: chain_sum; environment verify_and_retry, which the model's chat template can "
        "take part in"
    )
    assert "no place for tools" in of(tasks=tasks, environment="calculator")["fault"]
    assert "unknown environment 'chess'" in of(source="environment", environment="chess")["fault"]
    assert "draws no tasks" in of(source="environment", environment="calculator")["fault"]
    assert "tasks that are drawn; environment mastermind" in of(source="environment", environment="mastermind")["found"]
    own = SourceConfig(tasks=[TaskConfig("chain_sum")], environment="python")
    assert sandbox.possible_verifiers(own) == {"code"}
