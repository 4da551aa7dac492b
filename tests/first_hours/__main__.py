"""Train a tiny model with each of ten shapes of data, and print what a newcomer would notice.

`make test-first-hours`, or `python -m tests.first_hours --only 0 3` for some. Each run has three steps with engines. It
prints minutes, warnings and failures ("surprises"), silence above 10 seconds, lines above 80 columns, and the ratio of
the rehearsal's estimate of a step to the mean of the second and third step, both without validation. Before them it
looks at the width of help pages and refusals (`--no-screens` leaves them out, `--only` without a number the runs).
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nemo_brorl.__main__ import COMMANDS
from nemo_brorl.core.console import ERASE_LINE
from nemo_brorl.training.records import read_metrics
from tests.first_hours.shapes import REWARDS, ROWS, SIGNATURES, SIZES, TOKENIZERS, write_data, write_tokenizer

SILENCE_S = 10.0
COLUMNS = 80
LIMIT_S = 900
SETTINGS = (
    *("trainer.max_steps=3", "trainer.val_interval=3", "trainer.save_interval=3", "evaluation.num_prompts=1"),
    *("rollouts.prompts_per_step=2", "rollouts.num_per_prompt=16", "rollouts.max_response_tokens=32"),
)
ESTIMATE = re.compile(r"sampling about (\S+) s.*training about (\S+) s")
SCREENS = (  # what a newcomer types before a run, or by mistake
    "help",
    "trian",
    "train --config-name nope",
    "train policy.modl=x",
    "train --config-name sums_cpu data.source=jsonl",
    "try policy.model=/nope",
    "plan --config-name sums_cpu",
    "plan --config-name brorl_7b",
    "doctor --config-name sums_cpu",
    "doctor --nope",
    "runs",
    "runs /nope",
    "status /nope",
    "attach /nope",
    "report /nope",
    "watch /nope",
    "diff /nope /nope",
    "compare /nope /nope",
    "sweep /nope.yaml",
    "submit --config-name brorl_7b",
    "render nope=1",
)
STAGES = ("time/collect_s", "time/log_prob_s", "time/update_s", "time/fetch_s")


class Noticed(NamedTuple):
    """What a newcomer notices in one run."""

    name: str
    code: int
    minutes: float
    surprises: list[str]
    silences: list[str]  # seconds, and the line before
    wide: list[str]
    ratio: float | None  # estimated over measured seconds of a step; None: a number is missing


def write_model(folder: Path, number: int) -> Path:
    """Write a random model with one of the tokenizers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(number)
    config = LlamaConfig(**SIZES, tie_word_embeddings=True, bos_token_id=None, eos_token_id=3, initializer_range=0.1)
    write_tokenizer(folder, number)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def noticed(root: Path, index: int) -> Noticed:
    """Train once, and read the lines as they come."""
    name, number = list(ROWS)[index], index % len(TOKENIZERS)
    model, data = write_model(root / f"model_{index}", number), write_data(root, name)
    run = root / f"run_{index}"
    verifier = f"brought:{SIGNATURES[index % len(SIGNATURES)]}"
    given = (f"policy.model={model}", f"data.path={data}", f"data.verifier={verifier}")
    command = [sys.executable, "-m", "nemo_brorl", "train", "--config-name", "your_model", *given, *SETTINGS]
    variables = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    start = time.monotonic()
    code, lines, silences = shown([*command, f"exp_manager.explicit_log_dir={run}"], variables)
    (root / f"run_{index}.txt").write_text("\n".join(lines))
    surprises = [line for line in lines if re.search(r"warning|error|Traceback", line, re.IGNORECASE)]
    minutes = (time.monotonic() - start) / 60
    return Noticed(name, code, minutes, surprises, silences, wide_of(lines), _ratio(lines, run))


def shown(command: Sequence[str], variables: Mapping[str, str]) -> tuple[int, list[str], list[str]]:
    """Run a command on a terminal of `COLUMNS`, and return its exit code, lines and silences."""
    start = last = time.monotonic()
    lines: list[str] = []
    silences: list[str] = []
    screen, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, COLUMNS))
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**variables, "NO_COLOR": "1"},
    ) as process:
        os.close(theirs)
        rest = b""
        while chunk := _read(screen):
            now = time.monotonic()
            if now - last > SILENCE_S:
                silences.append(f"{now - last:.0f} s after {lines[-1] if lines else 'the command'}")
            last = now
            *whole, rest = (rest + chunk).split(b"\n")
            # What was erased is not seen.
            lines += [line.decode(errors="replace").strip("\r").rpartition(ERASE_LINE)[2] for line in whole]
            if now - start > LIMIT_S:
                process.terminate()
    os.close(screen)
    return process.returncode, lines, silences


def wide_of(lines: Iterable[str]) -> list[str]:
    """Return the lines that are wider than the terminal."""
    return [line for line in lines if len(line) > COLUMNS]


def look_at_screens() -> int:
    """Run the commands of `SCREENS`, print how wide each is, and return how many do not end or are too wide."""
    num_wrong = 0
    for words in (*SCREENS, *(f"help {name}" for name in COMMANDS)):
        code, lines, _ = shown([sys.executable, "-m", "nemo_brorl", *words.split()], os.environ)
        wide = wide_of(lines)
        num_wrong += bool(wide) or code not in (0, 2)
        print(f"brorl {words}: exit code {code}, {len(wide)} of {len(lines)} lines above {COLUMNS} columns", flush=True)
        for line in wide[:3]:
            print(f"    {line[:200]}")
    return num_wrong


def _read(screen: int) -> bytes:
    """Return what was written to a terminal next, or nothing at its end."""
    try:
        return os.read(screen, 65536)
    except OSError:
        return b""


def _ratio(lines: list[str], run: Path) -> float | None:
    estimate = ESTIMATE.search(" ".join(" ".join(lines).split()))
    path = run / "metrics.jsonl"
    rows = [row for row in read_metrics(path) if "time/update_s" in row] if path.exists() else []
    measured = [sum(row.get(stage, 0.0) for stage in STAGES) for row in rows[1:]]
    if estimate is None or not measured:
        return None
    return sum(float(part.replace(",", "")) for part in estimate.groups()) / (sum(measured) / len(measured))


def main() -> int:
    """Run all shapes, or those of `--only`, and return 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=int, nargs="*", default=range(len(ROWS)))
    parser.add_argument("--screens", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    root = options.folder or Path(tempfile.mkdtemp(prefix="first_hours_"))
    root.mkdir(parents=True, exist_ok=True)
    # A random model is right by chance: responses of an odd length are.
    (root / "brought.py").write_text(REWARDS.replace("float(str(right) in text)", "float(len(text) % 2)"))
    codes = [look_at_screens()] if options.screens else []
    for index in options.only:
        seen = noticed(root, index)
        codes.append(seen.code)
        ratio = "-" if seen.ratio is None else f"{seen.ratio:.1f}"
        print(
            f"{seen.name}: exit code {seen.code}, {seen.minutes:.1f} minutes, {len(seen.surprises)} surprises, "
            f"{len(seen.silences)} silences above {SILENCE_S:.0f} s, {len(seen.wide)} lines above {COLUMNS} columns, "
            f"estimate over measured {ratio}",
            flush=True,
        )
        for line in [*dict.fromkeys(seen.surprises), *seen.silences, *seen.wide[:3]][:9]:
            print(f"    {line[:200]}")
    print(f"the output of each run is in {root}")
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
