#!/usr/bin/env bash
# start_cluster.sh FOLDER: a Slurm cluster on this machine, gone without a trace after `stop_cluster.sh FOLDER`. Needs root; no systemd.
#
# Every virtual node is a set of namespaces with a host name, an address, a /tmp, a /dev/shm and processes of its own; the rest of the
# disk is their shared file system. Killing its first process (FOLDER/nodes/NODE.pid) is what pulling its power cord is elsewhere. GPUs are
# devices without a driver: Slurm counts and assigns them, nothing can compute on them. Afterwards: export SLURM_CONF=FOLDER/slurm.conf
#
# NODES [8] GPUS [8] CPUS [4], of each node; SUBNET [10.78.0]; GRACE [0], seconds that a preempted job has.
set -euo pipefail

folder=$(realpath -m "$1")
NODES=${NODES:-8} GPUS=${GPUS:-8} CPUS=${CPUS:-4} SUBNET=${SUBNET:-10.78.0} GRACE=${GRACE:-0}
bridge=brorltest
root=$(cd "$(dirname "$0")/../.." && pwd) # this repository
case $folder in
  /tmp | /tmp/* | /dev/shm/*) echo "$folder would be hidden in the nodes, which have a /tmp of their own: take /var/tmp" >&2; exit 2 ;;
esac
[[ $(id -u) == 0 ]] || { echo "needs root" >&2; exit 2; }
[[ ! -e $folder/pids ]] || { echo "$folder holds a cluster: stop_cluster.sh $folder" >&2; exit 2; }
ip link show "$bridge" >/dev/null 2>&1 && { echo "another cluster is up (network bridge $bridge)" >&2; exit 2; }

# Links of a cluster that was not stopped. Its nodes are gone, or the bridge would be there.
for link in $(ip -o link show | awk -F'[ :@]+' '$2 ~ /^brorle[0-9]+$/ { print $2 }'); do ip link del "$link"; done

mkdir -p "$folder"/{munge,state,nodes,log,devices,shared}
chmod 755 "$folder"
chmod 1777 "$folder/shared"
: >"$folder/pids" # NAME PID, in the order of their start

# Run a daemon by itself and note its process.
daemon() {
  local name=$1
  shift
  setsid "$@" </dev/null >"$folder/log/$name.out" 2>&1 &
  echo "$name $!" >>"$folder/pids"
}

# A key and a socket of our own: nothing of /etc/munge or /run is touched.
start_munge() {
  head -c 1024 /dev/urandom >"$folder/munge/key"
  chmod 400 "$folder/munge/key"
  chown -R munge:munge "$folder/munge"
  chmod 711 "$folder/munge"
  daemon munged setpriv --reuid munge --regid munge --clear-groups munged --foreground --force --num-threads=2 \
    --key-file="$folder/munge/key" --socket="$folder/munge/socket" --pid-file="$folder/munge/pid" --seed-file="$folder/munge/seed" \
    --log-file="$folder/munge/log"
}

# proctrack/cgroup is what clusters run; it needs the v1 freezer here.
process_tracking() { if [[ -w /sys/fs/cgroup/freezer/tasks ]]; then echo cgroup; else echo linuxproc; fi; }

write_configuration() {
  local i
  for ((i = 0; i < GPUS; i++)); do
    mknod -m 666 "$folder/devices/nvidia$i" c 1 3 # Slurm wants character devices; these are /dev/null
  done
  echo "Name=gpu Type=h100 File=$folder/devices/nvidia[0-$((GPUS - 1))]" >"$folder/gres.conf"
  printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' >"$folder/cgroup.conf"
  : >"$folder/plugstack.conf"
  cat >"$folder/slurm.conf" <<END
ClusterName=brorltest
SlurmctldHost=$(hostname)($SUBNET.1)
SlurmctldPort=16827
SlurmdPort=16828
AuthType=auth/munge
# A requeued job may start again after the life of its credential; the default is two minutes.
AuthInfo=socket=$folder/munge/socket,cred_expire=5
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/nodes/%n/spool
SlurmctldPidFile=$folder/state/slurmctld.pid
SlurmdPidFile=$folder/nodes/%n/slurmd.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd-%n.log
PlugStackConfig=$folder/plugstack.conf
ProctrackType=proctrack/$(process_tracking)
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2,sched_min_interval=0
# Refuse what can never run, rather than let it wait for ever.
EnforcePartLimits=ALL
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobRequeue=1
ReturnToService=2
KillWait=10
SlurmdTimeout=120
MessageTimeout=10
BatchStartTimeout=30
MinJobAge=3600
MailProg=/bin/true
GresTypes=gpu
# Believe what is said of the nodes below.
SlurmdParameters=config_overrides
END
  cp /etc/hosts "$folder/hosts"
  for ((i = 0; i < NODES; i++)); do
    echo "$SUBNET.$((10 + i)) node$i" >>"$folder/hosts"
    echo "NodeName=node$i NodeAddr=$SUBNET.$((10 + i)) CPUs=$CPUS RealMemory=64000 Gres=gpu:h100:$GPUS State=UNKNOWN"
  done >>"$folder/slurm.conf"
  cat >>"$folder/slurm.conf" <<END
PartitionName=batch Nodes=ALL Default=YES MaxTime=4:00:00 PriorityTier=1 PreemptMode=REQUEUE GraceTime=$GRACE State=UP
PartitionName=urgent Nodes=ALL MaxTime=4:00:00 PriorityTier=10 PreemptMode=OFF State=UP
END
}

# What the first process of a node does.
write_node() {
  local name=$1
  mkdir -p "$folder/nodes/$name"/{spool,tmp}
  chmod 1777 "$folder/nodes/$name/tmp"
  local show_root="" # where the nodes' own /tmp would hide it
  [[ $root == /tmp/* ]] && show_root="mkdir -p $folder/nodes/$name$root && mount --bind $root $folder/nodes/$name$root"
  cat >"$folder/nodes/$name/init.sh" <<END
#!/usr/bin/env bash
hostname $name
mount -t tmpfs -o size=8g,mode=1777 shm /dev/shm
mount --bind $folder/hosts /etc/hosts
$show_root
mount --rbind $folder/nodes/$name/tmp /tmp
export SLURM_CONF=$folder/slurm.conf
cd /
slurmd -D -N $name &
daemon=\$!
while kill -0 \$daemon 2>/dev/null; do wait \$daemon; done # reaps orphans meanwhile, as a first process does
END
  chmod +x "$folder/nodes/$name/init.sh"
}

start_node() {
  local i=$1 name=node$1 network=brorln$1
  write_node "$name"
  ip netns add "$network"
  ip link add "brorle$i" type veth peer name eth0 netns "$network"
  ip link set "brorle$i" master "$bridge" up
  ip -n "$network" link set lo up
  ip -n "$network" addr add "$SUBNET.$((10 + i))/24" dev eth0
  ip -n "$network" link set eth0 up
  ip -n "$network" route add default via "$SUBNET.1"
  "$(dirname "$0")/power_on.sh" "$folder" "$i"
}

await() { # SECONDS WHAT COMMAND...
  local ends=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    ((SECONDS < ends)) || { echo "no $what; see $folder/log" >&2; exit 1; }
    sleep 0.1
  done
}

nodes_are_idle() { [[ $(sinfo -h -p batch -t idle -o %D 2>/dev/null) == "$NODES" ]]; }

start_munge
write_configuration
export SLURM_CONF=$folder/slurm.conf
ip link add "$bridge" type bridge
ip addr add "$SUBNET.1/24" dev "$bridge"
ip link set "$bridge" up
await 20 "munge socket" test -S "$folder/munge/socket"
daemon slurmctld slurmctld -D -c
for ((i = 0; i < NODES; i++)); do start_node "$i"; done
await 60 "idle nodes" nodes_are_idle
echo "$NODES nodes x $GPUS GPUs, proctrack/$(process_tracking): export SLURM_CONF=$SLURM_CONF"
