"""Every command refuses a damaged model folder, and the date of a template is that of the run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType

import huggingface_hub
import pytest
from brorl_launcher.doctor.model_files import check_model
from brorl_launcher.doctor.report import FAIL
from brorl_launcher.planner import command as plan

from nemo_brorl.commands import evaluate, sft, train, try_out, wiring
from nemo_brorl.commands.run import resolve_model, sized, with_template_date
from nemo_brorl.config.load import load_config, to_yaml
from nemo_brorl.config.same_run import with_sizes_of_run
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import ConfigError, ModelError
from nemo_brorl.core.model_folder import MODEL_REVISION, cached_model, local_model, recorded_commit
from nemo_brorl.training.run_folder import claim_run_folder
from tests.support.source_tree import ROOT

DATED = "{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 990328\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "models" / "sums", tmp_path / "model"))


@pytest.mark.parametrize("command", [train, try_out, evaluate, sft])
def test_commands_refuse_weights_that_are_a_pointer(command: ModuleType, model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").write_text(POINTER)
    given = [f"policy.model={model}", f"exp_manager.explicit_log_dir={tmp_path / 'run'}"]
    if command is sft:
        (tmp_path / "chat.jsonl").write_text("{}\n")
        given += ["data.source=jsonl", f"data.path={tmp_path / 'chat.jsonl'}"]
    with pytest.raises(ModelError, match="model.safetensors is a Git LFS pointer"):
        command.main(given)


def test_the_planner_and_the_doctor_refuse_other_sizes_and_quantised_weights(model: Path) -> None:
    path = model / "config.json"
    known = json.loads(path.read_text())
    few = [f"policy.model={model}", "trainer.gpus_per_node=0"]
    for entry, told in (
        ({"vocab_size": 512}, "config.json says 512 × 128"),
        ({"quantization_config": {"quant_method": "awq"}}, r"quantised \(awq"),
    ):
        path.write_text(json.dumps(known | entry))
        with pytest.raises(ModelError, match=told):
            plan.main(few)
        assert check_model(load_config("your_model", few))[0].status == FAIL


def test_a_plan_needs_no_weights(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model / "model.safetensors").unlink()
    assert plan.main([f"policy.model={model}", "trainer.gpus_per_node=0"]) == 0


def test_prompts_are_checked_before_anything_starts(model: Path) -> None:
    (model / "chat_template.jinja").write_text(DATED.replace("m.content", "m.content[:9]"))
    config = load_config("your_model", [f"policy.model={model}"])
    with pytest.raises(ConfigError, match="does not write the whole text of the user"):
        wiring.read_inputs(config, model)


def settings(run: Path, model: Path, *more: str) -> BroRLConfig:
    return load_config("your_model", [f"policy.model={model}", f"exp_manager.explicit_log_dir={run}", *more])


def date_of(config: BroRLConfig, folder: Path) -> str | None:
    return with_template_date(with_sizes_of_run(config), folder, Console()).data.template_date


def test_a_run_and_the_evaluation_of_its_weights_keep_the_date_of_its_first_day(model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert date_of(settings(run, model), model) is None, "the template prints no date"
    (model / "chat_template.jinja").write_text(DATED)
    assert date_of(settings(run, model), model) is not None
    run.mkdir()
    begun = settings(run, model, "data.template_date=2026-01-02")
    (run / "config.yaml").write_text(to_yaml(begun))
    assert date_of(settings(run, model), model) == "2026-01-02"
    weights = Path(shutil.copytree(model, run / "hf"))
    assert date_of(settings(tmp_path / "other", weights), weights) == "2026-01-02"
    (run / "checkpoints" / "step_3").mkdir(parents=True)
    of_checkpoint = settings(tmp_path / "other", model, f"evaluation.checkpoint={run / 'checkpoints' / 'step_3'}")
    assert date_of(of_checkpoint, model) == "2026-01-02"


def test_a_run_that_recorded_no_date_goes_on_without(model: Path, tmp_path: Path) -> None:
    (model / "chat_template.jinja").write_text(DATED)
    (tmp_path / "config.yaml").write_text(to_yaml(settings(tmp_path, model)))
    assert date_of(settings(tmp_path, model), model) is None


def test_what_only_looks_at_a_model_takes_no_sizes_of_the_run_in_its_folder(model: Path, tmp_path: Path) -> None:
    begun = sized(settings(tmp_path, model, "generation.max_num_seqs=7", "generation.num_engines=1"), Console())[0]
    (tmp_path / "config.yaml").write_text(to_yaml(begun))
    other = settings(tmp_path, model)
    assert sized(other, Console())[0].generation.max_num_seqs == 7
    assert sized(other, Console(), with_policy=False)[0].generation.max_num_seqs != 7


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("data.template_date=tomorrow", "data.template_date=tomorrow is no day"),
        ("data.template_arguments={messages: x}", "data.template_arguments.messages is what every"),
        ('rollouts.stop_strings=[""]', "hold an empty text"),
    ],
)
def test_settings_of_templates_and_stops_that_cannot_work_are_refused(given: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_config("your_model", [given])


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def hub_config(run_folder: Path, model: str = "owner/name@brorl") -> BroRLConfig:
    config = BroRLConfig()
    config.policy.model, config.exp_manager.explicit_log_dir = model, str(run_folder)
    return config


def test_a_revision_is_downloaded_and_a_resumed_run_takes_the_commit_of_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str | None]] = []
    snapshot = tmp_path / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)

    def download(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((name, revision))
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    config = hub_config(tmp_path / "run")
    claim_run_folder(config, resolve_model(config))
    assert (tmp_path / "run" / "model_revision.txt").read_text() == f"owner/name@{COMMIT}\n"
    assert resolve_model(config) == snapshot
    resolve_model(hub_config(tmp_path / "other", "owner/name"))
    assert asked == [("owner/name", "brorl"), ("owner/name", COMMIT), ("owner/name", None)]


@pytest.mark.parametrize("record", [f"else/name@{COMMIT}", "owner/name@../../secret", "owner/name", "\xff"])
def test_a_record_of_another_model_or_of_no_commit_counts_for_nothing(tmp_path: Path, record: str) -> None:
    (tmp_path / MODEL_REVISION).write_text(record, encoding="latin-1")
    assert recorded_commit(tmp_path, "owner/name@brorl") is None


def test_a_cached_revision_is_found_by_branch_and_by_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    cache = tmp_path / "models--owner--name"
    (cache / "snapshots" / COMMIT).mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "refs" / "brorl").write_text(COMMIT)
    assert cached_model("owner/name@brorl") == cached_model(f"owner/name@{COMMIT}") == cache / "snapshots" / COMMIT
    assert cached_model("owner/name") is None, "main is not downloaded"
    found, _ = check_model(hub_config(tmp_path, "owner/name@v2"), num_nodes=2)
    assert found.status == FAIL
    assert "hf download owner/name --revision v2 --local-dir FOLDER" in found.advice


def test_a_revision_without_a_name_is_refused() -> None:
    with pytest.raises(ModelError, match=r"no revision after the @. Set owner/name, or owner/name@main"):
        local_model("owner/name@")
