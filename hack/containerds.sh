#!/bin/sh
# Gets the containerds and dockerds that the shim's tests drive: Debian's packages of three releases, unpacked, not
# installed. Their programs run on Debian 12 as they are.
#
#   hack/containerds.sh DIR        (the tests: target/containerd)
#
# DIR/1.6/bin    Debian 12: containerd 1.6, its ctr, its containerd-shim-runc-v2
# DIR/1.7/bin    Debian 13: the same of 1.7, and dockerd 26
# DIR/2/bin      unstable:  the same of 2.x, and dockerd 28
# DIR/cri        the Kubernetes API of containers' runtimes, api.proto; and cni/, plugins that make pods' networks
# DIR/*/version  which exactly, such as `containerd 1.7.24, docker 26.1.5`
#
# What is there is kept. hack/suite.sh tells how they are got.
set -eu

if [ $# != 1 ]; then
    sed -n '5,11s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=hack/suite.sh
. "$here/suite.sh"
mkdir -p "$1"
out=$(cd "$1" && pwd)

# One at a time: tests of several processes may ask at once.
exec 9>"$out/.lock"
flock 9

scratch=$(mktemp -d "$out/.get.XXXXXX")
trap 'rm -rf --one-file-system "$scratch"' EXIT

# unpack NAME SUITE PACKAGE…: sets $root to a directory that has the packages' files.
unpack() {
    name=$1 suite=$2
    shift 2
    echo "hack/containerds.sh: getting $* of Debian's $suite" >&2
    apt=$scratch/$name/apt root=$scratch/$name/root
    mkdir -p "$apt"
    { suite_lists "$apt" "$suite" && suite_get "$apt" "$@"; } >"$out/$name.log" 2>&1 || {
        tail -20 "$out/$name.log" >&2
        exit 1
    }
    suite_unpack "$apt" "$root"
}

# publish NAME VERSION: DIR/NAME. The rename is last: what has its name is whole.
publish() {
    echo "$2" >"$scratch/$1/version"
    rm -rf "$scratch/$1/apt" "$scratch/$1/root"
    rm -rf --one-file-system "${out:?}/$1"
    mv "$scratch/$1" "$out/$1"
}

# get NAME SUITE VERSION PACKAGE…: DIR/NAME, whose containerd's version must begin with VERSION.
get() {
    name=$1 suite=$2 version=$3
    shift 3
    [ -e "$out/$name/version" ] && return
    unpack "$name" "$suite" "$@"
    mkdir "$scratch/$name/bin"
    for program in containerd ctr containerd-shim-runc-v2 dockerd docker docker-proxy; do
        for dir in usr/bin usr/sbin; do
            if [ -f "$root/$dir/$program" ]; then
                mv "$root/$dir/$program" "$scratch/$name/bin/"
            fi
        done
    done
    has=$("$scratch/$name/bin/containerd" --version | sed 's/.* v\{0,1\}\([0-9]*\.[0-9]*\.[0-9]*\).*/\1/')
    case $has in
    "$version"*) ;;
    *)
        echo "hack/containerds.sh: Debian's $suite has containerd $has, not $version: tell this script" >&2
        exit 1
        ;;
    esac
    text="containerd $has"
    if [ -e "$scratch/$name/bin/dockerd" ]; then
        text="$text, docker $("$scratch/$name/bin/dockerd" --version | sed 's/[^0-9]*\([0-9.]*\).*/\1/')"
    fi
    publish "$name" "$text"
}

# The API from unstable: a newer one has all that an older one has. gogoproto's options are for Go alone.
get_cri() {
    [ -e "$out/cri/version" ] && return
    unpack cri sid golang-github-kubernetes-cri-api-dev containernetworking-plugins
    mkdir "$scratch/cri/cni"
    for plugin in loopback bridge host-local; do
        mv "$root/usr/lib/cni/$plugin" "$scratch/cri/cni/"
    done
    grep -v gogoproto "$root/usr/share/gocode/src/k8s.io/cri-api/pkg/apis/runtime/v1/api.proto" \
        >"$scratch/cri/api.proto"
    publish cri "$(cd "$apt/debs" && echo *.deb)"
}

get 1.6 bookworm 1.6. containerd
get 1.7 trixie 1.7. containerd docker.io docker-cli
get 2 sid 2. containerd docker.io docker-cli
get_cri
