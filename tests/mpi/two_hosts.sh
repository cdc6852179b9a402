#!/usr/bin/env bash
# Runs a program as four MPI processes on two hosts: network namespaces joined by a cable, each with a host name,
# and the second with its own process numbers, so that neither sees the other's processes.
#
#   two_hosts.sh PROGRAM ARGUMENT...     exit status 77: this machine does not allow it
#
# mpirun calls it again in place of ssh: HOST COMMAND...
set -u

name=${SWITCHYARD_HOSTS:-sw$$}

if [ -n "${SWITCHYARD_HOSTS:-}" ]; then
  shift  # the host: there is only one to go to
  exec ip netns exec "$name-b" unshare --uts --pid --fork --mount-proc \
    sh -c 'hostname second; export TMPDIR=$1; cd "$2"; eval "$0"' "$*" "$SWITCHYARD_HOSTS_TMP" "$PWD"
fi

temporary=$(mktemp -d)
remove() {
  ip netns del "$name-a" 2>/dev/null
  ip netns del "$name-b" 2>/dev/null
  rm -rf "$temporary"
}
trap remove EXIT

{
  ip netns add "$name-a" && ip netns add "$name-b" &&
    ip -n "$name-a" link add cable type veth peer name cable netns "$name-b" &&
    ip -n "$name-a" addr add 10.77.0.1/24 dev cable && ip -n "$name-b" addr add 10.77.0.2/24 dev cable &&
    ip -n "$name-a" link set lo up && ip -n "$name-b" link set lo up &&
    ip -n "$name-a" link set cable up && ip -n "$name-b" link set cable up &&
    ip netns exec "$name-b" unshare --uts --pid --fork --mount-proc true
} 2>/dev/null || exit 77

export SWITCHYARD_HOSTS=$name SWITCHYARD_HOSTS_TMP=$temporary
ip netns exec "$name-a" unshare --uts sh -c 'hostname first; exec "$0" "$@"' \
  mpirun --allow-run-as-root --oversubscribe --bind-to none --host 10.77.0.1:2,10.77.0.2:2 -n 4 \
  --mca plm_rsh_agent "$(readlink -f "$0")" --mca oob_tcp_if_include 10.77.0.0/24 \
  --mca btl_tcp_if_include 10.77.0.0/24 --mca btl tcp,vader,self -x SWITCHYARD_FAULT "$@"
