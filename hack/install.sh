#!/bin/sh
# Puts the runtime and containerd's shim on a machine and makes engines know them, or takes all away. Restarts nothing.
#
#   hack/install.sh install|uninstall PREFIX [DESTDIR]
#
# PREFIX/bin/agentsbx                            the runtime
# PREFIX/bin/containerd-shim-agentsbx-v1         containerd's shim; PREFIX/bin must be in containerd's PATH
# PREFIX/share/agentsbx/                         what to tell containerd and Kubernetes
# /etc/docker/daemon.json                        its "runtimes" get an entry agentsbx; the rest stays as it is
# /etc/containers/containers.conf.d/agentsbx.conf   the same for podman
#
# With DESTDIR all paths are below it, for packages. PREFIX is an absolute path, and the same for both: an entry for the
# runtime of another PREFIX is kept, by install as by uninstall, and told.
#
# AGENTSBX_BIN   a static binary to install instead of a fresh build; the shim is beside it
set -eu

if [ $# -lt 2 ]; then
    sed -n '2,16s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
verb=$1 prefix=$2 dest=${3:-}
case $prefix in
/*) ;;
*)
    echo "hack/install.sh: PREFIX=$prefix is no absolute path: engines are told it" >&2
    exit 2
    ;;
esac
binary=$prefix/bin/agentsbx
shim=$prefix/bin/containerd-shim-agentsbx-v1
share=$dest$prefix/share/agentsbx
daemon=$dest/etc/docker/daemon.json
podman=$dest/etc/containers/containers.conf.d/agentsbx.conf

# put FILE: its standard input as that file, for all to read whatever the umask is.
put() {
    install -D -m 644 /dev/stdin "$1.new"
    mv "$1.new" "$1"
}

# program FROM TO: by renaming, since what runs goes on with the file that it has.
program() {
    install -D -m 755 "$1" "$2.new"
    mv "$2.new" "$2"
}

# kept FILE WHAT THEN: tells of an entry for the runtime of another place, and what to do about it.
kept() {
    echo "$1: its entry agentsbx is for $2, and is kept" >&2
    case $2 in
    /*/bin/agentsbx) echo "    $3make uninstall PREFIX=${2%/bin/agentsbx}${dest:+ DESTDIR=$dest}" >&2 ;;
    *) echo "    ${3}remove the entry from the file" >&2 ;;
    esac
}

# What podman's file names, if it is there and that is not $binary.
podman_other() {
    if [ -f "$podman" ] && ! grep -qF "\"$binary\"" "$podman"; then
        path=$(sed -n 's/^ *agentsbx *= *\[ *"\([^"]*\)".*/\1/p' "$podman")
        echo "${path:-something else}"
    fi
}

case $verb in
install)
    umask 022
    [ -n "${AGENTSBX_BIN:-}" ] || "$here/deps.sh" build
    python3 "$here/register.py" check "$daemon"
    built=${AGENTSBX_BIN:-}
    [ -n "$built" ] || built=$("$here/build-static.sh")
    built_shim=$(dirname "$built")/$(basename "$shim")
    for file in "$built" "$built_shim"; do
        [ -f "$file" ] || {
            echo "hack/install.sh: there is no $file; without AGENTSBX_BIN both are built" >&2
            exit 1
        }
    done
    # The shim comes last: it calls the runtime beside it.
    program "$built" "$dest$binary"
    program "$built_shim" "$dest$shim"
    docker_other=$(python3 "$here/register.py" add "$daemon" "$binary")
    podman_other=$(podman_other)
    [ -n "$podman_other" ] || put "$podman" <<CONF
[engine.runtimes]
agentsbx = ["$binary"]
CONF
    put "$share/containerd-1.toml" <<TOML
# For /etc/containerd/config.toml of containerd 1.x (version = 2).
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.agentsbx]
  runtime_type = "io.containerd.agentsbx.v1"
  pod_annotations = ["dev.agentsbx.*"]
  container_annotations = ["dev.agentsbx.*"]
# No SystemdCgroup: where the kubelet's cgroups are systemd's, its paths say so.
#
# containerd 1.x knows no other runtimes than its file's, once there is one in it. In a file without runtimes.runc this is
# needed too, or CRI is not served; with options of its own where the kubelet's cgroups are systemd's.
#[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
#  runtime_type = "io.containerd.runc.v2"
#[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
#  SystemdCgroup = true
TOML
    put "$share/containerd-2.toml" <<TOML
# For /etc/containerd/config.toml of containerd 2.x (version = 3).
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.agentsbx]
  runtime_type = "io.containerd.agentsbx.v1"
  pod_annotations = ["dev.agentsbx.*"]
  container_annotations = ["dev.agentsbx.*"]
# No SystemdCgroup: where the kubelet's cgroups are systemd's, its paths say so.
#
# Pods with hostUsers: false want a class of this type, by which containerd knows of user namespaces. ConfigPath is no option of
# it (docs/containerd.md).
#[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.agentsbx-userns]
#  runtime_type = "io.containerd.runc.v2"
#  runtime_path = "$shim"
#  pod_annotations = ["dev.agentsbx.*"]
#  container_annotations = ["dev.agentsbx.*"]
TOML
    put "$share/runtimeclass.yaml" <<YAML
# For Kubernetes, once containerd knows the runtime: pods choose it with runtimeClassName: agentsbx
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata:
  name: agentsbx
handler: agentsbx
YAML
    echo "installed: $("$dest$binary" --version | head -n 1) as $dest$binary, with $dest$shim"
    echo "docker:     systemctl reload docker, then docker run --runtime agentsbx …"
    echo "            (Docker 23 and later also: --runtime io.containerd.agentsbx.v1, its own shim, no reload)"
    echo "podman:     podman --runtime agentsbx run …"
    echo "containerd: ctr run --runtime io.containerd.agentsbx.v1 …; for Kubernetes see $share"
    then="for the one just installed, install it again after: "
    [ -z "$docker_other" ] || kept "$daemon" "$docker_other" "$then"
    [ -z "$podman_other" ] || kept "$podman" "$podman_other" "$then"
    ;;
uninstall)
    failed=0
    podman_other=$(podman_other)
    found=
    for file in "$dest$binary" "$dest$shim" "$share/containerd-1.toml" "$share/containerd-2.toml" "$share/runtimeclass.yaml"; do
        [ ! -e "$file" ] || found=yes
        rm -f "$file"
    done
    rmdir "$share" 2>/dev/null || true
    [ -n "$podman_other" ] || rm -f "$podman"
    docker_other=$(python3 "$here/register.py" remove "$daemon" "$binary") || failed=1
    then="to take that one away: "
    [ -z "$docker_other" ] || kept "$daemon" "$docker_other" "$then"
    [ -z "$podman_other" ] || kept "$podman" "$podman_other" "$then"
    if [ -z "$found" ]; then
        echo "nothing of agentsbx is installed below $dest$prefix: uninstall takes the PREFIX that install was given" >&2
        exit $failed
    fi
    # Shims that run go on, and look for the runtime beside their program. With DESTDIR they are another machine's.
    if [ -z "$dest" ] && pgrep -f "^$shim " >/dev/null; then
        echo "containers are still running under $shim: they can't be deleted without the runtime" >&2
    fi
    echo "uninstalled. A dockerd that runs forgets it when it is restarted; layers and history stay in /var/lib/agentsbx."
    echo "Take the runtime out of /etc/containerd/config.toml, if it is there"
    exit $failed
    ;;
*)
    sed -n '2,15s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
