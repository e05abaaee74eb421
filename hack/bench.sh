#!/bin/sh
# Measures the static release binary beside runc, crun and, where it can be had, youki: see docs/benchmarks.md.
#
#   hack/bench.sh [--quick] [--runs N] [--only NAME] [--json FILE] [--list]
#
# AGENTSBX_BIN names another binary to measure, beside which the shim's is; nothing is built then but the benchmarks.
# BENCH_YOUKI=none leaves youki out. BENCH_CONTAINERD=1.6|1.7|2 measures the shims under that release, from
# hack/containerds.sh; without it under the machine's own.
set -eu
cd "$(dirname "$0")/.."

youki=0.7.0

if [ "$(id -u)" != 0 ]; then
    echo "make bench needs root: it makes containers" >&2
    exit 1
fi
export CARGO_TARGET_DIR="$PWD/target"
unset CARGO_BUILD_TARGET
cargo build --quiet --example bench
case " $* " in
*" --list "* | *" --help "*)
    # Nothing is measured, so nothing has to be there.
    exec target/debug/examples/bench --subject . --rootfs . --dir . "$@"
    ;;
esac
hack/images.sh busybox
subject=${AGENTSBX_BIN:-$(hack/build-static.sh)}
peers=""
if [ "${BENCH_YOUKI:-}" != none ]; then
    if [ ! -x target/peers/bin/youki ]; then
        echo "hack/bench.sh: building youki $youki, once" >&2
        CARGO_TARGET_DIR=target/peers/build cargo install --quiet --locked --features v1 --version "$youki" --root target/peers youki ||
            echo "hack/bench.sh: youki could not be built and is left out" >&2
        rm -rf target/peers/build
    fi
    [ ! -x target/peers/bin/youki ] || peers="--peer youki=$PWD/target/peers/bin/youki"
fi
containerd=/usr/bin
if [ -n "${BENCH_CONTAINERD:-}" ]; then
    hack/containerds.sh target/containerd
    containerd=$PWD/target/containerd/$BENCH_CONTAINERD/bin
fi
mkdir -p target/bench

# All happens on a filesystem of its own, made anew: on one that is in use, making a file can take a millisecond, or
# twenty microseconds, by what others have deleted there within the last minutes. Nothing is mounted but in a mount
# namespace of its own, so all of it goes with the last process.
disk=target/bench/disk.img
rm -f $disk
truncate -s 32G $disk
trap 'rm -f $disk' EXIT
trap 'exit 130' INT TERM
mkfs.ext4 -q -F -i 4096 $disk
# crun refuses hosts that have version 2 of the cgroups, with controllers, beside version 1. So all contestants run where
# that mount is not seen, but a plain directory (in which crun then makes a cgroup that is none); the host's own stays as
# it is.
hybrid=/sys/fs/cgroup/unified
if [ -n "$(cat $hybrid/cgroup.controllers 2>/dev/null)" ]; then
    echo "hack/bench.sh: $hybrid is hidden from the contestants: crun refuses hybrid hierarchies" >&2
else
    hybrid=
fi
# State of runtimes and engines is in memory, as on hosts that are in use: where /run is a directory of the disk (a container,
# a sandbox), each file that is replaced there waits for the disk, and the figures are those of its load.
mkdir -p target/bench/disk
# shellcheck disable=SC2016,SC2086 # expanded by the inner shell; a list of words
unshare --mount --propagation private sh -c '
    set -eu
    disk=$1 hybrid=$2
    shift 2
    mount -o loop,noinit_itable "$disk" target/bench/disk
    [ -z "$hybrid" ] || { umount "$hybrid" && mount -t tmpfs none "$hybrid"; }
    [ "$(stat -f -c %T /run)" = tmpfs ] || mount -t tmpfs -o mode=755 none /run
    "$@"' sh "$disk" "$hybrid" \
    target/debug/examples/bench --subject "$subject" --rootfs target/images/busybox.tar --dir target/bench/disk \
    --containerd "$containerd" $peers "$@"
