"""Jobs for KubeRay and SkyPilot: their fields are those that the two know (tests/data/cloud_job_fields.json says where
that is from), and the settings inside are the run's."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from brorl_launcher import render

from nemo_brorl.config.load import load_config, load_run_config
from nemo_brorl.core.errors import ConfigError
from tests.support.source_tree import ROOT

pytestmark = pytest.mark.slow

FIELDS = json.loads((ROOT / "tests" / "data" / "cloud_job_fields.json").read_text())
RUN = "/shared/runs/First_try"
GIVEN = ["--config-name", "brorl_64gpu", "--container", "registry.io/brorl:gpu", "--volume", "runs:/shared"]
TYPES = {dict: "object", list: "array", str: "string", int: "integer", bool: "boolean"}


def documents(capsys: pytest.CaptureFixture[str], kind: str, *arguments: str) -> list[Any]:
    assert render.main(["--to", kind, *GIVEN, "--run", RUN, *arguments]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


def fields(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Paths and types of everything in a document."""
    yield path, TYPES[type(value)]
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from fields(inner, f"{path}|{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from fields(inner, f"{path}[]")


def known_type(known: dict[str, str], path: str) -> str | None:
    """Of a field; a worker's pod is as the head's, and some mappings take any key."""
    name = path.strip("|").replace("workerGroupSpecs[]|template", "headGroupSpec|template")
    if name.replace("|", ".") in known:
        return known[name.replace("|", ".")]
    above = name.rpartition("|")[0].replace("|", ".")
    return known.get(f"{above}.*")


def wrong_fields(document: Any, known: dict[str, str]) -> list[str]:
    wrong = []
    for path, kind in fields(document):
        expected = known_type(known, path)
        if path and (expected is None or kind not in expected.split("|")):
            wrong.append(f"{path} is a {kind}, not {expected}")
    return wrong


def test_a_ray_job_has_the_fields_that_kuberay_knows(capsys: pytest.CaptureFixture[str]) -> None:
    settings, job = documents(
        capsys, "rayjob", "--env", "HF_HOME=/shared/hf", "--cpus-per-node", "96", "--memory", "512G"
    )
    del job["metadata"]
    assert wrong_fields(job, FIELDS["rayjob"]) == []
    assert wrong_fields({"spec": {"entrypont": "x"}}, FIELDS["rayjob"]) == ["|spec|entrypont is a string, not None"]
    cluster = job["spec"]["rayClusterSpec"]
    [group] = cluster["workerGroupSpecs"]
    assert group["replicas"] == 7
    [container] = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8, "cpu": 96, "memory": "512Gi"}
    assert container["env"] == [{"name": "HF_HOME", "value": "/shared/hf"}]
    assert settings["metadata"]["name"] == "first-try-settings"


@pytest.mark.parametrize("kind", ["rayjob", "skypilot"])
def test_the_settings_inside_are_those_of_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str
) -> None:
    first, *_ = documents(capsys, kind, "trainer.seed=7")
    text = first["data"]["config.yaml"] if kind == "rayjob" else first["run"].split("BRORL_SETTINGS'\n")[1]
    written = tmp_path / "config.yaml"
    written.write_text(text.partition("BRORL_SETTINGS")[0])
    expected = load_config("brorl_64gpu", ["trainer.seed=7", f"exp_manager.explicit_log_dir={RUN}"])
    assert load_run_config(tmp_path) == expected


def test_a_task_of_skypilot_has_the_fields_that_it_knows_and_a_script_that_bash_reads(
    capsys: pytest.CaptureFixture[str],
) -> None:
    [task] = documents(capsys, "skypilot", "--gpu-kind", "a100", "--no-plan", "--env", "A=b")
    assert task["resources"]["accelerators"] == "A100-80GB:8"
    assert task["num_nodes"] == 8
    assert task["volumes"] == {"/shared": "runs"}
    outer = {name: value for name, value in task.items() if name != "resources"}
    for document, prefix in ((outer, ""), (task["resources"], "resources.")):
        for name, value in document.items():
            assert TYPES[type(value)] in FIELDS["skypilot"][prefix + name].split("|"), name
    checked = subprocess.run(["bash", "-n"], input=task["run"], text=True, capture_output=True, check=False)
    assert checked.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--volume", "runs:/shared", "--run", RUN], "pass --container"),
        (["--container", "a/b:c", "--run", RUN], "pass NAME:/FOLDER"),
        (["--container", "a/b:c", "--volume", "runs:/data", "--run", RUN], "pass a folder below /data"),
    ],
)
def test_what_is_missing_is_one_message(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        render.main(["--to", "rayjob", "--config-name", "brorl_64gpu", *arguments])
