#!/bin/sh
# Builds the programs that containerd's integration tests are: in Debian's unstable release, for what they are built of is
# in its packages, all at versions that fit. They run here.
#
#   hack/containerd-suite/get.sh DIR VERSION      VERSION: the file with the version of the containerd that they drive
#
# DIR/tests/client.test, cri.test    the programs; linked statically
# DIR/tests/bin/runc-fp              a runtime that calls runc, and fails or waits as a test has told it
# DIR/tests/integration              the files that they read
# DIR/tests/version                  the version of the sources
#
# What is there, and of that version, is kept.
set -eu
if [ $# != 2 ]; then
    sed -n '5p' "$0" | sed 's/^# *//' >&2
    exit 2
fi
here=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
version=$(sed 's/^containerd \([0-9.]*\).*/\1/' "$2")
[ "$(cat "$out/tests/version" 2>/dev/null)" != "$version" ] || exit 0

# shellcheck source=hack/proxy.sh
. "$here/proxy.sh"
echo "hack/containerd-suite/get.sh: building containerd's tests in Debian's unstable release, about ten minutes" >&2
root=$(mktemp -d "$out/.build.XXXXXX")
trap 'rm -rf --one-file-system "$root"' EXIT
trap 'exit 130' INT TERM
failed() {
    tail -20 "$out/build.log" >&2
    echo "hack/containerd-suite/get.sh: $1: $out/build.log" >&2
    exit 1
}
# A mount of it goes with the last process, however that ends: what is below it must never be deleted.
unshare --mount debootstrap --variant=minbase sid "$root" "$(python3 "$here/mirror.py" sid)" >"$out/build.log" 2>&1 ||
    failed "the release could not be installed"
# Reached as from here.
apt-config dump | grep -E '^Acquire::(Check-|https?::)' >"$root/etc/apt/apt.conf.d/90here" || true
# shellcheck disable=SC2016 # expanded by the inner shell
unshare --mount --pid --fork --kill-child sh -c '
    set -eu
    mount -t proc proc "$1/proc"
    exec chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive \
        ${http_proxy:+"http_proxy=$http_proxy"} \
        GOPATH=/usr/share/gocode GO111MODULE=off GOFLAGS=-buildvcs=false GOTOOLCHAIN=local GOCACHE=/build/cache \
        CGO_ENABLED=0 sh -euxs' sh "$root" >>"$out/build.log" 2>&1 <<'BUILD' || failed "they could not be built"
apt-get -q -o Acquire::Retries=3 update
apt-get -q -y --no-install-recommends install golang-go golang-github-containerd-containerd-dev \
    golang-github-stretchr-testify-dev </dev/null
mkdir -p /build/tests
dpkg-query -W -f '${Version}' golang-github-containerd-containerd-dev | sed 's/[^0-9.].*//' >/build/tests/version
cd /usr/share/gocode/src/github.com/containerd/containerd/v2/integration
# The list is read before the flag that names another.
sed -i 's|"[a-z0-9.-]*\.[a-z]*/\([a-z0-9./-]*/\)\{0,1\}\([a-z-]*:[0-9.]*\)",$|"localhost:5555/\2",|' images/image_list.go
# None may be left that is on the internet.
[ "$(grep -c '"localhost:5555/[a-z-]*:' images/image_list.go)" = "$(grep -c '"[^" ]*/[^" ]*:[0-9.]*",$' images/image_list.go)" ]
go build -o /build/tests/bin/ ./failpoint/cmd/runc-fp
go test -c -o /build/tests/cri.test .
cd client
go test -c -o /build/tests/client.test .
cp -a .. /build/tests/integration
BUILD
has=$(cat "$root/build/tests/version")
if [ "$has" != "$version" ]; then
    echo "hack/containerd-suite/get.sh: the tests are of containerd $has, the programs of $version: remove the older ones," \
        "target/containerd/2 or target/suite/tests, to get both anew" >&2
    exit 1
fi
rm -rf --one-file-system "$out/tests"
mv "$root/build/tests" "$out/tests"
