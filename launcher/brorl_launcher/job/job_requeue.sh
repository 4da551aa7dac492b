#!/usr/bin/env bash
# The end of the job: all processes are ended, then the job is over or goes back into the queue. Sourced by launcher/brorl_launcher/job/job.sh.
# shellcheck disable=SC2034,SC2154 # the files of the job share their variables

SEARCH_S=25   # seconds until Ray has noticed a dead node behind a failure
ENDING_S=10   # seconds for Ray to end on all nodes on request
KILLING_S=5

# A driver that fails because a node is lost usually ends before Ray notices the loss: wait for the name of that node.
find_out_more() {
  local code=$exit_code
  [[ -n $cause || -n $asked_to_stop || $code == 0 || $code == 2 || $code == 75 ]] && return 0
  if ((${#nodes[@]} > 1)); then
    say "the driver ended with exit code $code: is a node gone?"
    within "$SEARCH_S" "sign of a node that is gone"
    await ended "$timer" || in_time
  fi
  exit_code=$code cause="the driver ended with exit code $code${cause:+; $cause}"
}

# End everything: kill a driver that still runs, ask Ray's nodes to end, and kill them when they do not.
tear_down() {
  local name
  for name in driver settings doctor; do
    [[ -n ${pids[$name]:-} ]] && kill -TERM "${pids[$name]}" 2>/dev/null # srun kills its tasks
  done
  end_all USR1 "$ENDING_S" || end_all TERM "$KILLING_S" || end_all KILL "$KILLING_S" ||
    say "still there: ${!pids[*]}"
  say "all steps have ended"
}

# end_all SIGNAL SECONDS: signal all steps and wait. Returns 0 when no step is left.
end_all() {
  local name kind detail last_timer
  for name in "${!pids[@]}"; do
    [[ $name == timer_* ]] || kill "-$1" "${pids[$name]}" 2>/dev/null
  done
  within "$2" ""
  last_timer=$timer
  while steps_left && read -r kind name detail <&"$queue"; do
    note "$kind" "$name" "$detail"
    [[ $kind == ended && $name == "$last_timer" ]] && break
  done
  in_time
  ! steps_left
}

steps_left() {
  local name
  for name in "${!pids[@]}"; do
    [[ $name == timer_* ]] || return 0
  done
  return 1
}

finish() {
  local reason
  case $exit_code in
    0) say "done"; exit 0 ;;
    2) say "not tried again: the mistake is in the input"; exit 2 ;;
  esac
  if [[ -n $cancelled ]]; then
    reason=$(job_field Reason) # the state is always COMPLETING here
    # The job never requeues after scancel, and after a preemption Slurm requeues it. After a time limit the job requeues itself.
    [[ $reason == TimeLimit && $exit_code != 75 ]] && go_on_after_failure "the time limit came before the driver had saved"
    [[ $reason == TimeLimit ]] && go_on "saved"
    say "ended by Slurm${reason:+ (reason: $reason)}"
    exit 143
  fi
  [[ $exit_code == 75 ]] && go_on "${cause:-saved}"
  if [[ $exit_code == 130 && -z $asked_to_stop && ${#bad_nodes[@]} == 0 ]]; then
    say "ended by hand: not tried again"
    exit 130
  fi
  # 128 + SIGUSR1: the signal came before the driver handled it.
  [[ -n $asked_to_stop && $exit_code == 138 ]] && go_on "stopped before training began"
  go_on_after_failure "${cause:-the driver ended with exit code $exit_code}"
}

# job_field NAME: print a field of Slurm's record of this job, or nothing.
job_field() {
  local value
  value=$(scontrol --oneliner show job "$SLURM_JOB_ID" 2>/dev/null | sed -n "s/.* $1=\([^ ]*\).*/\1/p")
  [[ $value == "(null)" || $value == None ]] || echo "$value"
}

# Requeue after a failure: at most BRORL_MAX_RESTARTS times in a row without a newer checkpoint, and once after the same error of a start.
go_on_after_failure() {
  local file=$BRORL_JOB_FOLDER/failures num=0 at=-1 newest error before=""
  error=$(start_error)
  [[ -f $BRORL_JOB_FOLDER/start_error ]] && before=$(<"$BRORL_JOB_FOLDER/start_error")
  echo "$error" >"$BRORL_JOB_FOLDER/start_error"
  if [[ -n $error && $error == "$before" && ${#bad_nodes[@]} == 0 ]]; then
    say "the start failed twice in the same way: given up ($error)"
    exit "$exit_code"
  fi
  newest=$(newest_checkpoint)
  [[ -f $file ]] && read -r num at <"$file"
  ((newest > at)) && num=0
  num=$((num + 1))
  echo "$num $newest" >"$file"
  if ((num > BRORL_MAX_RESTARTS)); then
    say "failed $num times in a row, newest checkpoint step $newest, BRORL_MAX_RESTARTS=$BRORL_MAX_RESTARTS: given up ($1)"
    exit "$exit_code"
  fi
  go_on "failure $num since checkpoint $newest, of at most $BRORL_MAX_RESTARTS: $1"
}

# Print the error of a driver that ended before it was ready to train, or nothing.
start_error() {
  grep -qs '^ready after' "$logs/driver.log" && return
  grep -hsE '^(error:|[A-Za-z_.]+Error:) ' "$logs/driver.log" | tail -n 1
}

# Print the step of the newest complete checkpoint, or -1.
newest_checkpoint() {
  local newest=-1 marker step
  for marker in "${run_folder:-/nowhere}"/checkpoints/step_*/COMPLETE; do
    step=${marker%/COMPLETE} step=${step##*/step_}
    [[ -f $marker && $step =~ ^[0-9]+$ ]] && ((step > newest)) && newest=$step
  done
  echo "$newest"
}

# go_on CAUSE: requeue this job. Its number, log and job folder stay.
go_on() {
  local excluded state
  trap '' TERM INT USR1 # requeueing signals this shell and its children
  state=$(job_field JobState)
  # Steps may have failed because the job was cancelled, before its TERM arrived here.
  if [[ -n $state && $state != RUNNING && $(job_field Reason) != TimeLimit ]]; then
    say "Slurm is ending the job ($state): not requeued"
    exit "$exit_code"
  fi
  excluded=$(exclude) || exit "$exit_code"
  if ! scontrol requeue "$SLURM_JOB_ID"; then
    say "could not be requeued (sbatch --requeue? JobRequeue=0?): submit it again to go on ($1)"
    exit "$exit_code"
  fi
  say "requeued ($1)"
  if [[ -n $excluded ]]; then
    if scontrol update JobId="$SLURM_JOB_ID" ExcNodeList="$excluded"; then
      say "excluded from the next tries: $excluded"
    else
      say "Slurm did not take the exclusion of $excluded"
    fi
  fi
  exit "$exit_code"
}

# Print all nodes to exclude, also those of earlier tries and of the submission. Returns 1 when there are too many.
exclude() {
  local file=$BRORL_JOB_FOLDER/excluded num given
  if ((${#bad_nodes[@]} == 0)); then
    return 0 # Slurm's own list stays
  fi
  printf '%s\n' "${bad_nodes[@]}" >>"$file"
  sort -u -o "$file" "$file"
  num=$(wc -l <"$file")
  if ((num > BRORL_MAX_EXCLUDED)); then
    say "$num nodes have failed ($(paste -sd, "$file")), BRORL_MAX_EXCLUDED=$BRORL_MAX_EXCLUDED: given up"
    return 1
  fi
  given=$(job_field ExcNodeList)
  { cat "$file"; [[ -n $given ]] && scontrol show hostnames "$given"; } | sort -u | paste -sd,
}
