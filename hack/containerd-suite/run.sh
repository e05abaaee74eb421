#!/bin/sh
# One run of one suite with one engine, in the namespaces that hack/containerd-suite.sh has made for it:
#
#   run.sh STAGE client|cri runc|agentsbx REGEXP-TO-RUN REGEXP-TO-SKIP
#
# Ends with 0 when the tests came to their end, whatever their verdicts.
set -eu
stage=$1 suite=$2 engine=$3 pattern=$4 skip=$5

# Short paths, the same on every machine: a socket's has at most 108 bytes. What is behind the next mounts is not seen.
mount --bind "$stage" /mnt
stage=/mnt
data=$stage/data
mkdir -p $data/lib $data/tmp
mount -t tmpfs -o mode=755 tmpfs /run
mount --bind $data/lib /var/lib
mount --bind $data/tmp /tmp
# Where a test of the other suite looks whether ids can be mapped.
mkdir -p /var/lib/containerd-test
# The hierarchies anew, each beginning at this run's own cgroup.
awk '$3 ~ /^cgroup/ { print $2, $3, $4 }' /proc/mounts | while read -r point type options; do
    umount "$point"
    mount -t "$type" -o "$options" "$type" "$point"
done
ip link set lo up

export PATH="$stage/$engine:$stage/containerd:$stage/tests/bin:/usr/sbin:/usr/bin:/sbin:/bin"
export AGENTSBX_CONFIG=$stage/agentsbx.toml
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY all_proxy TMPDIR

python3 $stage/registry.py 5555 $stage/busybox.tar &
for _ in $(seq 100); do
    ! python3 -c 'import socket; socket.create_connection(("127.0.0.1", 5555))' 2>/dev/null || break
    sleep 0.2
done

case $engine in
runc) type=io.containerd.runc.v2 ;;
agentsbx) type=io.containerd.agentsbx.v1 ;;
esac
set -- -test.v -test.timeout 24m -test.run "$pattern" -test.skip "$skip"
rc=0
if [ "$suite" = client ]; then
    cd $stage/tests/integration/client
    TEST_RUNTIME=$type $stage/tests/client.test -test.root -no-criu "$@" || rc=$?
else
    mkdir -p /run/suite/cni "/run/suite/certs.d/localhost:5555"
    cat >/run/suite/cni/pods.conflist <<NETWORK
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "pods0", "isGateway": true,
 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
NETWORK
    echo 'server = "http://localhost:5555"' >/run/suite/certs.d/localhost:5555/hosts.toml
    cat >/run/suite/config.toml <<CONFIG
version = 3
root = '/var/lib/suite'
state = '/run/suite/state'
[grpc]
address = '/run/suite/c.sock'
[debug]
level = 'debug'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = 'localhost:5555/pause:3.10'
[plugins.'io.containerd.cri.v1.images'.registry]
config_path = '/run/suite/certs.d'
[plugins.'io.containerd.grpc.v1.cri']
stream_server_address = '127.0.0.1'
stream_server_port = '0'
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
tolerate_missing_hugetlb_controller = true
drain_exec_sync_io_timeout = '10s'
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['$stage/cni']
conf_dir = '/run/suite/cni'
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = '$engine'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.$engine]
runtime_type = '$type'
[plugins.'io.containerd.nri.v1.nri']
disable = true
CONFIG
    # The tests end it, look each second until it is gone, and wait for it to be there again.
    (while :; do
        containerd --config /run/suite/config.toml >>$data/containerd.log 2>&1 || true
        sleep 2
    done) &
    for _ in $(seq 100); do
        [ ! -S /run/suite/c.sock ] || break
        sleep 0.1
    done
    if [ "$engine" = agentsbx ]; then
        python3 $stage/aliases.py /run/suite/state/io.containerd.runtime.v2.task /run/suite/c.sock k8s.io &
    fi
    cd $stage/tests/integration
    $stage/tests/cri.test -cri-endpoint unix:///run/suite/c.sock -containerd-bin containerd \
        -runtime-handler "$engine" "$@" || rc=$?
fi
# What is left behind, for the comparison: some tests do not clean up, or fail before they do.
sleep 2
for process in /proc/[0-9]*; do
    case $(cat "$process/comm" 2>/dev/null) in
    containerd-shim | agentsbx | runc*) tr '\0' ' ' <"$process/cmdline" | sed 's/^/left process: /' && echo ;;
    esac
done
find /sys/fs/cgroup -mindepth 2 -type d | sed 's,/sys/fs/cgroup/[^/]*,left cgroup: ,' | sort -u
# 1 is the tests' own: some have failed.
[ "$rc" -le 1 ] || exit "$rc"
