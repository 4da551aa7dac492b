"""Fake CUDA tensors on a machine without CUDA: shapes, formats and devices are followed through autograd and
torch.compile as far as code generation, and nothing is computed.

It cannot show numbers, generated kernels, speed, or what a kernel refuses at run time. `use` must come before torch is
imported, so checks run in a process of their own.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_suffix(".cpp")
ROOT = SOURCE.parents[2]


def build(library: Path) -> None:
    """Compile the fake device against the installed torch; some seconds. Skips the test where torch has CUDA."""
    spec = find_spec("torch")
    assert spec is not None and spec.origin is not None
    torch = Path(spec.origin).parent
    if (torch / "lib" / "libtorch_cuda.so").exists():
        pytest.skip("this torch is built with CUDA, beside which no fake device can be registered")
    libraries = [f"-L{torch / 'lib'}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch / 'lib'}"]
    options = ["-std=c++20", "-O0", "-w", "-shared", "-fPIC", f"-I{torch / 'include'}"]
    subprocess.run(["g++", *options, str(SOURCE), "-o", str(library), *libraries], check=True)


def use(library: Path) -> None:
    """Let torch, when it is imported, find a CUDA device."""
    ctypes.CDLL(str(library))


def report(module: str, folder: Path) -> Any:
    """What `python -m MODULE LIBRARY` prints as JSON, as its last line."""
    library = folder / "fake_cuda.so"
    build(library)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, str(library)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
