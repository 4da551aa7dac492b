#!/usr/bin/env bash
# Whatever happens to the job becomes a line in one queue: a step began, a step ended, Ray is up, a node is gone, Slurm sent a signal. The
# job reads them one by one, so nothing is polled, nothing sleeps, and nothing happens at the same time. Sourced by launcher/brorl_launcher/job/job.sh.
#
#   started NAME PID     ended NAME CODE          every command begun by `start`
#   up head ADDRESS      ready watch …            said by the head node; by the watch, once all nodes are counted
#   dead NODE reason     lost NODE reason         its Ray ended; it does not answer any more
#   stop job             cancel job               USR1 (save and go on later), TERM (end)
# shellcheck disable=SC2034,SC2154 # the files of the job share their variables

declare -A pids=()  # of what runs, by name
declare -A codes=() # of what has ended
nodes=()            # that train
bad_nodes=()        # that refused or were lost, and are excluded from the next try
cause=""            # why the job ends, where it is not the driver's doing
exit_code=1
asked_to_stop="" cancelled="" head_address="" timer="" # the one that runs; empty again when it has run out, or is not needed any more
num_timers=0

say() { echo "brorl $(date +%T): $*" >&2; }

# End the job: `fail CODE CAUSE`. The first cause is the one that counts. Returns 1.
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
  rm -r "$folder" # the open descriptor is all that is needed
  trap 'echo "stop job" >&"$queue"' USR1
  trap 'echo "cancel job" >&"$queue"' TERM INT
}

# start NAME COMMAND...: run it beside the job; what it writes to standard output are events.
start() {
  local name=$1
  shift
  ( # Slurm signals this shell, too, when the job is to end; it stays, to report the end of its child.
    trap : TERM USR1 INT
    "$@" >&"$queue" {queue}>&- </dev/null &
    child=$!
    echo "started $name $child" >&"$queue"
    until wait "$child"; code=$?; ! kill -0 "$child" 2>/dev/null; do :; done
    echo "ended $name $code" >&"$queue"
  ) &
}

# within SECONDS WHAT: from now on `await` fails after so long.
within() {
  num_timers=$((num_timers + 1))
  timer="timer_$num_timers" deadline_text="$2 within $1 s"
  start "$timer" sleep "$1"
}

in_time() {
  [[ -n ${pids[$timer]:-} ]] && kill "${pids[$timer]}" 2>/dev/null
  timer=""
}

# await KIND NAME: until this event comes; 1 when it will not, because something else ended, or the job is to.
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

# unreached STEP: nodes on which srun could not start a step that has ended, or which Slurm lost meanwhile. Such a step ends on all others,
# too, which have done nothing.
unreached() {
  sleep 1 # what srun said last is on its way into the log
  sed -n -e 's/.*Task launch for .* failed on node \([^ :]*\):.*/\1/p' -e 's/^srun: error: Node failure on \([^ ]*\)$/\1/p' "$logs/$1.log" |
    while read -r list; do scontrol show hostnames "$list"; done
}

# Whether an event that nobody waited for ends the job.
is_fatal() {
  local node
  case $1 in
    dead) fail 1 "node $2 $3" ;;
    lost)
      fail 1 "node $2 $3"
      tail -n 15 "$logs/ray_$2.log" 2>/dev/null | sed "s/^/$2:   /" >&2 # the last that was heard of it
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
