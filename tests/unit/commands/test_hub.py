"""Exported folders: what stands beside the weights, and what a hub would get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from brorl_lab.bases.initial_model import build_tokenizer
from huggingface_hub import HfApi

from nemo_brorl.commands.convert import list_upload
from nemo_brorl.commands.hub import push
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.training.export import RECORD
from nemo_brorl.types import TensorInfo
from nemo_brorl.weights.hf_folder import write_hf_folder

TEXTS = ["4 - 1 - 7 = -4", "<answer>12</answer>"]
STOPPING = {"eos_token_id": [1, 2], "temperature": 0.6}


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    build_tokenizer(TEXTS, 320).save_pretrained(source)
    (source / "config.json").write_text(json.dumps({"model_type": "qwen2", "torch_dtype": "bfloat16"}))
    (source / "generation_config.json").write_text(json.dumps(STOPPING))
    folder = tmp_path / "exported"
    manifest = [TensorInfo("weight", (2,), "float32")]
    write_hf_folder(iter([("weight", torch.ones(2))]), manifest, source, folder, 2**20)
    (folder / RECORD).write_text("{}")
    return folder


def test_an_export_keeps_the_chat_template_and_how_generation_ends(exported: Path) -> None:
    from transformers import AutoTokenizer

    assert json.loads((exported / "generation_config.json").read_text()) == STOPPING
    ours = load_tokenizer(exported)
    theirs = AutoTokenizer.from_pretrained(exported)
    messages = [{"role": "user", "content": "4 - 1 - 7 = ?"}]
    rendered = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ours.render("4 - 1 - 7 = ?") == rendered
    assert ours.encode(rendered) == theirs.encode(rendered, add_special_tokens=False)


def test_a_dry_run_says_what_a_hub_would_get_and_reaches_for_none(
    exported: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HfApi, "create_repo", None)
    list_upload(exported, "me/model", False, Console())
    said = capsys.readouterr().out
    assert "me/model (private) would get" in said
    for name in ("model.safetensors", "config.json", "generation_config.json", "chat_template.jinja", "tokenizer.json"):
        assert name in said
    assert RECORD not in said


def test_a_push_makes_the_repository_and_leaves_our_record_out(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []

    def create_repo(self: HfApi, repo_id: str, *, private: bool | None = None, exist_ok: bool = False) -> str:
        calls.append({"repo_id": repo_id, "private": private})
        return f"https://hub/{repo_id}"

    def upload_folder(
        self: HfApi, *, repo_id: str, folder_path: Path, ignore_patterns: list[str], commit_message: str
    ) -> None:
        calls.append({"repo_id": repo_id, "ignored": ignore_patterns})

    monkeypatch.setattr(HfApi, "create_repo", create_repo)
    monkeypatch.setattr(HfApi, "upload_folder", upload_folder)
    address = push(exported, "me/model", is_private=False)
    assert calls == [{"repo_id": "me/model", "private": False}, {"repo_id": "me/model", "ignored": [RECORD]}]
    assert address == "https://hub/me/model"


def test_what_the_hub_refuses_is_one_message(exported: Path) -> None:
    with pytest.raises(CheckpointError, match="--push-to-hub=not a name"):
        push(exported, "not a name", is_private=True)
