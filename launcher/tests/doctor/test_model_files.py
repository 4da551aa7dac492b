"""The folders of the model and of its teachers, made up."""

from __future__ import annotations

import json
import math
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from brorl_launcher.doctor import model_files
from brorl_launcher.doctor.report import FAIL, OK, WARN, Check

from nemo_brorl.config.policy import PolicyConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.config.sft import NewModelConfig, SftConfig
from nemo_brorl.core.model_shape import hf_shapes, read_model_shape
from nemo_brorl.rollouts.carried_groups import CarriedGroups
from nemo_brorl.training.checkpoint import Checkpoints, RunState
from tests.support.source_tree import ROOT

SUMS = ROOT / "models" / "sums"
QWEN = {
    "model_type": "qwen2",
    "num_hidden_layers": 1,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "head_dim": 32,
    "num_key_value_heads": 1,
    "intermediate_size": 16,
    "vocab_size": 384,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}


def write_model(folder: Path, names: list[str] | None = None, cut: int = 0) -> Path:
    """A folder in Hugging Face's format with the named tensors, its file `cut` bytes too short."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN))
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(SUMS / file, folder)
    shapes = hf_shapes(read_model_shape(folder))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in shapes if names is None else names:
        start, end = end, end + 4 * math.prod(shapes[name])
        header[name] = {"dtype": "F32", "shape": list(shapes[name]), "data_offsets": [start, end]}
    body = json.dumps(header).encode()
    whole = struct.pack("<Q", len(body)) + body + bytes(end)
    (folder / "model.safetensors").write_bytes(whole[: len(whole) - cut])
    return folder


def model_check(folder: Path) -> Check:
    return model_files.check_model(BroRLConfig(policy=PolicyConfig(model=str(folder))))[0]


def test_a_whole_model_folder_passes(tmp_path: Path) -> None:
    assert model_check(write_model(tmp_path / "model")).status == OK


def test_a_shard_that_was_cut_short_is_named_with_its_sizes(tmp_path: Path) -> None:
    check = model_check(write_model(tmp_path / "model", cut=3))
    assert check.status == FAIL
    assert "model.safetensors has" in check.found
    assert "it was cut short" in check.found


def test_a_shard_that_the_index_names_and_nobody_has_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    index = {"weight_map": {"model.norm.weight": "model.safetensors", "lm_head.weight": "model-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00002.safetensors is missing" in model_check(folder).found


def test_missing_tensors_and_tokenizer_are_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", names=["model.norm.weight"])
    (folder / "tokenizer.json").unlink()
    found = model_check(folder).found
    assert "there is no tokenizer" in found
    assert "model.embed_tokens.weight for one" in found


def test_a_model_that_make_train_will_make_is_no_reason_to_refuse() -> None:
    config = BroRLConfig(
        policy=PolicyConfig(model="runs/not_made"), sft=SftConfig(new=NewModelConfig(output="runs/not_made"))
    )
    assert model_files.check_model(config)[0].status == WARN


def test_a_hub_name_is_looked_for_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    check = model_files.check_model(BroRLConfig(policy=PolicyConfig(model="some/model")))[0]
    assert (check.status, "HF_HUB_OFFLINE forbids" in check.found) == (FAIL, True)
    entry = tmp_path / "models--some--model"
    (entry / "refs").mkdir(parents=True)
    (entry / "refs" / "main").write_text("abc")
    (entry / "snapshots").mkdir()
    write_model(entry / "snapshots" / "abc")
    assert model_files.check_model(BroRLConfig(policy=PolicyConfig(model="some/model")))[0].status == OK


def test_a_hub_name_that_a_node_of_a_job_lacks_is_refused_with_the_command_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    config = BroRLConfig(policy=PolicyConfig(model="some/model"))
    alone, in_job = (model_files.check_model(config, num_nodes)[0] for num_nodes in (1, 2))
    assert (alone.status, in_job.status, in_job.is_shared) == (WARN, FAIL, True)
    assert "hf download some/model --local-dir FOLDER" in in_job.advice


def taught(run: Path, policy: Path, **kl: Any) -> BroRLConfig:
    config = BroRLConfig(policy=PolicyConfig(model=str(policy)))
    config.exp_manager.explicit_log_dir = str(run)
    for name, value in kl.items():
        setattr(config.algorithm.kl, name, value)
    return config


def teacher_checks(config: BroRLConfig, num_nodes: int = 1) -> list[Check]:
    _, shape = model_files.check_model(config)
    return [*model_files.check_teachers(config, shape, num_nodes)]


def test_a_run_without_a_teacher_has_no_row_for_one(tmp_path: Path) -> None:
    policy = write_model(tmp_path / "policy")
    assert teacher_checks(taught(tmp_path / "run", policy)) == []
    assert teacher_checks(taught(tmp_path / "run", policy, teacher="/no/such", coefficient=0.0)) == []


def test_each_teacher_has_a_row_that_says_whose_it_is(tmp_path: Path) -> None:
    policy, whole = write_model(tmp_path / "policy"), write_model(tmp_path / "whole")
    cut = write_model(tmp_path / "x_cut", cut=3)
    assert [(check.name, check.status) for check in teacher_checks(taught(tmp_path, policy, teacher=str(whole)))] == [
        ("teacher", OK)
    ]
    by_task = {"sums": str(cut), "gcd": str(whole), "lcm": str(whole)}
    found = teacher_checks(taught(tmp_path, policy, teachers=by_task))
    assert [(check.name, check.status) for check in found] == [("teacher of gcd, lcm", OK), ("teacher of sums", FAIL)]
    assert f"{cut}: model.safetensors has" in found[1].found


def test_a_teacher_without_a_folder_is_named_with_its_setting(tmp_path: Path) -> None:
    config = taught(tmp_path, write_model(tmp_path / "policy"), teachers={"gcd": "/no/such/teacher"})
    [check] = teacher_checks(config)
    assert check.status == FAIL
    assert check.found.startswith("algorithm.kl.teachers.gcd=/no/such/teacher: there is no such folder")


def test_a_teacher_of_another_shape_than_the_policy_is_refused(tmp_path: Path) -> None:
    policy, teacher = write_model(tmp_path / "policy"), write_model(tmp_path / "teacher")
    (policy / "config.json").write_text(json.dumps({**QWEN, "vocab_size": 512}))
    [check] = teacher_checks(taught(tmp_path, policy, teacher=str(teacher)))
    assert check.status == FAIL
    assert "has another vocab_size (384, not 512) than policy.model. Set algorithm.kl.teacher" in check.found


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("chat_template.jinja", "assistant", "bot", "another chat template"),
        ("tokenizer.json", '"content": "<|im_start|>"', '"content": "<|begins|>"', "another id of the token"),
        ("tokenizer_config.json", "<|im_end|>", "<|endoftext|>", "another set of end tokens"),
    ],
)
def test_a_teacher_of_other_tokens_than_the_policy_is_refused(
    file: str, old: str, new: str, words: str, tmp_path: Path
) -> None:
    policy, teacher = write_model(tmp_path / "policy"), write_model(tmp_path / "teacher")
    written = (teacher / file).read_text()
    assert old in written
    (teacher / file).write_text(written.replace(old, new))
    [check] = teacher_checks(taught(tmp_path, policy, teacher=str(teacher)))
    assert (check.status, words in check.found) == (FAIL, True), check.found


def test_a_teacher_that_a_node_of_a_job_lacks_is_refused_with_the_settings_that_mend_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    config = taught(tmp_path, write_model(tmp_path / "policy"), teachers={"gcd": "some/model", "lcm": "some/model"})
    [alone], [in_job] = (teacher_checks(config, num_nodes) for num_nodes in (1, 2))
    assert (alone.status, in_job.status, in_job.is_shared) == (WARN, FAIL, True)
    assert "hf download some/model --local-dir FOLDER" in in_job.advice
    assert in_job.advice.endswith("then algorithm.kl.teachers.gcd=FOLDER algorithm.kl.teachers.lcm=FOLDER")


def test_a_teacher_in_the_runs_checkpoint_needs_no_folder(tmp_path: Path) -> None:
    config = taught(tmp_path / "run", write_model(tmp_path / "policy"), teacher="/no/such/teacher")
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints", 1)
    checkpoints.begin(RunState(1, {}, CarriedGroups()))
    assert [check.status for check in teacher_checks(config)] == [FAIL], "the checkpoint is not complete"
    checkpoints.commit(1)
    assert teacher_checks(config) == []
