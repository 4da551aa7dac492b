#!/usr/bin/env bash
# stop_cluster.sh FOLDER: end what `start_cluster.sh FOLDER` started: jobs, daemons and nodes by their process numbers, networks. The folder
# stays, for its logs.
set -uo pipefail

folder=$(realpath -m "$1")
[[ -e $folder/pids ]] || { echo "no cluster in $folder"; exit 0; }
export SLURM_CONF=$folder/slurm.conf

timeout 10 scancel --signal=KILL --full --partition=batch,urgent 2>/dev/null
timeout 10 scancel --partition=batch,urgent 2>/dev/null
# Nodes first, by killing their first process: everything in them goes with it.
mapfile -t daemons < <(tac "$folder/pids")
for signal in node:KILL slurmctld:TERM munged:TERM; do
  for daemon in "${daemons[@]}"; do
    read -r name pid <<<"$daemon"
    [[ $name == "${signal%:*}"* ]] && kill "-${signal#*:}" "$pid" 2>/dev/null
  done
done
for daemon in "${daemons[@]}"; do
  read -r name pid <<<"$daemon"
  for ((i = 0; i < 100; i++)); do
    kill -0 "$pid" 2>/dev/null || break
    ((i == 50)) && kill -KILL "$pid" 2>/dev/null
    sleep 0.1
  done
  kill -0 "$pid" 2>/dev/null && echo "$name ($pid) is still there" >&2
done
for link in $(ip -o link show | awk -F'[ :@]+' '$2 ~ /^brorle[0-9]+$/ { print $2 }'); do ip link del "$link"; done
for network in $(ip netns list | awk '/^brorln[0-9]+/ { print $1 }'); do ip netns del "$network"; done
ip link del brorltest 2>/dev/null
for ((i = 0; i < 50; i++)); do # proctrack/cgroup leaves empty groups
  find /sys/fs/cgroup/freezer/slurm_node* -depth -type d -exec rmdir {} + 2>/dev/null
  compgen -G '/sys/fs/cgroup/freezer/slurm_node*' >/dev/null || break
  sleep 0.1
done
rm -f "$folder/pids"
