#!/usr/bin/env bash
# Slurm's daemons, munge and shellcheck from Debian, where that can be done: root and apt. Exit code 3 with the reason where it cannot.
set -euo pipefail

programs=(slurmctld slurmd sbatch munged shellcheck ip nsenter unshare)
missing=()
for program in "${programs[@]}"; do
  command -v "$program" >/dev/null || missing+=("$program")
done
((${#missing[@]})) || exit 0

refuse() {
  echo "Slurm is not installed (${missing[*]} missing) and cannot be: $1. The tests of tests/cluster are skipped." >&2
  exit 3
}
[[ $(id -u) == 0 ]] || refuse "this is not root"
command -v apt-get >/dev/null || refuse "there is no apt-get"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq >&2 || refuse "apt-get update failed"
apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client munge shellcheck iproute2 util-linux >/dev/null ||
  refuse "apt-get install failed"
