#!/bin/sh
# Puts the binary on a machine and makes engines know it, or takes both away. Restarts nothing.
#
#   hack/install.sh install|uninstall PREFIX [DESTDIR]
#
# PREFIX/bin/agentsbx                            the runtime
# PREFIX/share/agentsbx/                         what to tell containerd and Kubernetes
# /etc/docker/daemon.json                        its "runtimes" get an entry agentsbx; the rest stays as it is
# /etc/containers/containers.conf.d/agentsbx.conf   the same for podman
#
# With DESTDIR all paths are below it, for packages.
set -eu

if [ $# -lt 2 ]; then
    sed -n '2,12s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
verb=$1 prefix=$2 dest=${3:-}
binary=$prefix/bin/agentsbx
share=$dest$prefix/share/agentsbx
daemon=$dest/etc/docker/daemon.json
podman=$dest/etc/containers/containers.conf.d/agentsbx.conf

case $verb in
install)
    python3 "$here/register.py" check "$daemon"
    "$here/deps.sh" build
    built=$("$here/build-static.sh")
    install -D -m 755 "$built" "$dest$binary.new"
    mv "$dest$binary.new" "$dest$binary"
    python3 "$here/register.py" add "$daemon" "$binary"

    mkdir -p "$share" "$(dirname "$podman")"
    cat >"$podman" <<CONF
[engine.runtimes]
agentsbx = ["$binary"]
CONF
    cat >"$share/containerd-1.toml" <<TOML
# For /etc/containerd/config.toml of containerd 1.x (version = 2).
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.agentsbx]
  runtime_type = "io.containerd.runc.v2"
  pod_annotations = ["dev.agentsbx.*"]
  container_annotations = ["dev.agentsbx.*"]
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.agentsbx.options]
    BinaryName = "$binary"
TOML
    cat >"$share/containerd-2.toml" <<TOML
# For /etc/containerd/config.toml of containerd 2.x (version = 3).
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.agentsbx]
  runtime_type = "io.containerd.runc.v2"
  pod_annotations = ["dev.agentsbx.*"]
  container_annotations = ["dev.agentsbx.*"]
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.agentsbx.options]
    BinaryName = "$binary"
TOML
    cat >"$share/runtimeclass.yaml" <<YAML
# For Kubernetes, once containerd knows the runtime: pods choose it with runtimeClassName: agentsbx
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata:
  name: agentsbx
handler: agentsbx
YAML
    echo "installed: $("$dest$binary" --version | head -n 1) as $dest$binary"
    echo "docker:     systemctl reload docker, then docker run --runtime agentsbx …"
    echo "podman:     podman --runtime agentsbx run …"
    echo "containerd: ctr run --runc-binary $binary …; for Kubernetes see $share"
    ;;
uninstall)
    failed=0
    python3 "$here/register.py" remove "$daemon" || failed=1
    rm -f "$dest$binary" "$podman" "$share/containerd-1.toml" "$share/containerd-2.toml" "$share/runtimeclass.yaml"
    rmdir "$share" 2>/dev/null || true
    echo "uninstalled. Reload what knew it (systemctl reload docker); layers and history stay in /var/lib/agentsbx"
    exit $failed
    ;;
*)
    sed -n '2,12s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
