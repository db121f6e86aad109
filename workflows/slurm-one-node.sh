#!/usr/bin/env bash
# Slurm on this one machine, to try the workflow: writes slurm.conf for this host, and starts munged, slurmctld and slurmd.
# For Debian (apt-get install slurm-wlm munge), as root, on a machine or in a container that runs no other Slurm.
#
#   slurm-one-node.sh start      slurm-one-node.sh stop
set -euo pipefail

state=/var/lib/slurm-one-node
daemons=(slurmd slurmctld munged)

pid_of() { cat "$state/$1.pid" 2>/dev/null || true; }

stop() {
  for name in "${daemons[@]}"; do
    pid=$(pid_of "$name")
    if [ -n "$pid" ]; then kill "$pid" 2>/dev/null || true; fi
  done
}

start() {
  if [ -e /etc/slurm/slurm.conf ] && ! grep -q one-node /etc/slurm/slurm.conf; then
    echo "this machine has a slurm.conf of its own; nothing was changed" >&2
    exit 1
  fi
  host=$(hostname -s)
  mkdir -p "$state/ctld" "$state/d" /run/munge /etc/slurm
  chown munge:munge /run/munge
  read -r cpus memory < <(slurmd -C | sed -n 's/.*CPUs=\([0-9]*\).*RealMemory=\([0-9]*\).*/\1 \2/p')
  cat >/etc/slurm/slurm.conf <<CONF
ClusterName=one-node
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=$state/ctld
SlurmdSpoolDir=$state/d
SlurmctldPidFile=$state/slurmctld.pid
SlurmdPidFile=$state/slurmd.pid
SlurmctldLogFile=$state/slurmctld.log
SlurmdLogFile=$state/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cpus RealMemory=$memory State=UNKNOWN
PartitionName=batch Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
  runuser -u munge -- /usr/sbin/munged --pid-file="/run/munge/munged.pid"
  cp /run/munge/munged.pid "$state/munged.pid"
  slurmctld
  slurmd
  for _ in $(seq 30); do
    if sinfo --noheader --format=%T 2>/dev/null | grep -q idle; then
      sinfo
      return
    fi
    sleep 1
  done
  echo "the node does not become idle; see $state/slurmctld.log and $state/slurmd.log" >&2
  exit 1
}

case ${1:-} in
start) start ;;
stop) stop ;;
*)
  echo "usage: slurm-one-node.sh start|stop" >&2
  exit 2
  ;;
esac
