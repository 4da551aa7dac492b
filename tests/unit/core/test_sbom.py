"""The kept lists of what is installed, and where its licences are read."""

from __future__ import annotations

import json
from email.message import Message
from types import ModuleType

import pytest

from tests.support.source_tree import ROOT, load_script

REQUIREMENTS = ROOT / "requirements"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("sbom")


def test_the_kept_lists_name_what_is_pinned(script: ModuleType) -> None:
    """Otherwise: scripts/sbom.py > requirements/cpu.licences, scripts/sbom.py --json > requirements/cpu.sbom.json"""
    pinned = dict(script.pinned((REQUIREMENTS / "cpu.txt").read_text()))
    wanted = {name.lower().replace("_", "-"): version for name, version in pinned.items()}
    components = json.loads((REQUIREMENTS / "cpu.sbom.json").read_text())["components"]
    listed = [line.split("\t")[0].split("==") for line in (REQUIREMENTS / "cpu.licences").read_text().splitlines()]
    found = {one["purl"].removeprefix("pkg:pypi/").split("@")[0]: one["version"] for one in components}
    assert {name: version.partition("+")[0] for name, version in found.items()} == wanted
    assert {name.lower().replace("_", "-"): version.partition("+")[0] for name, version in listed} == wanted


def test_the_graders_are_tested_with_what_the_backend_pins() -> None:
    """Otherwise: scripts/lock.sh graders"""
    pinned = (REQUIREMENTS / "cpu.txt").read_text().splitlines()
    wanted = (REQUIREMENTS / "graders.txt").read_text().splitlines()
    assert set(wanted) <= set(pinned)


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ([("License-Expression", "MIT"), ("License", "other")], "MIT"),
        ([("Classifier", "License :: OSI Approved :: BSD License"), ("Classifier", "Topic :: A")], "BSD License"),
        ([("License", "Apache 2.0\nCopyright …")], "Apache 2.0"),
        ([("Classifier", "License :: OSI Approved")], "not stated"),
    ],
)
def test_a_licence_is_the_expression_a_classifier_or_the_first_line(
    script: ModuleType, fields: list[tuple[str, str]], licence: str
) -> None:
    message = Message()
    for name, value in fields:
        message[name] = value
    assert script.licence_of(message) == licence
