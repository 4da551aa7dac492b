"""YAML of a run folder is data: what could grow beyond its bytes, or calls for more, is refused before it is built."""

from __future__ import annotations

from pathlib import Path

import pytest
from brorl_graders.base.foreign import RecordError
from omegaconf import OmegaConf

from nemo_brorl.core import recorded_yaml
from nemo_brorl.core.recorded_yaml import MAX_BYTES, MAX_DEPTH, MAX_NODES, read_record, setting_of

BOMB = "".join(
    f"{name}: &{name} [{','.join([below] * 9)}]\n"
    for name, below in zip("abcdefghi", ["x", *[f"*{one}" for one in "abcdefgh"]], strict=True)
)
HOSTILE = {
    "aliases of aliases": BOMB,
    "one alias": "a: &a [1]\nb: *a\n",
    "an alias to itself": "a: &a [*a]\n",
    "an anchor alone": "a: &a 1\n",
    "an alias to nothing": "a: *b\n",
    "a merged mapping": "a: &a {x: 1}\nb: {<<: *a}\n",
    "a tag": "a: !!python/object/apply:os.getcwd []\n",
    "a set": "a: !!set {x}\n",
    "a tag of its own": "a: !own 1\n",
    "depth": "a: " + "[" * MAX_DEPTH + "]" * MAX_DEPTH,
    "depth without an end": "[" * 200_000,
    "depth of mappings": "{a: " * 200_000,
    "nodes": "a: [" + "1," * MAX_NODES + "]",
    "documents": "---\n" * 100_001,
    "bytes": "a: " + "x" * MAX_BYTES,
    "digits": "a: " + "1" * 10_000,
    "hexadecimal digits": "a: 0x" + "f" * 4_000,
    "a long fraction": "a: 0." + "1" * 100,
    "a name twice": "a: 1\na: 2\n",
    "a list": "[1, 2]",
    "a text": "x",
    "two documents": "a: 1\n---\nb: 2\n",
    "half a file": "a: [",
    "a control character": "a: \x07",
}


@pytest.fixture(params=["libyaml", "python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both parsers: not every installation of PyYAML has libyaml."""
    has_libyaml = recorded_yaml.Loader is not recorded_yaml.PythonLoader
    if request.param == "python":
        monkeypatch.setattr(recorded_yaml, "Loader", recorded_yaml.PythonLoader)
    elif not has_libyaml:
        pytest.skip("this PyYAML has no libyaml")


def put(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_plain_data_within_the_bounds_is_refused_with_path_and_reason(name: str, tmp_path: Path) -> None:
    path = put(tmp_path, HOSTILE[name])
    with pytest.raises(RecordError) as refused:
        read_record(path)
    assert str(path) in str(refused.value)
    assert refused.value.reason
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_or_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.yaml", tmp_path, Path("/dev/zero")):
        with pytest.raises(RecordError):
            read_record(path)


@pytest.mark.usefixtures("parser")
def test_as_many_nodes_and_levels_as_allowed_are_read(tmp_path: Path) -> None:
    deepest = "a: " + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert "a" in read_record(put(tmp_path, deepest))
    most = MAX_NODES - 3  # beside the mapping, the key and the list
    assert len(read_record(put(tmp_path, "a: [" + "1," * most + "]"))["a"]) == most


@pytest.mark.usefixtures("parser")
def test_interpolations_stay_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "value of it")
    path = put(tmp_path, "a: ${oc.env:KEY}\nb: ${a}/x\nc: ${nowhere}\n")
    assert read_record(path) == {"a": "${oc.env:KEY}", "b": "${a}/x", "c": "${nowhere}"}


VALUES = {
    "numbers": [1, -7, 0, 1e-6, 1.0, 2.5e20, 1e300, 3e-4, 0.1, float("inf"), 12_345_678_901],
    "texts": [
        "1e-6",
        "1_000",
        "01:02:03",
        "2026-10-01",
        "true",
        "null",
        "~",
        "",
        " x ",
        "0x10",
        "007",
        "ä\nb",
        "[",
        "=",
        "<<",
    ],
    "others": [True, False, None, {}, [], {"a b": {"c": [1]}}],
}


@pytest.mark.usefixtures("parser")
def test_values_come_back_as_omegaconf_has_written_them(tmp_path: Path) -> None:
    path = put(tmp_path, OmegaConf.to_yaml(OmegaConf.create(VALUES)))
    found = read_record(path)
    assert found == VALUES
    assert [type(value) for value in found["numbers"]] == [type(value) for value in VALUES["numbers"]]
    assert found == OmegaConf.to_container(OmegaConf.load(path))


@pytest.mark.usefixtures("parser")
def test_an_empty_file_holds_nothing(tmp_path: Path) -> None:
    assert read_record(put(tmp_path, "")) == {}
    assert read_record(put(tmp_path, "# nothing\n")) == {}


def test_a_setting_is_found_by_its_dotted_name_or_is_none() -> None:
    record = {"trainer": {"max_steps": 3}, "data": "x"}
    assert setting_of(record, "trainer.max_steps") == 3
    assert setting_of(record, "trainer.seed") is None
    assert setting_of(record, "data.path") is None
