#!/bin/sh
# Starts a containerd and a dockerd that share nothing with the host's: own sockets, state, images, cgroups and, with
# the bridge that belongs to it, an own network namespace. Returns when both answer; hack/guard.sh ends them.
#
#   hack/engines.sh RUN DATA CGROUP LOGS RUNTIME STORE
#
# RUN      short directory for sockets and state (a socket's path has 108 bytes)
# DATA     images and containers, on a filesystem that can hold overlay uppers
# CGROUP   parent of the containers' cgroups, such as /agentsbx-it-123
# LOGS     where the daemons' output goes
# RUNTIME  the agentsbx binary, registered as Docker's default runtime; runc stays registered beside it
# STORE    its store
#
# With AGENTSBX_IT_REMAP=ID in the environment Docker gives each container a user namespace whose ids begin at ID. The
# daemons then have a mount namespace of their own too, in which /etc/subuid says so: that of RUN/dockerd.pid.
#
# With AGENTSBX_IT_PATH=DIR programs are taken from there first: the daemons of other releases, and shims.
#
# docker -H unix://RUN/docker.sock …, ctr -a RUN/containerd.sock …
set -eu

if [ $# != 6 ]; then
    sed -n '5,20s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
run=$1 data=$2 cgroup=$3 logs=$4 runtime=$5 store=$6

if [ -z "${AGENTSBX_IT_NETNS:-}" ]; then
    exec env AGENTSBX_IT_NETNS=1 unshare --net ${AGENTSBX_IT_REMAP:+--mount} "$0" "$@"
fi

# Debian's own programs, whatever else is installed on the machine.
export PATH="${AGENTSBX_IT_PATH:+$AGENTSBX_IT_PATH:}/usr/sbin:/usr/bin:/sbin:/bin"
mkdir -p "$run" "$data" "$logs"
ip link set lo up
remap=""
if [ -n "${AGENTSBX_IT_REMAP:-}" ]; then
    remap='"userns-remap": "daemon",'
    echo "daemon:$AGENTSBX_IT_REMAP:65536" >"$run/subids"
    for file in /etc/subuid /etc/subgid; do
        mount --bind "$run/subids" $file
    done
fi

# Docker 20.10 would ask for a score that not every machine lets it have; newer ones have no such setting.
score=""
if dockerd --help | grep -q oom-score-adjust; then
    score='"oom-score-adjust": 0,'
fi

cat >"$run/containerd.toml" <<TOML
version = 2
root = "$data/containerd"
state = "$run/containerd"
oom_score = 0
# Names of 1.x and of 2.x: without CRI, and without what listens where all containerds of a machine would.
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime",
                    "io.containerd.podsandbox.controller.v1.podsandbox", "io.containerd.nri.v1.nri"]
[grpc]
  address = "$run/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$data/opt"
TOML
cat >"$run/daemon.json" <<JSON
{
  $remap $score
  "runtimes": { "agentsbx": { "path": "$runtime", "runtimeArgs": ["--store", "$store"] },
                "agentsbx-cow": { "path": "$data/agentsbx-cow" } },
  "default-runtime": "agentsbx",
  "data-root": "$data/docker",
  "exec-root": "$run/docker",
  "pidfile": "$run/dockerd.pid",
  "hosts": ["unix://$run/docker.sock"],
  "containerd": "$run/containerd.sock",
  "cgroup-parent": "$cgroup/docker",
  "exec-opts": ["native.cgroupdriver=cgroupfs"],
  "storage-driver": "overlay2",
  "bip": "172.31.253.1/24"
}
JSON

# answers SECONDS COMMAND…: waits until the command succeeds.
answers() {
    tries=$(($1 * 10))
    shift
    while [ $tries -gt 0 ]; do
        if "$@" >/dev/null 2>&1; then
            return 0
        fi
        sleep 0.1
        tries=$((tries - 1))
    done
    echo "no answer from: $*; the logs are in $logs" >&2
    tail -n 20 "$logs"/containerd.log "$logs"/dockerd.log >&2 || true
    return 1
}

setsid containerd --config "$run/containerd.toml" </dev/null >"$logs/containerd.log" 2>&1 &
echo $! >"$run/containerd.pid"
answers 60 ctr --address "$run/containerd.sock" version
setsid dockerd --config-file "$run/daemon.json" </dev/null >"$logs/dockerd.log" 2>&1 &
answers 120 docker -H "unix://$run/docker.sock" version
