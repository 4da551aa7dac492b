#!/usr/bin/env bash
# The environment of every process of a job, in one place, each line with its reason. Sourced by launcher/brorl_launcher/job/job.sh; srun passes it on.
# Put a site's own variables into a file and name it in BRORL_ENVIRONMENT. That file is sourced last.

# --- Python
unset PYTHONDONTWRITEBYTECODE    # if set, every actor compiles all its imports at every start
export PYTHONUNBUFFERED=1        # the log shows the output before a crash
export PYTHONSAFEPATH=1          # code comes from BRORL_ROOT, not from the folder where the job was submitted
export PYTHONPATH="$BRORL_ROOT:$BRORL_ROOT/launcher:$BRORL_ROOT/lab:$BRORL_ROOT/graders${PYTHONPATH:+:$PYTHONPATH}"

# --- Ray
export RAY_AUTH_MODE=token       # without it, anyone who reaches the port runs programs as you; "token" also where a ~/.ray/auth_token exists
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_TOKEN            # a new token for every job
export RAY_USAGE_STATS_ENABLED=0 # compute nodes have no internet access, and waiting for it costs seconds
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0 # `ray start --block` would drain for 30 s at the end: as long as Slurm waits before it kills
# A node that lost its power is noticed after some 75 s (five checks that get no answer). A busy one, silent for less than a minute, is kept:
# losing it would end the try of the whole job.
export RAY_health_check_period_ms="${RAY_health_check_period_ms:-5000}"
export RAY_health_check_timeout_ms="${RAY_health_check_timeout_ms:-10000}"
export RAY_health_check_failure_threshold="${RAY_health_check_failure_threshold:-5}"
# Hundreds of processes start at once and import from one file system. Ray ends those that register too late, by default after 60 s.
export RAY_worker_register_timeout_seconds="${RAY_worker_register_timeout_seconds:-180}"
export RAY_num_workers_soft_limit="${RAY_num_workers_soft_limit:-16}"     # idle processes that Ray keeps, not one for each core
export RAY_prestart_worker_first_driver="${RAY_prestart_worker_first_driver:-0}" # 1: the head starts one for each slot before it answers

# --- NCCL
export NCCL_DEBUG="${NCCL_DEBUG:-WARN}"        # names the failed link; silent otherwise
export NCCL_CUMEM_ENABLE="${NCCL_CUMEM_ENABLE:-0}" # CUDA graphs over NCCL's cuMem buffers cost GPU memory (NVIDIA/nccl#1234)
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1       # a rank that lost its peer ends instead of keeping its GPUs until the time limit
if [[ -n ${BRORL_INTERFACE:-} ]]; then         # needed where the first interface is a management network, or a container's bridge
  export NCCL_SOCKET_IFNAME="$BRORL_INTERFACE" GLOO_SOCKET_IFNAME="$BRORL_INTERFACE"
fi

# --- CUDA, Transformer Engine
unset PYTORCH_CUDA_ALLOC_CONF    # expandable segments are several times slower to share by CUDA IPC, which carries new weights
export NVTE_DEBUG="${NVTE_DEBUG:-0}"           # 1 with NVTE_DEBUG_LEVEL=2 shows which attention kernel Transformer Engine uses

# --- vLLM and compilers
export VLLM_NO_USAGE_STATS=1     # compute nodes have no internet access
# Compiled kernels are cached on the node's own disk: 64 processes that write one folder of a shared home corrupt each other's files.
# launcher/brorl_launcher/job/ray_node.py sets the folder, after checking on its node that no other user can have put code there (BRORL_CACHE).
unset TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR VLLM_CACHE_ROOT
export TORCHINDUCTOR_COMPILE_THREADS="${TORCHINDUCTOR_COMPILE_THREADS:-4}" # of each process; by default up to 32, and a node has 16 processes
export TOKENIZERS_PARALLELISM=false # tokenizers fork into threads in every worker, and warn about it

# --- Slurm
# Every srun of the job would take the job's numbers of tasks, and each one sets its own. SLURM_EXACT would leave each step
# one core of its node and no GPU.
unset SLURM_EXACT SLURM_NTASKS SLURM_NPROCS SLURM_NTASKS_PER_NODE SLURM_TASKS_PER_NODE SLURM_CPUS_PER_TASK
export SLURM_EXPORT_ENV=ALL      # after `sbatch --export=…`, srun would pass on those variables only, and none of this file

if [[ -n ${BRORL_ENVIRONMENT:-} ]]; then
  # shellcheck source=/dev/null
  source "$BRORL_ENVIRONMENT" || exit 2
fi
