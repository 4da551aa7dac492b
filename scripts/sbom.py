"""Print the packages of scripts/install.sh as a list of licences or a CycloneDX SBOM: `scripts/sbom.py [--json]`.

Licences come from the packages' own metadata. The packages are those of requirements/cpu.txt, or of the list given by
--list.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements"
LONGEST = 60  # longest licence name in characters; longer text is the licence itself
UNKNOWN = "not stated"


class Package(NamedTuple):
    """Name, version and licence of one package."""

    name: str
    version: str
    licence: str


def main(arguments: Sequence[str]) -> int:
    """Print the licences, or the SBOM. Return exit code 1 when a listed package is missing or has another version."""
    parser = argparse.ArgumentParser(prog="scripts/sbom.py", description=__doc__)
    parser.add_argument("--list", type=Path, default=REQUIREMENTS / "cpu.txt")
    parser.add_argument("--json", action="store_true", help="CycloneDX 1.6")
    options = parser.parse_args(arguments)
    wanted = dict(pinned(options.list.read_text()))
    found: list[Package] = []
    missing: list[str] = []
    for name, version in wanted.items():
        try:
            package = read_package(name)
        except metadata.PackageNotFoundError:
            missing.append(f"{name}=={version} is not installed")
            continue
        found.append(package)
        if package.version.partition("+")[0] != version:
            missing.append(f"{name}=={version} is installed as {package.version}")
    if options.json:
        sys.stdout.write(in_lines(sbom(found)))
    else:
        for package in found:
            sys.stdout.write(f"{package.name}=={package.version}\t{package.licence}\n")
    for line in missing:
        sys.stderr.write(f"error: {line}\n")
    return int(bool(missing))


def pinned(text: str) -> Iterator[tuple[str, str]]:
    """Yield names and versions from a list of requirements."""
    for line in text.splitlines():
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[.*?\])?==([^\s;\\]+)", line)
        if match:
            yield match[1], match[2]


def read_package(name: str) -> Package:
    """Return an installed package with its licence. Raises PackageNotFoundError."""
    distribution = metadata.distribution(name)
    return Package(distribution.metadata["Name"], distribution.version, licence_of(distribution.metadata))


def licence_of(fields: Any) -> str:
    """Return a package's licence: its SPDX expression, its classifiers, or the first line of its free text."""
    expression = fields.get("License-Expression")
    if expression:
        return str(expression)
    classifiers = [text for text in fields.get_all("Classifier") or () if text.startswith("License ::")]
    names = [text.rpartition(" :: ")[2] for text in classifiers]
    names = [name for name in names if name != "OSI Approved"]
    if names:
        return " or ".join(names)
    lines = str(fields.get("License") or "").strip().splitlines()
    first = lines[0].strip() if lines else ""
    return first[:LONGEST] or UNKNOWN


def in_lines(found: dict[str, Any]) -> str:
    """Return an SBOM as JSON text with one line for each component."""
    components = [json.dumps(component) for component in found.pop("components")]
    head = json.dumps(found).removesuffix("}")
    return f'{head}, "components": [\n' + ",\n".join(components) + "\n]}\n"


def sbom(packages: Sequence[Package]) -> dict[str, Any]:
    """Return the packages as a CycloneDX (ECMA-424) document."""
    components = []
    for package in packages:
        component = {
            "type": "library",
            "name": package.name,
            "version": package.version,
            "purl": f"pkg:pypi/{package.name.lower().replace('_', '-')}@{package.version}",
            "licenses": [{"license": {"name": package.licence}}],
        }
        components.append(component)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "components": components,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
