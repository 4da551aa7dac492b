"""Slurm's commands as small shell scripts on PATH: they note what they are asked and answer what a test has laid
down."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

TOOLS = (
    "bash",
    "git",
    "cat",
    "mkdir",
    "touch",
    "env",
    "grep",
    "tail",
    "ls",
    "head",
)  # of the real PATH, in which there may be a real Slurm
INVALID = "slurm_load_jobs error: Invalid job id specified"

SBATCH = """
if [[ $1 == --test-only ]]; then
  cat > "$state/tested"
  if [[ -e $state/refusal ]]; then cat "$state/refusal" >&2; exit 1; fi
  echo "sbatch: Job 7 to start at 2030-01-01T00:00:00 using 16 processors on nodes node[0-1] in partition batch" >&2
  exit 0
fi
if [[ -e $state/refusal ]]; then cat "$state/refusal" >&2; exit 1; fi
next=$(( $(cat "$state/next") + 1 ))
echo "$next" > "$state/next"
{ printf '%s\\n' "$@"; echo "after=${BRORL_CHAIN_AFTER-unset}"; } > "$state/submitted_$next"
echo "$next;cluster"
"""
SQUEUE = """
for word in "$@"; do [[ $word == --jobs=* ]] && ids=,${word#--jobs=},; done
found=""
while IFS= read -r line; do
  if [[ $ids == *",${line%%|*},"* ]]; then echo "$line"; found=1; fi
done < "$state/queue"
[[ -n $found ]] || { echo "INVALID" >&2; exit 1; }
""".replace("INVALID", INVALID)
SCONTROL = """
if [[ $2 == hostnames ]]; then cat "$state/hostnames"; exit 0; fi
[[ -e $state/job_${!#} ]] || { echo "INVALID" >&2; exit 1; }
cat "$state/job_${!#}"
""".replace("INVALID", INVALID)
SCANCEL = 'printf "%s\\n" "$@" > "$state/cancelled"'
SINFO = 'cat "$state/partitions"'
SRUN = """printf '%s\\n' "$@" > "$state/srun"; echo "from the node" """


class FakeSlurm:
    """A Slurm with partitions batch and high, and an empty queue. Job numbers begin with 101."""

    def __init__(self, folder: Path) -> None:
        self.state, self.commands, self.tools = folder / "state", folder / "commands", folder / "tools"
        for path in (self.state, self.commands, self.tools):
            path.mkdir(parents=True)
        for name in TOOLS:
            found = shutil.which(name)
            assert found is not None, f"no {name} here"
            (self.tools / name).symlink_to(found)
        for name, text in (
            ("sbatch", SBATCH),
            ("squeue", SQUEUE),
            ("scontrol", SCONTROL),
            ("sinfo", SINFO),
            ("srun", SRUN),
            ("scancel", SCANCEL),
        ):
            self._write(name, text)
        (self.state / "next").write_text("100")
        (self.state / "partitions").write_text("batch\nhigh\n")
        self.queue()

    @property
    def path(self) -> str:
        """With Slurm."""
        return f"{self.commands}{os.pathsep}{self.tools}"

    @property
    def path_without(self) -> str:
        """Without."""
        return str(self.tools)

    def queue(self, *lines: str) -> None:
        """What squeue shows: id|state|elapsed|limit|start|number of nodes|nodes|reason."""
        (self.state / "queue").write_text("".join(f"{line}\n" for line in lines))

    def remember(self, job: int, text: str) -> None:
        """What `scontrol show job` says."""
        (self.state / f"job_{job}").write_text(text + "\n")

    def refuse(self, text: str) -> None:
        """From now on sbatch takes nothing."""
        (self.state / "refusal").write_text(text + "\n")

    def hostnames(self, *names: str) -> None:
        """What a list of nodes stands for."""
        (self.state / "hostnames").write_text("".join(f"{name}\n" for name in names))

    def submitted(self, job: int) -> list[str]:
        """Arguments of sbatch, and the job before it in a chain."""
        return (self.state / f"submitted_{job}").read_text().splitlines()

    @property
    def srun(self) -> list[str]:
        return (self.state / "srun").read_text().splitlines()

    @property
    def tested(self) -> str:
        """The script that sbatch was asked about."""
        return (self.state / "tested").read_text()

    def _write(self, name: str, text: str) -> None:
        path = self.commands / name
        path.write_text(f"#!/bin/bash\nstate={self.state}\n{text}\n")
        path.chmod(0o755)
