#!/bin/sh
# Installs the Debian packages that building and testing need; says and does nothing when all are there.
#
#   hack/deps.sh [build|test|check|demo|bench|suite]...      (default: build test check)
set -eu

build="gcc libc6-dev libseccomp-dev make pkg-config python3"
check="shellcheck"
demo="busybox-static"
bench="busybox-static crun e2fsprogs findutils python3 runc util-linux"
# What containerd's own tests call.
suite="busybox-static debootstrap iproute2 lsof procps python3 runc strace util-linux"
# What the integration tests drive: engines, reference runtimes, what builds the test images, what makes file systems, and
# what kills at a given system call.
test="btrfs-progs busybox-static conmon containerd crun debootstrap docker.io e2fsprogs git iproute2 iptables podman
      python3 runc strace uidmap util-linux xfsprogs"

[ $# -gt 0 ] || set -- build test check
wanted=""
for group in "$@"; do
    case $group in
    build) wanted="$wanted $build" ;;
    test) wanted="$wanted $test" ;;
    check) wanted="$wanted $check" ;;
    demo) wanted="$wanted $demo" ;;
    bench) wanted="$wanted $bench" ;;
    suite) wanted="$wanted $suite" ;;
    *)
        echo "usage: hack/deps.sh [build|test|check|demo|bench|suite]..." >&2
        exit 2
        ;;
    esac
done

if ! command -v dpkg-query >/dev/null; then
    echo "hack/deps.sh knows Debian only; install the counterparts of:$wanted" >&2
    exit 1
fi

missing=""
for package in $wanted; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
    echo "missing Debian packages, install them as root:$missing" >&2
    exit 1
fi

# Engines must not start by themselves as services: the tests start their own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
fi

export DEBIAN_FRONTEND=noninteractive
echo "installing:$missing"
apt-get update -qq
# shellcheck disable=SC2086 # a list of words
apt-get install -y -qq --no-install-recommends $missing >/dev/null
