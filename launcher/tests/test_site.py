"""A site's settings: read as people write them, checked before they reach Slurm or a shell."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from brorl_launcher.site import Site, load_site, seconds_of, wrong_values

from nemo_brorl.config.declare import declaration
from nemo_brorl.core.errors import ConfigError


def write(folder: Path, text: str) -> str:
    path = folder / "site.yaml"
    path.write_text(text)
    return str(path)


def test_a_time_without_quotes_is_not_read_as_a_number(tmp_path: Path) -> None:
    assert load_site(write(tmp_path, "time: 24:00:00\n"), {}).time == "24:00:00"


def test_the_command_line_lies_over_the_file(tmp_path: Path) -> None:
    site = load_site(write(tmp_path, "partition: batch\nspares: 1\n"), {"partition": "high"})
    assert (site.partition, site.spares) == ("high", 1)


def test_a_site_may_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRORL_SITE", write(tmp_path, "account: mine\n"))
    assert load_site(None, {}).account == "mine"


def test_the_shipped_example_holds() -> None:
    site = load_site("example", {})
    assert (site.partition, site.memory, site.gpu_request) == ("batch", "0", "gres")


def test_shell_text_keeps_its_dollars(tmp_path: Path) -> None:
    site = load_site(write(tmp_path, "setup: ['source ${HOME}/env $1']\nenvironment: {A: '${B}'}\n"), {})
    assert site.setup == ["source ${HOME}/env $1"]
    assert site.environment == {"A": "${B}"}


def test_an_unknown_key_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no site setting partitoin; there are partition, account"):
        load_site(write(tmp_path, "partitoin: batch\n"), {})


def test_a_missing_file_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ConfigError, match=r"--site nowhere: there is no such file, and conf/site/ has example"):
        load_site("nowhere", {})


def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a site is a mapping"):
        load_site(write(tmp_path, "- batch\n"), {})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("time", "4:00", "4:00 four minutes"),
        ("time", "24", "24:00:00 for a day"),
        ("time", "24:00:00; rm -rf x", "24:00:00 for a day"),
        ("time", "00:04:00", "not longer than signal_s=300"),
        ("memory", "lots", "512G"),
        ("memory", "512", "512G"),
        ("partition", "a b", "sinfo -s"),
        ("partition", "$(reboot)", "sinfo -s"),
        ("gpu_request", "gpus", "gres or gpus_per_node or none"),
        ("mail_user", "a b@c", "one address"),
        ("constraint", 'a" b', "node features"),
        ("exclude", "node 3", "node[3,7-9]"),
    ],
)
def test_a_wrong_value_is_refused_with_what_to_write(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_site(None, {name: value})
    assert f"{name}=" in str(caught.value)
    assert message in str(caught.value)


def test_numbers_and_lists_are_checked_too() -> None:
    site = Site(spares=-1, mounts=["data"], options=["-x"], environment={"1A": "x"}, container="a b")
    found = " | ".join(wrong_values(site))
    assert "spares=-1: set 0 or more" in found
    assert "'data': set /folder or /outside:/inside" in found
    assert "'-x' is not an option of sbatch" in found
    assert "environment.1A" in found
    assert "container='a b'" in found


def test_mounts_without_a_container_are_refused() -> None:
    assert list(wrong_values(Site(mounts=["/data"]))) == [
        "mounts=/data has no container to be mounted in: set container=IMAGE, or leave mounts out"
    ]


@pytest.mark.parametrize(
    ("time", "seconds"), [("01:02:03", 3723), ("2-00:00:00", 172_800), ("1-6", 108_000), ("100:00:00", 360_000)]
)
def test_times_in_seconds(time: str, seconds: int) -> None:
    assert seconds_of(time) == seconds


def test_every_setting_says_what_it_is() -> None:
    assert [field.name for field in dataclasses.fields(Site) if not declaration(field).meaning] == []
