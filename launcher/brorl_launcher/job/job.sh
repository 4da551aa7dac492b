#!/usr/bin/env bash
# The Slurm job: sourced by slurm/*.sh and by the scripts that `brorl render` writes, with the script's arguments, which
# are Hydra overrides. Runs on the first node of the allocation and needs only bash there. docs/howto/cluster.md explains it.
#
# Takes from the environment (a default in brackets; empty counts as unset):
#   BRORL_CONFIG          name of a YAML of conf/, or the path of one                                            [required]
#   BRORL_ROOT            the code: nemo_brorl/ and conf/, in a folder that all nodes can read                        [SLURM_SUBMIT_DIR]
#   BRORL_PYTHON          path of the interpreter on the nodes (or in the container)                                [BRORL_ROOT/.venv/bin/python; in containers python3]
#   BRORL_RUN             the run folder; if set, it overrides exp_manager.explicit_log_dir                          [the config's]
#   BRORL_JOB_FOLDER      folder of the job's logs, reports and counts; kept over requeues, shared by all nodes
#                                                                                     [BRORL_ROOT/jobs/SLURM_JOB_ID]
#   BRORL_CONTAINER       image for pyxis (--container-image); the job then runs in one named container on each node [none]
#   BRORL_MOUNTS          its mounts, SOURCE:TARGET[:FLAGS],…; BRORL_ROOT, BRORL_RUN and BRORL_JOB_FOLDER are added [none]
#   BRORL_DRIVER          a command to run in place of training, once Ray is up; it gets the job's arguments     [none: train]
#                         A command that compiles kernels outside Ray must name its kernel cache (TRITON_CACHE_DIR, …).
#   BRORL_SPARES          nodes above trainer.num_nodes that may be idle: training takes the first ones that the doctor passes [0]
#   BRORL_SKIP_DOCTOR     1: skip the doctor's checks                                                             [0]
#   BRORL_MAX_RESTARTS    requeues after failures in a row, without a newer checkpoint in between                [3]
#   BRORL_MAX_EXCLUDED    nodes that failed (refused by the doctor, or died), excluded from the next tries, in all [2]
#   BRORL_SETTINGS_S      deadline in seconds of reading the configuration, which starts the container           [1800]
#   BRORL_DOCTOR_S        deadline of the doctor, on all nodes                                                   [1800]
#   BRORL_READY_S         deadline until all nodes have joined Ray                                               [600]
#   BRORL_GRACE_S         seconds that the driver has from USR1 on to save: what #SBATCH --signal gives, less a margin [120]
#   BRORL_PORT_BASE       first of 1,000 ports for Ray, the same on all nodes                                    [20000]
#   BRORL_INTERFACE       network interface for NCCL's and Gloo's sockets, where the default one is wrong        [none]
#   BRORL_OBJECT_STORE_GB memory of Ray's object store on each node, in GB                                       [Ray's: 30 % of it]
#   BRORL_RAY_SLOTS       CPU slots of Ray on each node; a verifier takes a tenth of one             [32, and 2 a GPU]
#   BRORL_CACHE           folder for compiled kernels on each node, of mode 0700                           [TMPDIR/brorl-UID/cache]
#   BRORL_ENVIRONMENT     a file of the site's own, sourced after launcher/brorl_launcher/job/environment.sh                    [none]
#
# Leaves in BRORL_JOB_FOLDER: settings.sh (nodes, run folder), doctor/try_K/NODE.json, logs/, failures, start_error and excluded (counts).
# Exit code: the driver's. 0 done; 2 a mistake in the input; 75 saved to resume later, and the job has requeued itself.

set -u # not -e: each step's exit code is handled explicitly

BRORL_ROOT=${BRORL_ROOT:-$SLURM_SUBMIT_DIR}
if [[ ! -f $BRORL_ROOT/launcher/brorl_launcher/job/job_steps.sh ]]; then
  echo "brorl: BRORL_ROOT=$BRORL_ROOT does not hold the code: submit from the repository, or set BRORL_ROOT" >&2
  exit 2
fi
# shellcheck source=launcher/brorl_launcher/job/environment.sh
source "$BRORL_ROOT/launcher/brorl_launcher/job/environment.sh"
# shellcheck source=launcher/brorl_launcher/job/job_events.sh
source "$BRORL_ROOT/launcher/brorl_launcher/job/job_events.sh"
# shellcheck source=launcher/brorl_launcher/job/job_steps.sh
source "$BRORL_ROOT/launcher/brorl_launcher/job/job_steps.sh"
# shellcheck source=launcher/brorl_launcher/job/job_requeue.sh
source "$BRORL_ROOT/launcher/brorl_launcher/job/job_requeue.sh"

check_given
open_queue
say "job $SLURM_JOB_ID, try $((${SLURM_RESTART_COUNT:-0} + 1)), on $SLURM_JOB_NODELIST; files in $BRORL_JOB_FOLDER"
# Each returns 1 when the job is to end, with `exit_code` and `cause` set.
read_settings "$@" && choose_nodes "$@" && bring_up_ray && drive "$@"
find_out_more
tear_down
finish
