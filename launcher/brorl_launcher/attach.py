"""`brorl attach` follows a run's log, opens a shell on one of its nodes, or reads a node's Ray logs."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from brorl_graders.base.foreign import MAX_LINE, SMALL, VAST, open_record, record_text

from brorl_launcher import slurm
from brorl_launcher.command_line import command_parser
from brorl_launcher.find_run import Target, find_target, newest_log
from brorl_launcher.job.ray_node import session_name
from brorl_launcher.run_state import read_run
from brorl_launcher.status import is_going_on
from nemo_brorl.core.console import without_colours, write_error, write_out
from nemo_brorl.core.errors import ConfigError, ResourceError

POLL_S = 0.5  # a shared file system sends no notice of appended lines
ASK_S = 15.0  # seconds between questions to Slurm whether the job runs
BLOCK = 1 << 16  # bytes
EXAMPLES = """examples:
  brorl attach /shared/runs/first                    follow the log; Ctrl-C ends only the view, not the run
  brorl attach 4711 --lines 500 --no-follow
  brorl attach /shared/runs/first --shell            on the first node, where the driver is, in its container
  brorl attach /shared/runs/first --shell --node 3   on the fourth one; node names work, too
  brorl attach /shared/runs/first --logs node7       what Ray wrote on a node
"""

# Print the Ray logs of a node: its daemons, then the four worker logs written last. Ray's session is below the job's
# TMPDIR, which this step does not have, so the path is read from Ray's own command line (job/ray_node.py).
NODE_LOGS = """folder=""
for process in /proc/[0-9]*; do
  [[ -O $process ]] || continue
  while IFS= read -r -d '' word; do
    [[ $word == --temp-dir=/*/"$0" ]] && folder=${word#*=}
  done 2>/dev/null < "$process/cmdline"
done
cd "$folder/session_latest/logs" 2>/dev/null || {
  echo "no Ray of this job runs on $(hostname)" >&2
  exit 1
}
newest=$(ls -t worker-*.err worker-*.out 2>/dev/null | head -n 4)
tail -n "$1" raylet.out raylet.err $(ls -t gcs_server.out 2>/dev/null) $newest"""


def main(argv: Sequence[str]) -> int:
    """Run `brorl attach`, which shows a run's log or opens a shell on one of its nodes, and return the exit code.

    Where a shell was opened, this is the exit code of the shell. Raises BroRLError, for example when there is no such
    run or node.
    """
    parser = command_parser(
        "attach", "Follow a run's log, open a shell on one of its nodes, or read what Ray wrote there.", EXAMPLES
    )
    parser.add_argument("target", metavar="RUN|JOB", help="a run folder, or the number of a job")
    parser.add_argument("--lines", type=int, default=40, metavar="N", help="start with the last N lines (default: 40)")
    parser.add_argument("--no-follow", action="store_true", help="print these and stop")
    parser.add_argument("--shell", action="store_true", help="open a shell in the job")
    parser.add_argument(
        "--node", metavar="NODE", help="where: a name, or a number from 0 (default: the first, which has the driver)"
    )
    parser.add_argument("--host", action="store_true", help="outside the job's container")
    parser.add_argument("--logs", metavar="NODE", help="the last lines of Ray's logs on this node")
    options = parser.parse_args(list(argv))
    if options.lines < 0:
        raise ConfigError(f"--lines {options.lines}: pass 0 or more")
    if options.node is not None and not options.shell:
        raise ConfigError(
            f"--node {options.node}: says where --shell opens; Ray's logs of a node are --logs {options.node}"
        )
    target = find_target(options.target)
    if options.shell:
        job = running_job(target)
        node = choose_node(job, options.node)
        command = step_command(target, job, node, is_outside=options.host)
        write_error(f"a shell on {node}, in job {job.id}; it ends with the job\n")
        os.execvp("srun", [*command, "--pty", "bash", "-i"])
    if options.logs is not None:
        return show_node_logs(target, options.logs, options.lines, options.host)
    return follow_log(target, options.target, options.lines, not options.no_follow)


def running_job(target: Target) -> slurm.SlurmJob:
    """Return the newest running Slurm job of a training run. Raises ResourceError when none runs."""
    running = [job for job in target.jobs if job.state == "RUNNING"]
    if not running:
        states = ", ".join(f"{job.id} {job.state}" for job in target.jobs) or "it has none in the queue"
        raise ResourceError(f"{target.run or 'this job'}: no job of it runs now ({states})")
    return running[-1]


def choose_node(job: slurm.SlurmJob, wanted: str | None) -> str:
    """Return the node of a Slurm job that `wanted` names, by its name or by its index from 0.

    Without `wanted`, returns the job's first node. Raises ConfigError, which lists the job's nodes, for any other node.
    """
    nodes = slurm.node_names(job.nodes)
    if wanted is None:
        return nodes[0]
    if wanted in nodes:
        return wanted
    if wanted.isdecimal() and int(wanted) < len(nodes):
        return nodes[int(wanted)]
    raise ConfigError(
        f"--node {wanted}: job {job.id} has {', '.join(nodes)}: pass one of these, or a number from 0 to "
        f"{len(nodes) - 1}"
    )


def step_command(
    target: Target,
    job: slurm.SlurmJob,
    node: str,
    is_outside: bool,
) -> list[str]:
    """Return the `srun` command of a one-task step on a node of a running job.

    The step overlaps with the job's own steps. Without --overlap it would wait forever.
    """
    command = [
        "srun",
        "--overlap",
        f"--jobid={job.id}",
        "--nodes=1",
        "--ntasks=1",
        f"--nodelist={node}",
        "--cpu-bind=none",
    ]
    if not is_outside and has_container(target):
        command.append(f"--container-name=brorl-{job.id}")  # the name from job/job_steps.sh
    return command


def has_container(target: Target) -> bool:
    """Return whether the run's job script names a container image."""
    if target.run is None:
        return False
    script = target.run / "launch" / "job.sbatch"
    if not script.is_file():
        return False
    return re.search(r"^export BRORL_CONTAINER=\S", record_text(script, SMALL), re.MULTILINE) is not None


def show_node_logs(
    target: Target,
    node: str,
    lines: int,
    is_outside: bool,
) -> int:
    """Print a node's stored Ray logs, then those that Ray is writing there now, and return an exit code.

    Raises ResourceError when no job of the run is running.
    """
    for path in kept_logs(target, node):
        write_out(f"==> {path}\n")
        write_out("".join(f"{line}\n" for line in last_lines(path, lines)))
    job = running_job(target)
    name = choose_node(job, node)
    command = [
        *step_command(target, job, name, is_outside),
        "bash",
        "-c",
        NODE_LOGS,
        session_name(job.id, name),
        str(lines),
    ]
    return subprocess.run(command, check=False).returncode


def kept_logs(target: Target, node: str) -> list[Path]:
    """Return the stored Ray logs of a node from the newest attempt to train (`try_…`) among all Slurm jobs of a run."""
    if target.run is None:
        return []
    tries = list((target.run / "jobs").glob("*/logs/try_*"))
    if not tries:
        return []
    newest = max(tries, key=lambda folder: folder.stat().st_mtime)
    return sorted(path for path in newest.rglob(f"ray_{node}*") if path.is_file())


def follow_log(
    target: Target,
    name: str,
    lines: int,
    goes_on: bool,
) -> int:
    """Print the end of a run's log, then what is appended while the run continues, and return an exit code.

    Raises ResourceError when the run has no log yet.
    """
    log = newest_log(target)
    if log is None:
        states = [f"{job.id} is {job.state} {job.reason}".strip() for job in target.jobs]
        where = ", ".join(states) or "a run without a job writes to the terminal that it was started in"
        raise ResourceError(f"{target.run or name}: has no log yet: {where}; `brorl status {name}` shows how far it is")
    write_error(f"{log}\n")
    for line in last_lines(log, lines):
        write_out(f"{line}\n")
    if goes_on:
        for text in read_appended_text(log, lambda: _is_still_going_on(name)):
            write_out(without_colours(text))
    return 0


def _is_still_going_on(name: str) -> bool:
    try:
        target = find_target(name)
    except ResourceError:  # Slurm's controller is busy or restarting: ask again later
        return True
    run = None if target.run is None else read_run(target.run)
    return is_going_on(target, run, time.time())


def read_appended_text(
    path: Path,
    goes_on: Callable[[], bool],
    poll_s: float = POLL_S,
    ask_s: float = ASK_S,
) -> Iterator[str]:
    """Yield the text that is appended to a file, until nothing is new and `goes_on` returns False.

    A truncated file is read again from its start. `poll_s`: seconds between reads, `ask_s`: seconds between calls of
    `goes_on`.
    """
    with open_record(path, VAST) as file:
        file.seek(0, 2)
        asked_at = time.monotonic()
        while True:
            block = file.read(BLOCK)
            if block:
                yield block.decode("utf-8", errors="replace")
                continue
            if path.stat().st_size < file.tell():
                file.seek(0)
                continue
            is_time_to_ask = time.monotonic() - asked_at >= ask_s
            if is_time_to_ask and not goes_on():
                yield file.read().decode("utf-8", errors="replace")
                return
            if is_time_to_ask:
                asked_at = time.monotonic()
            time.sleep(poll_s)


def last_lines(path: Path, number: int) -> list[str]:
    """Return the last `number` lines of a file, at most its last 16 MiB."""
    with open_record(path, VAST) as file:
        size = file.seek(0, 2)
        file.seek(max(size - MAX_LINE, 0))
        tail = file.read(MAX_LINE)
    return without_colours(tail.decode("utf-8", errors="replace")).splitlines()[-number:] if number else []
