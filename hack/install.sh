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
# With DESTDIR all paths are below it, for packages.
set -eu

if [ $# -lt 2 ]; then
    sed -n '2,13s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
verb=$1 prefix=$2 dest=${3:-}
binary=$prefix/bin/agentsbx
shim=$prefix/bin/containerd-shim-agentsbx-v1
share=$dest$prefix/share/agentsbx
daemon=$dest/etc/docker/daemon.json
podman=$dest/etc/containers/containers.conf.d/agentsbx.conf

case $verb in
install)
    python3 "$here/register.py" check "$daemon"
    "$here/deps.sh" build
    built=$("$here/build-static.sh")
    # By renaming: what runs goes on with the file that it has. The shim comes last: it calls the runtime beside it.
    for path in "$binary" "$shim"; do
        install -D -m 755 "$(dirname "$built")/$(basename "$path")" "$dest$path.new"
        mv "$dest$path.new" "$dest$path"
    done
    python3 "$here/register.py" add "$daemon" "$binary"

    mkdir -p "$share" "$(dirname "$podman")"
    cat >"$podman" <<CONF
[engine.runtimes]
agentsbx = ["$binary"]
CONF
    cat >"$share/containerd-1.toml" <<TOML
# For /etc/containerd/config.toml of containerd 1.x (version = 2).
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.agentsbx]
  runtime_type = "io.containerd.agentsbx.v1"
  pod_annotations = ["dev.agentsbx.*"]
  container_annotations = ["dev.agentsbx.*"]
TOML
    cat >"$share/containerd-2.toml" <<TOML
# For /etc/containerd/config.toml of containerd 2.x (version = 3).
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.agentsbx]
  runtime_type = "io.containerd.agentsbx.v1"
  pod_annotations = ["dev.agentsbx.*"]
  container_annotations = ["dev.agentsbx.*"]
TOML
    cat >"$share/runtimeclass.yaml" <<YAML
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
    ;;
uninstall)
    failed=0
    python3 "$here/register.py" remove "$daemon" || failed=1
    rm -f "$dest$binary" "$dest$shim" "$podman" "$share/containerd-1.toml" "$share/containerd-2.toml" "$share/runtimeclass.yaml"
    rmdir "$share" 2>/dev/null || true
    # Shims that run go on, and look for the runtime beside their program.
    if pgrep -f '/containerd-shim-agentsbx-v1 ' >/dev/null; then
        echo "containers are still running under containerd-shim-agentsbx-v1: they can't be deleted without the runtime" >&2
    fi
    echo "uninstalled. Reload what knew it (systemctl reload docker); layers and history stay in /var/lib/agentsbx"
    exit $failed
    ;;
*)
    sed -n '2,13s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
