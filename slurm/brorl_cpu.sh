#!/usr/bin/env bash
# The whole system on the CPUs of two nodes, with the small model that `make train` makes: a test of a cluster without GPUs.
#   sbatch slurm/brorl_cpu.sh [KEY=VALUE ...]          overrides are Hydra's: trainer.max_steps=10 'data.tasks=[{name: gcd}]'
# Submit from the repository. Pass a site's own options on the command line (sbatch --partition=… --account=… slurm/brorl_cpu.sh) or
# in SBATCH_PARTITION, SBATCH_ACCOUNT; launcher/brorl_launcher/job/job.sh explains the BRORL_… variables.
#SBATCH --job-name=brorl_cpu
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --nodes=2
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=00:30:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue

# --open-mode=append: otherwise a requeue empties the log.  --signal=B:…: save and requeue, 120 s before the time limit.
# No --no-kill: with it a job whose first node dies would stay, without its script, until the time limit.

export BRORL_CONFIG="${BRORL_CONFIG:-brorl_cpu}"
export BRORL_GRACE_S="${BRORL_GRACE_S:-60}" # seconds of these 120 for saving
source "${BRORL_ROOT:-$SLURM_SUBMIT_DIR}/launcher/brorl_launcher/job/job.sh" trainer.num_nodes=2 "$@"
