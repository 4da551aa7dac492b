"""The checks of one node, on made-up machines, folders and tables."""

from __future__ import annotations

import json
import socket
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from brorl_launcher.doctor import data_files, gpus, machine, model_files, sandbox, versions
from brorl_launcher.doctor.command import read_ports
from brorl_launcher.doctor.probe import Probe, within
from brorl_launcher.doctor.report import FAIL, OK, WARN, Check, NodeReport, advices, table_header, table_rows

from nemo_brorl.config.data import DataConfig, DomainConfig, TaskConfig
from nemo_brorl.config.policy import PolicyConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.config.sft import NewModelConfig, SftConfig
from nemo_brorl.config.trainer import TrainerConfig
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.core.model_shape import hf_shapes, read_model_shape

GIB = 1 << 30
LISTED = {"torch": "2.13.0", "vllm": "0.32.0", "ray": "2.60.0", "einops": "0.8.2", "ruff": "1.0"}
QWEN = {
    "model_type": "qwen2",
    "num_hidden_layers": 1,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
QWEN |= {
    "intermediate_size": 16,
    "vocab_size": 32,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}


def write_model(folder: Path, names: list[str] | None = None, cut: int = 0) -> Path:
    """A folder in Hugging Face's format with tensors of one number each, its file `cut` bytes too short."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN))
    (folder / "tokenizer.json").write_text("{}")
    names = list(hf_shapes(read_model_shape(folder))) if names is None else names
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    header |= {
        name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * index, 4 * index + 4]}
        for index, name in enumerate(names)
    }
    body = json.dumps(header).encode()
    whole = struct.pack("<Q", len(body)) + body + bytes(4 * len(names))
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


def source_of(**fields: Any) -> dict[str, Any]:
    return data_files.look_at_source({"source": fields})


def test_the_first_rows_of_a_file_are_read_as_questions(tmp_path: Path) -> None:
    file = tmp_path / "math.jsonl"
    file.write_text('{"problem": "1+1", "answer": "2"}\n\n{"problem": "no answer"}\n')
    said = source_of(source="jsonl", preset="deepscaler", path=str(file))
    assert said["fault"] == ""
    assert "1 of the first 2 rows are questions" in said["found"]


def test_a_file_without_one_question_in_its_first_rows_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "math.jsonl"
    file.write_text('{"prompt": "1+1"}\n')
    assert (
        "none of the first 1 rows is a question"
        in source_of(source="jsonl", preset="deepscaler", path=str(file))["fault"]
    )


def test_an_unknown_task_is_refused_and_every_task_needs_no_list() -> None:
    assert "leg_countin" in source_of(source="reasoning_gym", tasks=[{"name": "leg_countin"}])["fault"]
    assert source_of(source="reasoning_gym", tasks=[{"name": "*"}])["found"] == "reasoning_gym: every other task"


def test_a_sandbox_is_wanted_where_a_row_may_bring_a_program() -> None:
    code = DomainConfig(name="code", source="parquet", preset="eurus_2", path="x")
    gated = DomainConfig(
        name="gated", source="jsonl", path="x", verifier="composite", verifier_options={"parts": [{"verifier": "code"}]}
    )
    puzzles = DomainConfig(name="puzzles", tasks=[TaskConfig(name="*")])
    wanted = [
        sandbox.runs_programs(BroRLConfig(data=DataConfig(source="mixture", domains=[domain])))
        for domain in (code, gated, puzzles)
    ]
    assert wanted == [True, True, False]


def test_an_absent_package_refuses_and_another_version_warns() -> None:
    installed = {"torch": "2.13.0+cpu", "ray": "2.59.0"}
    assert versions.compare_needed(["torch", "ray", "vllm"], installed, LISTED, "gpu").status == FAIL
    check = versions.compare_needed(["torch", "ray"], installed, LISTED, "gpu")
    assert (check.status, "ray 2.59.0 (2.60.0)" in check.found) == (WARN, True)
    assert versions.compare_needed(["torch"], installed, LISTED, "gpu").status == OK


def test_the_rest_of_the_list_is_counted_without_tools() -> None:
    check = versions.compare_rest({"torch": "2.13.0", "vllm": "0.32.0", "ray": "2.59.0"}, LISTED, "gpu")
    assert check.status == WARN
    assert (
        "of 4 in requirements/gpu.txt 1 have another version and 1 are absent: ray 2.59.0 (2.60.0), einops"
        in check.found
    )


@pytest.mark.parametrize(
    ("installed", "pin", "kind", "word"),
    [
        ({"torch": "2.12.0"}, "2.13.0", "gpu", "compiled for torch 2.13.0"),
        ({"torch": "2.13.0+cpu"}, "2.13.0", "gpu", "no CUDA"),
        ({"torch": "2.13.0+cpu", "torchvision": "0.28.0"}, None, "cpu", "uninstall it"),
        (
            {"torch": "2.13.0", "transformer-engine": "2.15.0", "nvidia-cublas": "13.1.1.3"},
            None,
            "gpu",
            "needs cuBLAS 13.2",
        ),
    ],
)
def test_combinations_that_do_not_load_are_known(
    installed: dict[str, str], pin: str | None, kind: str, word: str
) -> None:
    (found,) = versions.conflicts(installed, pin, kind)
    assert word in found


def test_the_tested_combination_has_no_conflict() -> None:
    installed = {"torch": "2.13.0", "transformer-engine": "2.11.0", "nvidia-cublas": "13.1.1.3"}
    assert list(versions.conflicts(installed, "2.13.0", "gpu")) == []


def test_a_module_that_does_not_load_is_named() -> None:
    assert versions.check_imports(["json"]).status == OK
    check = versions.check_imports(["json", "no_such_module"])
    assert (check.status, check.found[:40]) == (FAIL, "no_such_module does not load: ModuleNotF")


def seen(num: int, free: float = 130.0, name: str = "NVIDIA H100") -> dict[str, Any]:
    devices = [{"index": index, "name": name, "free": int(free * GIB), "total": 140 * GIB} for index in range(num)]
    return {"cuda": "13.0", "nccl": "2.28.9", "devices": devices, "error": ""}


def test_too_few_gpus_refuse_and_too_many_warn() -> None:
    assert [gpus.judge_count(8, seen(num)).status for num in (7, 8, 9)] == [FAIL, OK, WARN]


def test_a_gpu_whose_memory_another_process_holds_refuses() -> None:
    devices = seen(7)["devices"] + seen(1, free=40.0)["devices"]
    check = gpus.judge_memory(0.6, devices)
    assert (check.status, "40.0 of 140.0 GiB free" in check.found) == (FAIL, True)


def test_memory_errors_refuse_and_other_processes_warn() -> None:
    rows = "0, NVIDIA H100, 81559, 0, 0, Not Active\n1, NVIDIA H100, 81559, 0, 3, Not Active\n"
    checks = list(gpus.judge_smi(rows, "4711, python, 30000\n"))
    assert [(check.name, check.status) for check in checks] == [("gpu health", FAIL), ("gpu users", WARN)]
    assert "GPU 1" in checks[0].found
    assert "python (pid 4711, 30000 MiB)" in checks[1].found


def test_a_driver_serves_its_own_major_version_of_cuda_and_older_ones() -> None:
    text = "| NVIDIA-SMI 550.54   Driver Version: 550.54   CUDA Version: {} |"
    assert [gpus.judge_driver(text.format(version), seen(1)).status for version in ("12.4", "13.0", "14.1")] == [
        FAIL,
        OK,
        OK,
    ]


def test_a_port_that_someone_listens_on_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check = machine.check_ports([port])
    assert (check.status, str(port) in check.found) == (FAIL, True)
    assert machine.check_ports([port]).status == OK


def test_ports_are_written_as_numbers_and_ranges() -> None:
    assert read_ports("6379,20000-20002") == [6379, 20000, 20001, 20002]
    with pytest.raises(ConfigError, match="no port"):
        read_ports("6379,x")


def test_a_disk_with_less_than_the_settings_need_refuses(tmp_path: Path) -> None:
    assert machine.check_room("disk", tmp_path / "not" / "there", 0.0, "").status == OK
    assert machine.check_room("disk", tmp_path, 1e9, "another disk").status == FAIL
    assert machine.check_room("shm", tmp_path, 1e9, "a larger one", least_gib=0.0).status == WARN


def test_a_folder_of_kernels_that_others_could_have_filled_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("BRORL_CACHE", str(tmp_path / "cache"))
    check = machine.check_private()
    assert check.status == OK, check
    assert str(tmp_path / "cache") in check.found
    (tmp_path / "cache").chmod(0o777)
    check = machine.check_private()
    assert (check.status, check.advice) == (FAIL, "remove it, or set BRORL_CACHE to a folder of your own")
    assert check.found.startswith(f"{tmp_path / 'cache'} may be entered by others (mode 0777")


def test_room_for_ray_is_looked_for_where_its_folder_will_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", "/not/on/this/node")
    [check] = [check for check in machine.check_disks(BroRLConfig(), None) if check.name == "disk, tmp"]
    assert check.found.startswith("/tmp: ")


def test_a_job_with_too_few_nodes_refuses_and_spare_ones_warn() -> None:
    config = BroRLConfig(trainer=TrainerConfig(num_nodes=8))
    assert [[check.status for check in machine.check_nodes(config, num)] for num in (7, 8, 9)] == [[FAIL], [], [WARN]]


def test_a_question_that_hangs_ends_at_its_deadline() -> None:
    hanging = Probe(
        "collective",
        "rank",
        {"rank": 1, "size": 2, "address": "127.0.0.1", "port": 1, "backend": "gloo", "seconds": 600},
    )
    answer = hanging.wait(0.5)
    assert (answer.data, answer.reason) == (None, "no answer within 0.5 s")
    assert within(0.05, lambda: time.sleep(5), "late") == "late"


def test_a_probe_that_fails_says_why() -> None:
    answer = Probe("data_files", "nothing of the kind", {}).wait(60)
    assert answer.data is None
    assert answer.reason.startswith("exit code 1: KeyError")


def test_nodes_that_say_the_same_share_a_row_and_the_worst_stands_first() -> None:
    reports = [NodeReport(f"n{index}", [Check("disk", OK, f"{index} GiB")]) for index in range(8)]
    reports[5] = NodeReport("n5", [Check("disk", FAIL, "0 GiB", "empty it")])
    assert table_header(reports) == ("check", "status", "nodes", "found")
    assert table_rows(reports) == [
        ["disk", "fail", "n5", "0 GiB"],
        ["disk", "ok", "n0, n1, n2, n3, n4, n6 and 1 more", "0 GiB (n0; the others alike)"],
    ]
    assert table_rows(reports[:1]) == [["disk", "ok", "0 GiB"]]
    assert advices(reports) == ["disk: empty it"]


def test_a_node_that_cannot_compile_kernels_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.setenv("CC", "/usr/bin/cc")
    assert machine.check_compiler().status == FAIL, "no Python.h"
    (tmp_path / "Python.h").touch()
    assert machine.check_compiler().status == OK
    monkeypatch.delenv("CC")
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    assert machine.check_compiler() == Check(
        "compiler", FAIL, "none", "install gcc on every node, or name a compiler in CC"
    )
