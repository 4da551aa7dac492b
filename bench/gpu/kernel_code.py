"""Compile FlexAttention's kernels for a Hopper GPU, and print their shared memory, registers and spills.

It also prints their instructions, and the figures of kernels that rotate heads. No card is needed.

python -m bench.gpu.kernel_code [--all]

Needs g++ and Triton's wheel (`pip install --no-deps triton==…`, the version in requirements/gpu.txt), beside torch's
for CPUs; two minutes. `tests/support/kernel_code.py` says what it cannot show. Without --all, of a part's kernels
those of attention and, of the others together, the largest of each number.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support import fake_cuda

ATTENTION = "triton_tem_"  # kernels that torch makes from a template


def line(part: str, name: str, kernels: Sequence[dict[str, Any]]) -> str:
    """Return a line of the Markdown table, with the largest of each number over `kernels`."""
    shared = max(kernel["shared"] for kernel in kernels) / 1024
    registers = max(kernel["registers"] for kernel in kernels)
    spilled = max(kernel["spilled"] for kernel in kernels)
    instructions = max(kernel["instructions"] for kernel in kernels)
    return f"| {part} | {name} | {shared:.1f} | {registers} | {spilled} | {instructions} |"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="a line for every configuration of every kernel")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        kernels = fake_cuda.report("tests.support.kernel_code", Path(folder))
    print("| | kernel | shared memory of a block, KiB | registers of a thread | bytes spilled | instructions |")
    print("|---|---|---|---|---|---|")
    for part in dict.fromkeys(kernel["part"] for kernel in kernels):
        others = []
        for kernel in kernels:
            if kernel["part"] != part:
                continue
            if options.all or kernel["name"].startswith(ATTENTION):
                print(line(part, kernel["name"], [kernel]))
            else:
                others.append(kernel)
        if others:
            print(line(part, f"{len(others)} others", others))
    return 0


if __name__ == "__main__":
    sys.exit(main())
