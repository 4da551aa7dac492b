"""`brorl doctor [--job] [--json FILE] [--config-name NAME] [KEY=VALUE ...]`: is everything there that a run needs?

  --json FILE           write what was found there
  --ports LIST          ports that must be free: 6379,20000-20010
  --all-reduce SECONDS  that an all-reduce may take (60); 0: none is tried
  --job                 on every node of a Slurm job, one task each: srun --ntasks-per-node=1 python -m nemo_brorl
  doctor --job …
  --report FOLDER       with --job: where every node leaves NODE.json (default: doctor/ in the run folder)
  --address HOST[:PORT] with --job: where the nodes meet; default: the first node's name, port 12377 (and the next three
  for all-reduces)
  --deadline SECONDS    with --job: until all nodes have come (120)

Exit code: 0 nothing refuses, though there may be warnings; 2 refused, or a mistake in the input.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 ok, 2 refused or a mistake in the input, 1 a bug."""
    from nemo_brorl.cluster.doctor.command import run

    return run(argv, (__doc__ or "").strip())
