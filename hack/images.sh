#!/bin/sh
# Builds the test images, once, below target/images (or $AGENTSBX_IMAGES); prints nothing but progress on stderr.
#
#   hack/images.sh [busybox] [pause] [debian] [work]       (default: all)
#
# busybox.tar         root filesystem of one static busybox, as a plain tar
# busybox.image.tar   the same as localhost/agentsbx-test/busybox:latest, for docker, ctr and podman to load
# pause.image.tar     the same files, but what it runs only waits: the first container of a pod
# debian.image.tar    the host's own Debian suite with python3, pip, git, gcc and make, as
#                     localhost/agentsbx-test/debian:latest (half a gigabyte, so not kept as a plain tar too)
# work/rootfs         root filesystem with what agents work with, by hack/work-image.sh; made anew when that is changed
# agentsbx_probe-1.0-py3-none-any.whl   a wheel with one module, for pip to install without a network
set -eu

here=$(cd "$(dirname "$0")" && pwd)
out=${AGENTSBX_IMAGES:-$here/../target/images}
mkdir -p "$out"
out=$(cd "$out" && pwd)

# One builder at a time: tests of several processes may ask at once.
exec 9>"$out/.lock"
flock 9

scratch=$(mktemp -d "$out/.build.XXXXXX")
trap 'rm -rf --one-file-system "$scratch"' EXIT

# image NAME: NAME.image.tar from the scratch NAME.tar. The rename is last: what has its name is whole.
image() {
    python3 "$here/image.py" "$scratch/$1.tar" "localhost/agentsbx-test/$1:latest" "$scratch/$1.image.tar"
    mv "$scratch/$1.image.tar" "$out/$1.image.tar"
}

build_busybox() {
    [ -e "$out/busybox.tar" ] && return
    root=$scratch/busybox
    for dir in bin dev etc home/user lib mnt proc root run sbin sys tmp usr/bin usr/sbin var/tmp; do
        mkdir -p "$root/$dir"
    done
    install -m 755 "$(command -v busybox)" "$root/bin/busybox"
    for applet in $("$root/bin/busybox" --list); do
        [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
    done
    printf 'root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n' >"$root/etc/passwd"
    printf 'root:x:0:\nuser:x:1000:\nextra:x:2000:user\n' >"$root/etc/group"
    chmod 1777 "$root/tmp" "$root/var/tmp"
    chmod 700 "$root/root"
    chown 1000:1000 "$root/home/user"
    tar -C "$root" --numeric-owner --sort=name --mtime=@0 -cf "$scratch/busybox.tar" .
    image busybox
    mv "$scratch/busybox.tar" "$out/busybox.tar"
}

build_pause() {
    [ -e "$out/pause.image.tar" ] && return
    build_busybox
    python3 "$here/image.py" "$out/busybox.tar" localhost/agentsbx-test/pause:latest "$scratch/pause.image.tar" \
        --cmd sleep 1000000000
    mv "$scratch/pause.image.tar" "$out/pause.image.tar"
}

build_debian() {
    [ -e "$out/debian.image.tar" ] && return
    # shellcheck source=/dev/null
    suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
    # Those that the host itself is installed from: whoever runs this can reach them.
    url=$(python3 "$here/mirror.py" "$suite")
    # shellcheck source=hack/proxy.sh
    . "$here/proxy.sh"
    echo "hack/images.sh: building the Debian test image ($suite), about two minutes" >&2
    if ! debootstrap --variant=minbase --include=python3,python3-pip,git,gcc,libc6-dev,make \
        "$suite" "$scratch/debian" "$url" >"$out/debian.log" 2>&1; then
        tail -20 "$out/debian.log" >&2
        exit 1
    fi
    rm -rf "$scratch"/debian/var/cache/apt/archives/*.deb "$scratch"/debian/var/lib/apt/lists/* "$scratch"/debian/dev/*
    tar -C "$scratch/debian" --numeric-owner --one-file-system -cf "$scratch/debian.tar" .
    image debian
}

build_work() {
    key=$(cat "$here/work-image.sh" /etc/debian_version | sha256sum)
    [ "$(cat "$out/work/key" 2>/dev/null)" != "$key" ] || return 0
    echo "hack/images.sh: building the image for honest work, about four minutes" >&2
    mkdir -m 700 "$scratch/work"
    if ! "$here/work-image.sh" "$scratch/work/rootfs" >"$out/work.log" 2>&1; then
        tail -20 "$out/work.log" >&2
        exit 1
    fi
    echo "$key" >"$scratch/work/key"
    rm -rf --one-file-system "$out/work"
    mv "$scratch/work" "$out/work"
}

[ -e "$out/agentsbx_probe-1.0-py3-none-any.whl" ] || python3 "$here/image.py" --wheel "$out"
[ $# -gt 0 ] || set -- busybox pause debian work
for name in "$@"; do
    case $name in
    busybox | pause | debian | work) "build_$name" ;;
    *)
        echo "usage: hack/images.sh [busybox] [pause] [debian] [work]" >&2
        exit 2
        ;;
    esac
done
