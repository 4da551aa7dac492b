"""Lists settings of torch, oneDNN and MKL that stand in for other processors on this one.

torch chooses its own kernels by ATEN_CPU_CAPABILITY: softmax, attention, activations, random numbers. oneDNN has the
products of bf16 and obeys ONEDNN_MAX_CPU_ISA. MKL has those of float32. It takes MKL_ENABLE_INSTRUCTIONS from an Intel
processor only, and on others has code of its own, so there `intel_kernels.c` is preloaded for what begins with "intel".
vLLM chooses between its two libraries by what the processor says, which no setting changes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nemo_brorl.training.machine_record import first_described

SOURCE = Path(__file__).with_name("intel_kernels.c")
TWO_THREADS = {"OMP_NUM_THREADS": "2"}
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
AVX512 = {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "MKL_ENABLE_INSTRUCTIONS": "AVX512"}
AVX512_FLAGS = ("avx512f", "avx512bw", "avx512dq", "avx512vl")


@dataclass(frozen=True)
class Setting:
    """A stand-in: variables of the environment, and what the processor must have for them to mean anything."""

    name: str
    variables: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    preloads: bool = False


SETTINGS = (
    Setting("own"),
    Setting("own-two-threads", TWO_THREADS),
    Setting("plain", {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}),
    Setting("mkl-compatible", {"MKL_CBWR": "COMPATIBLE"}),
    Setting("avx2", AVX2, ("avx2", "fma")),
    Setting("avx512", AVX512, AVX512_FLAGS),
    Setting("avx512-bf16", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, (*AVX512_FLAGS, "avx512_bf16")),
    Setting("amx", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}, ("amx_bf16",)),
    Setting("intel", {}, ("avx2",), preloads=True),
    Setting("intel-two-threads", TWO_THREADS, ("avx2",), preloads=True),
    Setting("intel-avx2", AVX2, ("avx2", "fma"), preloads=True),
)


@dataclass(frozen=True)
class Processor:
    """Says of the machine's processor what settings ask."""

    vendor: str
    flags: frozenset[str]

    def lacks(self, setting: Setting) -> str:
        """Say why the setting would mean nothing here; an empty text where it does."""
        for flag in setting.flags:
            if flag not in self.flags:
                return f"this processor has no {flag}"
        if setting.preloads and self.vendor == "GenuineIntel":
            return "this processor is Intel's own"
        if setting.preloads and shutil.which("cc") is None:
            return "there is no C compiler"
        return ""


def this_processor() -> Processor:
    """Read what Linux says of the first processor."""
    found = first_described(Path("/proc/cpuinfo"))
    return Processor(found.get("vendor_id", ""), frozenset(found.get("flags", "").split()))


def environment_of(setting: Setting, folder: Path) -> dict[str, str]:
    """Return the environment of a process that computes as the setting says; a library may be built in the folder."""
    environment = {"OMP_NUM_THREADS": "1"} | os.environ | setting.variables
    if setting.preloads:
        library = folder / "intel_kernels.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
        environment["LD_PRELOAD"] = str(library)
    return environment
