"""List the project's packages, and find their folders."""

from __future__ import annotations

from pathlib import Path

import nemo_brorl

PACKAGE = "nemo_brorl"
# The folder of a checkout that holds each package. Installed packages lie side by side.
FOLDER_OF_PACKAGE = {PACKAGE: ".", "brorl_launcher": "launcher", "brorl_lab": "lab", "brorl_graders": "graders"}


def code_root() -> Path:
    """Return the folder that holds the package `nemo_brorl` of this process."""
    return Path(nemo_brorl.__file__).resolve().parents[1]


def package_folders(root: Path) -> list[Path]:
    """Return the folder of every package of this project in `root`, a checkout or a folder of installed packages."""
    found = []
    for package, place in FOLDER_OF_PACKAGE.items():
        for folder in (root / place / package, root / package):
            if folder.is_dir():
                found.append(folder)
                break
    return found
