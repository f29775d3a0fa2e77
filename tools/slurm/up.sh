#!/usr/bin/env bash
# A real SLURM of two nodes on this machine: munged, slurmctld and two slurmd, on loopback, without systemd, cgroups
# or a database. Needs root. Installs Debian's packages where they are missing. Starting it twice does no harm.
#
#   tools/slurm/up.sh DIR        prints the line `export SLURM_CONF=…` to use; tools/slurm/down.sh DIR stops it
#
# Partition `main` is preempted by `urgent` (grace time 20 s). Every node has a host name of its own (UTS namespace) and
# finds the other one's in an /etc/hosts of its own (mount namespace); the machine's own stay as they are.
set -euo pipefail
die() { echo "slurm: $*" >&2; exit 1; }
[ $# = 1 ] || die "usage: up.sh DIR"
[ "$(id -u)" = 0 ] || die "root is needed: slurmd starts jobs with setuid"
PATH=$PATH:/usr/sbin
NODES=2
PORT=${SLURM_BASE_PORT:-26810}   # not 15000 to 24999, where Lightning puts its ports, by job number:
                                 # so jobs are numbered from here on, and two clusters on a machine do not meet

for program in munged mungekey slurmctld slurmd srun scontrol; do
  if ! command -v $program >/dev/null; then
    echo "slurm: installing Debian's packages" >&2
    command -v apt-get >/dev/null || die "no apt-get here"
    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends \
      slurm-wlm slurm-client munge; } >/dev/null 2>&1 || die "apt-get cannot install slurm-wlm and munge"
    break
  fi
done
unshare -um true 2>/dev/null || die "namespaces are not allowed here (unshare -um)"

mkdir -p "$1"; D=$(cd "$1" && pwd)
mkdir -p "$D"/{etc,run,log,state,spool,munge}
chmod 755 "$D" "$D/run"; chmod 700 "$D/munge" "$D/state"
export SLURM_CONF=$D/etc/slurm.conf

start_time() { # of a process, to tell it from a later one with the same number; fails for a zombie
  local stat; stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  stat=${stat##*) }; set -- $stat; [ "$1" != Z ] && echo "${20}"
}
alive() { local pid began; [ -f "$D/run/$1.id" ] && read -r pid began <"$D/run/$1.id" && [ "$(start_time "$pid")" = "$began" ]; }
start() { # name, command
  local name=$1 pid; shift
  alive "$name" && return
  setsid "$@" </dev/null >>"$D/log/$name.out" 2>&1 &
  pid=$!; sleep 0.2
  echo "$pid $(start_time $pid)" >"$D/run/$name.id" || die "$name does not start, see $D/log/$name.out"
}
await() { # what, command
  local what=$1 end=$((SECONDS + 60)); shift
  until "$@" >/dev/null 2>&1; do [ $SECONDS -lt $end ] || die "$what does not come up, see $D/log"; sleep 0.1; done
}

HOST=$(hostname -s)
if ! alive slurmctld; then
  { cat /etc/hosts; getent hosts "$HOST" >/dev/null || echo "127.0.0.1 $HOST"
    for node in $(seq $NODES); do echo "127.0.0.1 node$node"; done; } >"$D/etc/hosts"
  { cat <<CONF
ClusterName=test
SlurmctldHost=$HOST(127.0.0.1)
SlurmctldPort=$PORT
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$D/run/munge.socket
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation=$D/state
SlurmdSpoolDir=$D/spool/%n
SlurmctldPidFile=$D/run/slurmctld.pid
SlurmdPidFile=$D/run/slurmd-%n.pid
SlurmctldLogFile=$D/log/slurmctld.log
SlurmdLogFile=$D/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,batch_sched_delay=0
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=5
CompleteWait=0
ReturnToService=2
MinJobAge=3600
FirstJobId=$PORT
CONF
    for node in $(seq $NODES); do
      echo "NodeName=node$node NodeAddr=127.0.0.1 Port=$((PORT + node)) CPUs=4 RealMemory=4000 State=UNKNOWN"
    done
    echo "PartitionName=main Nodes=ALL Default=YES State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=20 MaxTime=INFINITE"
    echo "PartitionName=urgent Nodes=ALL State=UP PriorityTier=9 PreemptMode=OFF MaxTime=INFINITE"
  } >"$SLURM_CONF"
  : >"$D/etc/cgroup.conf"
fi

[ -s "$D/munge/key" ] || { mungekey --create --keyfile="$D/munge/key" && chmod 400 "$D/munge/key"; }
start munged munged --foreground --force --num-threads=2 --key-file="$D/munge/key" --socket="$D/run/munge.socket" \
  --pid-file="$D/munge/pid" --seed-file="$D/munge/seed" --log-file="$D/log/munged.log"
await munged sh -c "munge -n -S '$D/run/munge.socket' | unmunge -S '$D/run/munge.socket'"
start slurmctld slurmctld -D -i -f "$SLURM_CONF"
await slurmctld scontrol ping
for node in $(seq $NODES); do
  mkdir -p "$D/spool/node$node"
  start "slurmd-node$node" unshare -um sh -c \
    'hostname "$1" && mount --bind "$2" /etc/hosts && exec slurmd -D -N "$1" -f "$3"' sh "node$node" "$D/etc/hosts" "$SLURM_CONF"
done
registered() { [ "$(sinfo -h -N -p main -o %t | grep -Ec '^(idle|alloc|mix|comp)$')" = $NODES ]; }
await "the nodes" registered
echo "export SLURM_CONF=$SLURM_CONF"
