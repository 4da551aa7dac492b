#!/usr/bin/env bash
# power_on.sh FOLDER NUMBER: start a node of the cluster that `start_cluster.sh FOLDER` made, also one that has lost its power. Needs root.
set -euo pipefail

folder=$(realpath -m "$1") name=node$2
rm -rf "${folder:?}/nodes/$name/tmp" # as most machines do when they start
mkdir -p "$folder/nodes/$name/tmp"
chmod 1777 "$folder/nodes/$name/tmp"
ip link set "brorle$2" up
# not `ip netns exec`: it mounts another /sys, without the cgroups that slurmd wants
setsid nsenter --net="/run/netns/brorln$2" unshare --pid --uts --ipc --mount --propagation private --fork --mount-proc --kill-child=KILL \
  "$folder/nodes/$name/init.sh" </dev/null >>"$folder/log/$name.out" 2>&1 &
sed -i "/^$name /d" "$folder/pids"
echo "$name $!" >>"$folder/pids"
echo "$!" >"$folder/nodes/$name.pid"
