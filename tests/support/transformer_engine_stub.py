"""Transformer Engine's Python over a stand-in for its compiled module, so that its layers can be made, not run.

It cannot show what the compiled module takes or refuses. `install` must come before megatron is imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

_MISSING = ("transformer_engine_torch", "triton", "onnxscript", "onnx")


class _Anything(types.ModuleType):
    """A module in which every name is there."""

    __version__ = "3.7.1"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] in _MISSING:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Anything(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


def install(folder: Path, version: str) -> None:
    """Import Transformer Engine from an unpacked wheel: `folder` holds the package `transformer_engine`."""
    import torch

    os.environ["NVTE_PROJECT_BUILDING"] = "1"  # loads no library
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_capability = lambda *arguments: (9, 0)
    torch.cuda.current_device = lambda: 0
    sys.meta_path.insert(0, _Finder())
    package: Any = types.ModuleType("transformer_engine")
    package.__path__ = [str(folder / "transformer_engine")]
    package.__spec__ = importlib.machinery.ModuleSpec("transformer_engine", None, is_package=True)
    package.__version__ = version
    sys.modules["transformer_engine"] = package
    import transformer_engine.common as common

    common.load_framework_extension = lambda framework: None
    import transformer_engine.pytorch as pytorch

    package.common = common
    package.pytorch = pytorch
