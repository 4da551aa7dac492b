#!/usr/bin/env bash
# Each event of the job becomes a line in one queue: a step started or ended, Ray is up, a node is lost, Slurm sent a signal. The job
# reads them one by one, so nothing is polled, nothing sleeps, and no two events are handled at once. Sourced by launcher/brorl_launcher/job/job.sh.
#
#   started NAME PID     ended NAME CODE          every command started by `start`
#   up head ADDRESS      ready watch …            from the head node; from the watch, once all nodes have joined
#   dead NODE reason     lost NODE reason         its Ray ended; its host does not answer
#   stop job             cancel job               USR1 (save and resume later), TERM (end)
# shellcheck disable=SC2034,SC2154 # the files of the job share their variables

declare -A pids=()  # of running commands, by name
declare -A codes=() # exit codes of ended commands, by name
nodes=()            # nodes that train
bad_nodes=()        # nodes that failed the doctor or were lost, excluded from the next try
cause=""            # why the job ends, if not by its driver
exit_code=1
asked_to_stop="" cancelled="" head_address="" timer="" # name of the running timer; empty after it has run out or was stopped
num_timers=0

say() { echo "brorl $(date +%T): $*" >&2; }

# fail CODE CAUSE: end the job. Only the first cause counts. Returns 1.
fail() {
  if [[ -z $cause ]]; then
    exit_code=$1 cause=$2
    say "$cause"
  fi
  return 1
}

open_queue() {
  local folder
  folder=$(mktemp -d) || exit 1
  mkfifo "$folder/queue"
  exec {queue}<>"$folder/queue"
  rm -r "$folder" # the open descriptor is enough
  trap 'echo "stop job" >&"$queue"' USR1
  trap 'echo "cancel job" >&"$queue"' TERM INT
}

# start NAME COMMAND...: run the command in the background. Its standard output consists of events.
start() {
  local name=$1
  shift
  ( # Slurm also signals this shell when the job has to end. It stays to report the end of its child.
    trap : TERM USR1 INT
    "$@" >&"$queue" {queue}>&- </dev/null &
    child=$!
    echo "started $name $child" >&"$queue"
    until wait "$child"; code=$?; ! kill -0 "$child" 2>/dev/null; do :; done
    echo "ended $name $code" >&"$queue"
  ) &
}

# within SECONDS WHAT: start a timer, after which `await` fails.
within() {
  num_timers=$((num_timers + 1))
  timer="timer_$num_timers" deadline_text="$2 within $1 s"
  start "$timer" sleep "$1"
}

in_time() {
  [[ -n ${pids[$timer]:-} ]] && kill "${pids[$timer]}" 2>/dev/null
  timer=""
}

# await KIND NAME: wait for this event. Returns 1 when it cannot come, because another command ended, or the job has to.
await() {
  local kind name detail
  while read -r kind name detail <&"$queue"; do
    note "$kind" "$name" "$detail"
    [[ $kind == "$1" && $name == "$2" ]] && return 0
    is_fatal "$kind" "$name" "$detail" && return 1
  done
  fail 1 "the queue of events was closed"
}

note() {
  case $1 in
    started)
      pids[$2]=$3
      [[ $2 == driver && -n $asked_to_stop ]] && kill -USR1 "$3"
      [[ $2 == timer_* && $2 != "$timer" ]] && kill "$3" 2>/dev/null
      ;;
    ended)
      unset "pids[$2]"
      codes[$2]=$3
      ;;
    up) head_address=$3 ;;
    stop) asked_to_stop=1 ;;
    cancel) cancelled=1 ;;
    lost) bad_nodes+=("$2") ;;
  esac
}

# unreached STEP: print the nodes on which srun could not start a step that has ended, or which Slurm lost meanwhile. Such a step ends on
# all other nodes, too, which are not at fault.
unreached() {
  sleep 1 # the last output of srun is still on its way into the log
  sed -n -e 's/.*Task launch for .* failed on node \([^ :]*\):.*/\1/p' -e 's/^srun: error: Node failure on \([^ ]*\)$/\1/p' "$logs/$1.log" |
    while read -r list; do scontrol show hostnames "$list"; done
}

# Return 0 when an event that the job did not wait for ends the job.
is_fatal() {
  local node
  case $1 in
    dead) fail 1 "node $2 $3" ;;
    lost)
      fail 1 "node $2 $3"
      tail -n 15 "$logs/ray_$2.log" 2>/dev/null | sed "s/^/$2:   /" >&2 # its last log lines
      ;;
    cancel) fail 143 "Slurm ends the job (TERM)" ;;
    stop)
      if [[ -n ${pids[driver]:-} ]]; then
        say "asked to stop (USR1): the driver has ${BRORL_GRACE_S} s to save"
        kill -USR1 "${pids[driver]}"
        return 1
      fi
      fail 75 "asked to stop (USR1) before training began"
      ;;
    ended)
      if [[ $2 == timer_* ]]; then
        [[ $2 == "$timer" ]] || return 1
        timer=""
        fail 1 "no $deadline_text"
      else
        for node in $(unreached "$2"); do
          bad_nodes+=("$node")
          fail 1 "node $node does not answer srun; see $logs/$2.log"
        done
        fail 1 "the $2 step ended with exit code $3; see $logs/$2.log"
      fi
      ;;
    *) return 1 ;;
  esac
  return 0
}
