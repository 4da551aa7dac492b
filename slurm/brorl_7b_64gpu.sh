#!/usr/bin/env bash
# BroRL with a 7B model on 8 nodes of 8 GPUs: FP8, tensor and pipeline parallelism, engines on the same GPUs.
#   sbatch slurm/brorl_7b_64gpu.sh [KEY=VALUE ...]          overrides are Hydra's: trainer.max_steps=10 'data.tasks=[{name: gcd}]'
# Submit from the repository. Pass a site's own options on the command line (sbatch --partition=… --account=… slurm/brorl_7b_64gpu.sh) or
# in SBATCH_PARTITION, SBATCH_ACCOUNT; launcher/brorl_launcher/job/job.sh explains the BRORL_… variables.
#SBATCH --job-name=brorl_7b_64gpu
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --nodes=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue

# --open-mode=append: otherwise a requeue empties the log.  --signal=B:…: save and requeue, 300 s before the time limit.
# No --no-kill: with it a job whose first node dies would stay, without its script, until the time limit.

export BRORL_CONFIG="${BRORL_CONFIG:-brorl_7b_fp8}"
export BRORL_GRACE_S="${BRORL_GRACE_S:-240}" # seconds of these 300 for saving
source "${BRORL_ROOT:-$SLURM_SUBMIT_DIR}/launcher/brorl_launcher/job/job.sh"
