#!/usr/bin/env bash
# Stop exactly what `up.sh DIR` started, by process id and start time; nothing by name.
set -uo pipefail
[ $# = 1 ] || { echo "usage: down.sh DIR" >&2; exit 1; }
[ -d "$1/run" ] || exit 0
D=$(cd "$1" && pwd); export SLURM_CONF=$D/etc/slurm.conf
same() { # pid, start time
  local stat; stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  local began=$2; stat=${stat##*) }; set -- $stat; [ "$1" != Z ] && [ "${20}" = "$began" ]
}
# jobs first, so that their processes are ended by those that started them
timeout 10 squeue -h -o %A 2>/dev/null | sort -u | xargs -r timeout 10 scancel 2>/dev/null
for _ in $(seq 100); do [ -z "$(timeout 5 squeue -h 2>/dev/null)" ] && break; sleep 0.2; done
for file in "$D"/run/slurmd-*.id "$D/run/slurmctld.id" "$D/run/munged.id"; do
  [ -f "$file" ] && read -r pid began <"$file" || continue
  same "$pid" "$began" && kill -TERM "$pid"
  for _ in $(seq 100); do same "$pid" "$began" || break; sleep 0.1; done
  same "$pid" "$began" && kill -KILL "$pid"
  rm -f "$file"
done
exit 0
