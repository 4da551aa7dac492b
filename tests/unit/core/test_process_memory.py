"""What a process holds, and what it gives back. In a process of its own: a test run's heap has holes of others."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

MIB = 2**20


def mib_after(program: str) -> list[int]:
    """The numbers that a program prints, in MiB."""
    code = "from nemo_brorl.core.process_memory import private_bytes, trim_heap\n" + program
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return [round(int(number) / MIB) for number in printed.split()]


def test_private_memory_grows_with_what_a_process_allocates() -> None:
    before, after = mib_after("print(private_bytes()); block = bytearray(64 * 2**20); print(private_bytes())")
    assert after - before == pytest.approx(64, abs=2)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only the GNU C library can be asked to trim its heap")
def test_trimming_gives_back_what_was_freed_below_a_block_that_stays() -> None:
    """2,048 blocks of 32 KiB are 64 MiB of heap; the last one is kept, so that the heap cannot shrink by itself."""
    full, freed, trimmed = mib_after(
        "blocks = [bytearray(32 * 2**10) for _ in range(2048)]; print(private_bytes())\n"
        "del blocks[:-1]; print(private_bytes())\n"
        "trim_heap(); print(private_bytes())"
    )
    assert full - freed < 8
    assert full - trimmed == pytest.approx(64, abs=8)
