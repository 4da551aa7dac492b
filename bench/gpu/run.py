"""Runs the parts of the GPU bench one after the other and prints one table; `bench/gpu/run.sh` starts it.

Every part is a process with a time limit. What is left of its processes afterwards is ended (they are ours: orphans
come to this process), so that a part that hangs costs itself alone. A part that is through is not run again with the
same sources.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.gpu.record import Row, read_results, table
from nemo_brorl.core.files import replacing

ROOT = Path(__file__).resolve().parents[2]
PR_SET_CHILD_SUBREAPER = 36
TINY_PATIENCE = 4  # times a part's limit, on a busy CPU
LEAST_S = 20.0  # a part is not begun with less time left


@dataclass(frozen=True)
class Part:
    """A script of this folder."""

    letter: str  # the issue's
    name: str
    limit_s: float
    needs: tuple[str, ...] = ()  # modules that have to be there
    label: str = ""  # name of its files, where the script is a part in two ways
    arguments: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """Name of its files."""
        return self.label or self.name

    def command(self, results: Path, is_tiny: bool, python: str = sys.executable) -> list[str]:
        """Return the command that starts the part."""
        tiny = ["--tiny"] if is_tiny else []
        start = [python, "-m", f"bench.gpu.{self.name}", "--label", self.stem, "--results", str(results)]
        return [*start, *tiny, *self.arguments]


TRAINER = ("megatron.core", "transformer_engine")
ENGINE = ("vllm", "ray")
BOTH = (*TRAINER, *ENGINE)
LOOP = (*BOTH, "nemo", "reasoning_gym")

# The first thirty minutes on a card, in this order: what decides most comes first, and each part's log says whether the
# next is worth running.
FIRST = (
    Part("1", "smoke", 180, BOTH),
    Part("2", "ceilings", 60),
    Part("3", "attention", 240, TRAINER),
    Part("4", "throughput", 180, TRAINER, "first_step", ("--rows", "bf16")),
    Part("5", "weight_ipc", 300, BOTH, "first_engine", ("--heads", "--repeats", "2")),
    Part("6", "whole_loop", 420, LOOP, "first_loop", ("--rows", "shape")),
    Part("7", "throughput", 120, TRAINER, "first_fp8", ("--rows", "tensorwise")),
    Part("8", "generation", 300, ENGINE, "first_generation", ("--batch-tokens", "2048", "16384", "--repeats", "1")),
)

# All that is measured. The first eight fit into thirty minutes of a card.
PARTS = (
    Part("0", "smoke", 180, BOTH),
    Part("0", "ceilings", 60),
    Part("b", "parity", 240, TRAINER),
    Part("c", "throughput", 300, TRAINER),
    Part("d", "generation", 240, ENGINE),
    Part("e", "weight_ipc", 240, BOTH),
    Part("f", "sleep_cycles", 240, BOTH),
    Part("a", "gpu_tests", 360, TRAINER),
    Part("a", "engine_tests", 300, BOTH),
    Part("g", "whole_loop", 600, LOOP),
    Part("h", "fp8_learning", 540, LOOP),
    Part("i", "curve", 840, LOOP),
    Part("j", "peer", 600, (*LOOP, "trl")),
)


@dataclass(frozen=True)
class Outcome:
    """How a part ended; kept beside its results."""

    revision: str
    status: str  # done, or what went wrong
    seconds: float


def revision(part: Part) -> str:
    """Return a digest of the files that a part's figures depend on.

    They are the package, its configurations, the modules that all parts share, and the part's own module.
    """
    mine = Path(__file__).parent
    parts = {other.name for other in (*PARTS, *FIRST)}
    files = [*(ROOT / "nemo_brorl").rglob("*.py"), *(ROOT / "conf").glob("*.yaml"), *mine.glob("*.py")]
    if part.letter == "a":
        files += (ROOT / "tests" / "gpu").glob("*.py")
    digest = hashlib.sha256()
    for path in sorted(files):
        if path.parent != mine or path.stem == part.name or path.stem not in parts:
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def chosen(only: str | None, parts: Sequence[Part] = PARTS) -> list[Part]:
    """Parts by file name or letter, in their own order. Raises SystemExit for one that is not there."""
    if only is None:
        return list(parts)
    wanted = set(only.split(","))
    if unknown := wanted - {part.stem for part in parts} - {part.letter for part in parts}:
        names = ", ".join(f"{part.letter} or {part.stem}" for part in parts)
        raise SystemExit(f"--only {', '.join(sorted(unknown))} is no part of this bench: pass some of {names}")
    return [part for part in parts if wanted & {part.stem, part.letter}]


class Bench:
    """One call of run.sh."""

    def __init__(
        self,
        results: Path,
        is_tiny: bool,
        minutes: float | None,
        pack: Path | None,
        parts: Sequence[Part] = PARTS,
    ) -> None:
        self.results = results
        self.is_tiny = is_tiny
        self.pack = pack
        self.parts = parts
        self.ends_at = None if minutes is None else time.monotonic() + 60 * minutes
        results.mkdir(parents=True, exist_ok=True)

    def stem(self, part: Part) -> str:
        """Return the name of the part's files without their ending."""
        return f"{part.stem}_tiny" if self.is_tiny else part.stem

    def outcome(self, part: Part) -> Outcome | None:
        """Return the outcome of the part's last run. None: it never ran, or the file cannot be read."""
        try:
            return Outcome(**json.loads((self.results / f"{self.stem(part)}.outcome").read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def is_done(self, part: Part) -> bool:
        """Return whether the part has finished with the present sources."""
        outcome = self.outcome(part)
        return outcome is not None and outcome.status == "done" and outcome.revision == revision(part)

    def run(self, part: Part) -> Outcome:
        """Run a part, or say why not."""
        lacking = [name for name in part.needs if not self.is_tiny and not is_there(name)]
        limit_s = part.limit_s * (TINY_PATIENCE if self.is_tiny else 1)
        if self.ends_at is not None:
            limit_s = min(limit_s, self.ends_at - time.monotonic())
        if lacking:
            return self._end(part, f"lacks {', '.join(lacking)}", 0.0)
        if limit_s < LEAST_S:
            return self._end(part, "no time left", 0.0)
        print(f"== {part.letter} {part.stem}, at most {limit_s:.0f} s", flush=True)
        start, others = time.monotonic(), frozenset(descendants(os.getpid()))
        log = self.results / f"{self.stem(part)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                part.command(self.results, self.is_tiny),
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(limit_s)
                status = "done" if code == 0 else f"ended with {code}, see {log.name}"
            except subprocess.TimeoutExpired:
                status = f"over its limit of {limit_s:.0f} s"
        end_children(others)
        return self._end(part, status, time.monotonic() - start)

    def _end(self, part: Part, status: str, seconds: float) -> Outcome:
        outcome = Outcome(revision(part), status, seconds)
        if seconds or self.outcome(part) is None:  # what was not begun leaves older results as they are
            (self.results / f"{self.stem(part)}.outcome").write_text(json.dumps(vars(outcome)) + "\n")
        print(f"== {part.letter} {part.stem}: {status}, {seconds:.0f} s", flush=True)
        if self.pack is not None:
            pack_results(self.results, self.pack)
        return outcome

    def table(self) -> list[str]:
        """Return the lines of the table of all parts, with the results of earlier calls."""
        blocks: list[tuple[str, Sequence[Row], bool]] = []
        for part in self.parts:
            outcome, content = self.outcome(part), read_results(self.results / f"{self.stem(part)}.json")
            rows: list[Row] = list(content["rows"]) if content else []
            if outcome is None or outcome.status != "done":
                rows.append(Row(part.stem, None, note="not run" if outcome is None else outcome.status))
            elif outcome.revision != revision(part):
                rows.append(Row(part.stem, None, note="the rows above are of other sources"))
            blocks.append((part.letter, rows, self.is_tiny))
        return table(blocks)


def is_there(module: str) -> bool:
    """Return whether a module can be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of its parent
        return False


def adopt_orphans() -> None:
    """Make this process the parent of orphaned descendants, so that `end_children` finds them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_children(spared: frozenset[int], patience_s: float = 10.0) -> None:
    """Kill all processes that this one has started, directly or not, but those, until there are none."""
    deadline = time.monotonic() + patience_s
    while (left := set(descendants(os.getpid())) - spared) and time.monotonic() < deadline:
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in left:
            try:
                os.waitpid(process, os.WNOHANG)
            except ChildProcessError:
                continue
        time.sleep(0.05)


def descendants(root: int) -> Iterator[int]:
    """Yield the ids of all processes below `root`, nearest first."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue
    below = {root}
    while more := {process for process, parent in parents.items() if parent in below} - below:
        below |= more
        yield from more


def pack_results(results: Path, target: Path) -> None:
    """Figures, logs and the runs' metrics as one archive."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as aside, tarfile.open(aside, "w:gz") as archive:
        for path in sorted(results.rglob("*")):
            is_wanted = path.suffix in (".json", ".log", ".outcome", ".rates", ".xml") or path.name == "metrics.jsonl"
            if path.is_file() and is_wanted and "models" not in path.relative_to(results).parts:
                archive.add(path, path.relative_to(results))


def main() -> None:
    """Command line. Exits with 1 where a chosen part is not done."""
    parser = argparse.ArgumentParser(
        prog="bench/gpu/run.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="parts by letter or name, with commas between them")
    parser.add_argument("--first", action="store_true", help="the first thirty minutes on a card, in their order")
    parser.add_argument("--again", action="store_true", help="also those that are done")
    parser.add_argument(
        "--tiny", action="store_true", help="small shapes on the CPU: proves the scripts, measures nothing"
    )
    parser.add_argument("--minutes", type=float, help="begin and continue nothing after so many")
    parser.add_argument("--results", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--pack", type=Path, help="write results and logs into this .tar.gz after every part")
    options = parser.parse_args()
    adopt_orphans()
    all_parts = FIRST if options.first else PARTS
    bench = Bench(options.results.absolute(), options.tiny, options.minutes, options.pack, all_parts)
    parts = chosen(options.only, all_parts)
    for part in parts:
        if options.again or not bench.is_done(part):
            bench.run(part)
        else:
            print(f"== {part.letter} {part.stem}: done before with these sources", flush=True)
    print("\n".join(bench.table()))
    raise SystemExit(not all(bench.is_done(part) for part in parts))


if __name__ == "__main__":
    main()
