#!/bin/sh
# Waits until its standard input ends, then puts everything away that a test run made: containers, daemons, mounts,
# cgroups, directories. The test process holds the other end of the pipe, so this happens however that one ends.
#
#   hack/guard.sh RUN DATA CGROUP <PIPE
#
# What belongs to the run is told by RUN and DATA (in a process' arguments or a mount point) and by CGROUP; nothing is
# ever ended by a program's name.
set -u

run=$1 data=$2 cgroup=$3
# What must lie where containerd's own state does, for the policy to judge it as on a node of Kubernetes.
shared=/run/containerd/$(basename "$run")
trap '' INT TERM HUP
cat >/dev/null

# end PID: TERM, up to ten seconds, KILL.
end() {
    kill -TERM "$1" 2>/dev/null || return 0
    for _ in $(seq 100); do
        kill -0 "$1" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -KILL "$1" 2>/dev/null
}

# The processes in the run's cgroups, in every hierarchy; a plain file of that name says nothing.
contained() {
    find /sys/fs/cgroup -depth -path "*$cgroup*" -name cgroup.procs \( -fstype cgroup -o -fstype cgroup2 \) \
        -exec cat {} + 2>/dev/null | sort -u
}

# The processes that have one of the run's directories in their arguments: shims, conmon, proxies.
named() {
    for dir in /proc/[0-9]*; do
        pid=${dir#/proc/}
        [ "$pid" != $$ ] || continue
        if tr '\0' '\n' <"$dir/cmdline" 2>/dev/null | grep -qF -e "$run/" -e "$data/" -e "$shared/"; then
            echo "$pid"
        fi
    done
}

# Frozen processes do not die: thaw first, on both hierarchies.
find /sys/fs/cgroup -path "*$cgroup*" -name freezer.state 2>/dev/null | while read -r file; do
    echo THAWED 2>/dev/null >"$file"
done
find /sys/fs/cgroup -path "*$cgroup*" -name cgroup.freeze 2>/dev/null | while read -r file; do
    echo 0 2>/dev/null >"$file"
done
# The containers first: a daemon that is told to stop gives each of its containers ten seconds.
for pid in $(contained); do
    kill -KILL "$pid" 2>/dev/null
done
for daemon in dockerd containerd; do
    [ -s "$run/$daemon.pid" ] && end "$(cat "$run/$daemon.pid")"
done
for _ in $(seq 50); do
    pids="$(contained) $(named)"
    [ -n "$(echo "$pids" | tr -d '[:space:]')" ] || break
    for pid in $pids; do
        kill -KILL "$pid" 2>/dev/null
    done
    sleep 0.1
done

# Shims that were killed leave their sockets in a directory that all containerds of the host share. Of 1.6 the address is
# in a file of the shim's, later in one of containerd's own. The roots of runtimes are named after containerd's namespaces.
find "$run" "$shared" \( -name address -o -name bootstrap.json \) -exec cat {} + 2>/dev/null |
    grep -o '/run/containerd/s/[0-9a-f]*' | while read -r socket; do
    rm -f "$socket"
done
rm -rf --one-file-system /run/containerd/*/"$(basename "$run")"-*
# Of the namespace that all nodes have: containers of bundles that are ours.
grep -lrF --include=state.json "\"$shared/" /run/containerd/*/k8s.io 2>/dev/null | while read -r state; do
    rm -rf --one-file-system "$(dirname "$state")"
done

# Mount points below the two directories, the deepest first. \040 and the like stay as they are: ours have none.
awk -v run="$run/" -v data="$data/" -v shared="$shared/" \
    'index($5, run) == 1 || index($5, data) == 1 || index($5, shared) == 1 { print $5 }' /proc/self/mountinfo |
    sort -r | while read -r point; do
    umount "$point" 2>/dev/null || umount --lazy "$point" 2>/dev/null
done
find /sys/fs/cgroup -depth -type d -path "*$cgroup*" -exec rmdir {} + 2>/dev/null
rm -rf --one-file-system "$run" "$data" "$shared"
