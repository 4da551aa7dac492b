"""Folders of the graders, installed or in a checkout."""

from __future__ import annotations

from pathlib import Path

import brorl_graders

# PYTHONPATH of a process that is to find these graders.
CODE_PATH = str(Path(brorl_graders.__file__).parents[1])
