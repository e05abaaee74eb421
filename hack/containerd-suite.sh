#!/bin/sh
# Runs containerd's own integration tests under our shim and under the stock one for runc, and tells the verdicts that
# differ. About 3 GB below target/ the first time, and ten minutes each time; as root.
#
#   hack/containerd-suite.sh [client|cri|all] [-run REGEXP]      (default: all)
#
# client   containerd's client: tasks, execs, their input and output, events, restarts of containerd
# cri      the plugin for Kubernetes: pods, containers, logs, statistics, volumes, restarts of containerd
#
# The tests are those of the package golang-github-containerd-containerd-dev of Debian's unstable release, which has the
# containerd that they drive too (hack/containerds.sh). The stock shim has this machine's runc.
#
# Each test that has not the same verdict is told, with the reason that hack/containerd-suite.known gives for it. It ends
# with 1 where ours fails what the stock one passes and that list has no reason, or has one for a test that passes now.
#
# AGENTSBX_BIN names the runtime, beside which its shim is; otherwise a debug build is made. The output of the tests is
# kept in target/suite/log.
set -eu
cd "$(dirname "$0")/.."
here=$PWD/hack

usage() {
    sed -n '5,8s/^# \{0,1\}//p' "$here/containerd-suite.sh" >&2
    exit 2
}
suites="client cri" pattern=.
case ${1:-} in
client | cri) suites=$1 && shift ;;
all) shift ;;
esac
case $#:${1:-} in
0:) ;;
2:-run) pattern=$2 ;;
*) usage ;;
esac
if [ "$(id -u)" != 0 ]; then
    echo "hack/containerd-suite.sh needs root: it makes containers" >&2
    exit 1
fi
if ! grep -q '^cgroup /sys/fs/cgroup/memory ' /proc/mounts; then
    echo "hack/containerd-suite.sh: the tests get cgroups of their own below version 1's hierarchies; this machine has none" >&2
    exit 1
fi

# Not what is asked of a test of a shim, or not to be had here. Each with its reason:
#   BindLowPort                   never ends with Debian 12's runc
#   Snapshot … Lease, ImageLoad   images and their storage: no shim is asked
#   ImagePullTimeout              wants a registry that is slow in a certain way, on the internet
#   Upgrade                       wants the releases before, downloaded
#   Nri                           wants a plugin of the node's resources, which the Debian package has not
#   RunPodSandboxWithS … Backoff  want a shim, or a network, that fails when told: it would not be ours
skip_client='TestBindLowPort|TestSnapshot|TestImport|TestExport|TestImagePull|TestImageUsage|TestImageIsUnpacked'
skip_client="$skip_client|TestTransfer|TestConvert|TestContent|TestLease"
skip_cri='TestCRIImagePullTimeout|TestUpgrade|TestNri|TestImageLoad|TestRunPodSandboxWithS|TestRunPodSandboxAnd'
skip_cri="$skip_cri|TestContainerdRestartSandboxRecover|TestSandboxStopWithNilCNIResult|ShouldBackoffExitEvent"

out=$PWD/target/suite
mkdir -p "$out/log"
# One at a time: they would take each other's addresses.
exec 9>"$out/.lock"
flock 9

"$here/deps.sh" build suite
"$here/containerds.sh" target/containerd
"$here/images.sh" busybox
"$here/containerd-suite/get.sh" target/suite target/containerd/2/version
if [ -z "${AGENTSBX_BIN:-}" ]; then
    env -u CARGO_BUILD_TARGET CARGO_TARGET_DIR="$PWD/target" cargo build --quiet --bins
    AGENTSBX_BIN=target/debug/agentsbx
fi

# What a run sees as /mnt: programs, tests, images, and a directory for what it writes.
stage=$(mktemp -d "$out/.run.XXXXXX")
group=agentsbx-suite-$$
run=
remove_groups() {
    for _ in $(seq 50); do
        groups=$(find /sys/fs/cgroup -mindepth 2 -maxdepth 2 -name "$group")
        [ -n "$groups" ] || return 0
        # shellcheck disable=SC2086 # a list of words
        find $groups -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.2
    done
    echo "hack/containerd-suite.sh: cgroups are left: $groups" >&2
}
put_away() {
    # With it goes the first process of the namespaces, and with that one all others.
    [ -z "$run" ] || kill -KILL "$run" 2>/dev/null || true
    remove_groups
    rm -rf --one-file-system "$stage"
}
trap put_away EXIT
trap 'exit 130' INT TERM
mkdir -p "$stage/agentsbx" "$stage/runc"
install -m 755 "$AGENTSBX_BIN" "$stage/agentsbx/agentsbx"
install -m 755 "$(dirname "$AGENTSBX_BIN")/containerd-shim-agentsbx-v1" "$stage/agentsbx"
# One test calls the runtime by this name, behind the shim's back.
ln -s agentsbx "$stage/agentsbx/runc"
cp -al target/containerd/2/bin "$stage/containerd"
cp -al target/containerd/cri/cni "$stage/cni"
cp -al "$out/tests" "$stage/tests"
cp "$here/containerd-suite/run.sh" "$here"/containerd-suite/*.py target/images/busybox.tar "$stage"
# The suite knows runc's rules, not those of the strict profile.
echo 'profile = "oci"' >"$stage/agentsbx.toml"

for suite in $suites; do
    if [ "$suite" = client ]; then skip=$skip_client; else skip=$skip_cri; fi
    for engine in runc agentsbx; do
        echo "hack/containerd-suite.sh: $suite, $engine" >&2
        # Namespaces of its own: the tests end containerd by its name, use fixed paths and ports, and leave things. With
        # the first process of the run all others end, and with the last the mounts and the network go.
        rc=0
        # shellcheck disable=SC2016 # expanded by the inner shell
        sh -c '
            set -eu
            group=$1
            shift
            for hierarchy in $(awk '\''$3 ~ /^cgroup/ { print $2 }'\'' /proc/mounts); do
                mkdir -p "$hierarchy/$group"
                # A new set of processors is empty, and takes no process.
                for file in cpuset.cpus cpuset.mems; do
                    [ ! -e "$hierarchy/$group/$file" ] || cat "$hierarchy/$file" >"$hierarchy/$group/$file"
                done
                echo $$ >"$hierarchy/$group/cgroup.procs"
            done
            exec unshare --mount --net --pid --cgroup --fork --kill-child --mount-proc "$@"' sh \
            "$group" sh "$stage/run.sh" "$stage" "$suite" "$engine" "$pattern" "$skip" \
            >"$out/log/$suite-$engine.log" 2>&1 9>&- </dev/null &
        run=$!
        # In the background, so that a signal is not kept waiting.
        wait "$run" || rc=$?
        run=
        remove_groups
        if [ "$rc" != 0 ]; then
            tail -20 "$out/log/$suite-$engine.log" >&2
            echo "hack/containerd-suite.sh: the tests could not be run (code $rc): $out/log/$suite-$engine.log" >&2
            exit 1
        fi
        rm -rf --one-file-system "$stage/data"
    done
done
# shellcheck disable=SC2086 # a list of words
python3 "$here/containerd-suite/verdicts.py" "$here/containerd-suite.known" "$out/log" $suites
