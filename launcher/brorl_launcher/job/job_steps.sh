#!/usr/bin/env bash
# The steps of the job: settings, the doctor, Ray's head, workers and watch, the driver. Sourced by launcher/brorl_launcher/job/job.sh.
# shellcheck disable=SC2034,SC2154 # the files of the job share their variables

# Set the defaults, and refuse wrong values at once.
check_given() {
  BRORL_CONFIG=${BRORL_CONFIG:-} BRORL_RUN=${BRORL_RUN:-} BRORL_CONTAINER=${BRORL_CONTAINER:-} BRORL_MOUNTS=${BRORL_MOUNTS:-}
  BRORL_DRIVER=${BRORL_DRIVER:-} BRORL_SPARES=${BRORL_SPARES:-0} BRORL_SKIP_DOCTOR=${BRORL_SKIP_DOCTOR:-0}
  BRORL_MAX_RESTARTS=${BRORL_MAX_RESTARTS:-3} BRORL_MAX_EXCLUDED=${BRORL_MAX_EXCLUDED:-2}
  BRORL_SETTINGS_S=${BRORL_SETTINGS_S:-1800} BRORL_DOCTOR_S=${BRORL_DOCTOR_S:-1800} BRORL_READY_S=${BRORL_READY_S:-600}
  BRORL_PORT_BASE=${BRORL_PORT_BASE:-20000} BRORL_OBJECT_STORE_GB=${BRORL_OBJECT_STORE_GB:-0} BRORL_RAY_SLOTS=${BRORL_RAY_SLOTS:-0}
  export BRORL_GRACE_S=${BRORL_GRACE_S:-120}
  local name
  for name in BRORL_SPARES BRORL_MAX_{RESTARTS,EXCLUDED} BRORL_{SETTINGS,DOCTOR,READY,GRACE}_S BRORL_PORT_BASE BRORL_RAY_SLOTS; do
    [[ ${!name} =~ ^[0-9]+$ ]] || { say "$name=${!name} is not a whole number"; exit 2; }
  done
  [[ -n $BRORL_CONFIG ]] || { say "BRORL_CONFIG is not set: write the name of a YAML of conf/, or a path"; exit 2; }
  if [[ -z $BRORL_CONTAINER ]]; then
    BRORL_PYTHON=${BRORL_PYTHON:-$BRORL_ROOT/.venv/bin/python}
    [[ -x $BRORL_PYTHON ]] || { say "BRORL_PYTHON=$BRORL_PYTHON is no program: run scripts/install.sh, or set it"; exit 2; }
  fi
  BRORL_PYTHON=${BRORL_PYTHON:-python3}
  BRORL_JOB_FOLDER=${BRORL_JOB_FOLDER:-$BRORL_ROOT/jobs/$SLURM_JOB_ID}
  try=$((${SLURM_RESTART_COUNT:-0} + 1))
  logs=$BRORL_JOB_FOLDER/logs/try_$try
  mkdir -p "$logs" || exit 1
  mapfile -t allocated < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  name_container
}

# Name one container on each node. Later steps find it by its name. The driver must join the one that Ray's head runs in, because each
# container has its own /tmp with Ray's sockets. The job's number is in the name, or the container of another job could be used.
name_container() {
  container_make=() container_join=()
  [[ -n $BRORL_CONTAINER ]] || return 0
  local mounts="$BRORL_ROOT:$BRORL_ROOT,$BRORL_JOB_FOLDER:$BRORL_JOB_FOLDER,$SLURM_SUBMIT_DIR:$SLURM_SUBMIT_DIR"
  if [[ -n $BRORL_RUN ]]; then
    mkdir -p "$BRORL_RUN" && mounts+=",$BRORL_RUN:$BRORL_RUN"
  fi
  mounts+="${BRORL_MOUNTS:+,$BRORL_MOUNTS}"
  container_join=(--container-name="brorl-$SLURM_JOB_ID" --container-workdir="$SLURM_SUBMIT_DIR")
  container_make=("${container_join[@]}" --container-image="$BRORL_CONTAINER" --container-mounts="$mounts")
}

# on NODES STEP COMMAND...: run one task on each of these nodes (comma-separated). Its output goes into the job's log and into the step's
# own. All steps share the nodes and all of their cores. Without --overlap a second step would wait forever for the first one, and tasks
# would be bound to one core each.
on() {
  local nodes=$1 step=$2
  shift 2
  local list=${nodes//[^,]/}
  exec 2> >(exec tee -a "$logs/$step.log" >&2)
  case $step in
    head | workers | watch) ;; # their standard output consists of events
    *) exec 1>&2 ;;
  esac
  exec srun --overlap --nodes="$((${#list} + 1))" --nodelist="$nodes" --ntasks-per-node=1 --cpu-bind=none --input=none \
    --chdir="$SLURM_SUBMIT_DIR" "$@"
}

# Set the arguments of all commands that read the configuration.
config_arguments() {
  local folder=""
  [[ $BRORL_CONFIG == */* ]] && folder=$(cd "$SLURM_SUBMIT_DIR" && cd "$(dirname "$BRORL_CONFIG")" && pwd)
  arguments=(--config-name "$(basename "$BRORL_CONFIG" .yaml)" ${folder:+--config-path "$folder"} "$@")
  [[ -n $BRORL_RUN ]] && arguments+=("exp_manager.explicit_log_dir=$BRORL_RUN")
  return 0
}

# Read the number of nodes and the run folder. A wrong setting ends the job here, before anything else starts.
read_settings() {
  config_arguments "$@"
  within "$BRORL_SETTINGS_S" "answer from reading the configuration"
  start settings on "${allocated[0]}" settings "${container_make[@]}" \
    "$BRORL_PYTHON" -m brorl_launcher.job.settings --output "$BRORL_JOB_FOLDER/settings.sh" -- "${arguments[@]}"
  await ended settings || return 1
  in_time
  [[ ${codes[settings]} == 0 ]] || { fail "${codes[settings]}" "the configuration cannot be used"; return 1; }
  # shellcheck source=/dev/null
  source "$BRORL_JOB_FOLDER/settings.sh"
}

# Choose the nodes that train: the first ones that pass the doctor's checks.
choose_nodes() {
  local spares=$((${#allocated[@]} - num_nodes))
  if ((spares < 0 || spares > BRORL_SPARES)); then
    fail 2 "the job has ${#allocated[@]} nodes and trainer.num_nodes=$num_nodes: submit with --nodes=$num_nodes, or set BRORL_SPARES"
    return 1
  fi
  passed=("${allocated[@]}")
  if [[ $BRORL_SKIP_DOCTOR != 1 ]]; then
    ask_doctor || return 1
  fi
  if ((${#passed[@]} < num_nodes)); then
    fail 1 "$num_nodes nodes are needed, and the doctor has not passed ${bad_nodes[*]}"
    return 1
  fi
  nodes=("${passed[@]:0:num_nodes}")
  ((${#bad_nodes[@]})) && say "goes on without ${bad_nodes[*]}, which the doctor refused"
  bad_nodes=() # enough nodes are left
}

# Run the doctor. A node passes when its own report says so. A node that hangs, or cannot be reached, leaves no report.
ask_doctor() {
  local reports=$BRORL_JOB_FOLDER/doctor/try_$try node
  mkdir -p "$reports"
  within "$BRORL_DOCTOR_S" "end of the doctor's checks"
  start doctor on "$(IFS=,; echo "${allocated[*]}")" doctor --wait=0 --kill-on-bad-exit=0 "${container_make[@]}" \
    "$BRORL_PYTHON" -m nemo_brorl doctor --job --report "$reports" --ports "$BRORL_PORT_BASE-$((BRORL_PORT_BASE + 999))" \
    "${arguments[@]}"
  if ! await ended doctor; then
    [[ -z $timer && -z $cancelled && -z $asked_to_stop ]] || return 1
    kill -TERM "${pids[doctor]}" # too late: only nodes with a report can pass
    cause=""
    await ended doctor || return 1
  fi
  in_time
  if ! all_passed && leave_out_unreached; then
    passed=()
    ((${#allocated[@]} < num_nodes)) && return 0
    ask_doctor
    return
  fi
  passed=()
  for node in "${allocated[@]}"; do
    if grep -qs '"ok": *true' "$reports/$node.json"; then
      passed+=("$node")
    else
      bad_nodes+=("$node")
      say "$node: refused by the doctor; see $reports/$node.json"
    fi
  done
  if [[ ${codes[doctor]} != 0 && ${#bad_nodes[@]} == 0 ]]; then
    fail 1 "doctor: every node is in order by itself, but not all of them together; see $logs/doctor.log"
  fi
}

all_passed() {
  local node
  for node in "${allocated[@]}"; do
    grep -qs '"ok": *true' "$BRORL_JOB_FOLDER/doctor/try_$try/$node.json" || return 1
  done
}

# Drop the nodes that do not answer srun. Returns 1 when there are none.
leave_out_unreached() {
  local node left=() without
  without=" $(unreached doctor | paste -sd' ') "
  for node in "${allocated[@]}"; do
    if [[ $without == *" $node "* ]]; then
      bad_nodes+=("$node")
      say "node $node does not answer srun; see $logs/doctor.log"
    else
      left+=("$node")
    fi
  done
  ((${#left[@]} < ${#allocated[@]})) || return 1
  allocated=("${left[@]}")
}

# Start the head, then the workers by one srun, then the watch, which waits for all nodes and keeps watching them.
bring_up_ray() {
  local workers=("${nodes[@]:1}")
  local ray=("$BRORL_PYTHON" -m brorl_launcher.job.ray_node --gpus "$gpus_per_node" --ports "$BRORL_PORT_BASE" --logs "$logs"
    --object-store-gb "$BRORL_OBJECT_STORE_GB" --slots "$BRORL_RAY_SLOTS" --interface "${BRORL_INTERFACE:-}")
  within "$BRORL_READY_S" "Ray on ${#nodes[@]} nodes"
  start head on "${nodes[0]}" head --wait=0 --kill-on-bad-exit=0 "${container_make[@]}" "${ray[@]}" --peer "${workers[0]:-}"
  await up head || return 1
  export RAY_ADDRESS="$head_address:$BRORL_PORT_BASE"
  if ((${#workers[@]})); then
    start workers on "$(IFS=,; echo "${workers[*]}")" workers --wait=0 --kill-on-bad-exit=0 "${container_make[@]}" \
      "${ray[@]}" --join "$RAY_ADDRESS"
  fi
  start watch on "${nodes[0]}" watch "${container_join[@]}" "$BRORL_PYTHON" -m brorl_launcher.job.ray_watch --address "$RAY_ADDRESS" \
    --gpus "$gpus_per_node" --nodes "${nodes[@]}"
  await ready watch || return 1
  in_time
  say "Ray is up on ${#nodes[@]} nodes: ${nodes[*]}"
}

# Run the driver. Its exit code is the job's.
drive() {
  local command=("$BRORL_PYTHON" -m nemo_brorl train)
  [[ -n $BRORL_DRIVER ]] && command=(bash -c "exec $BRORL_DRIVER \"\$@\"" driver)
  export BRORL_TRY="$try"
  start driver on "${nodes[0]}" driver --kill-on-bad-exit=1 "${container_join[@]}" "${command[@]}" "${arguments[@]}"
  await ended driver || return 1
  exit_code=${codes[driver]}
}
