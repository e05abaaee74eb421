#!/bin/sh
# Shows the main things on a small root filesystem, without any engine, and puts everything away again.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/.." && pwd)
if [ "$(id -u)" != 0 ]; then
    echo "make demo needs root: it makes a container" >&2
    exit 1
fi
(cd "$root" && env -u CARGO_BUILD_TARGET CARGO_TARGET_DIR="$root/target" cargo build --bin agentsbx)
"$here/images.sh" busybox

# Everything that the demonstration makes is below here, but for its sockets and cgroups.
work=$(mktemp -d "$root/target/demo.XXXXXX")
state=/run/agentsbx-demo-$$
mkdir -p "$work/bin" "$work/bundle/rootfs"
cat >"$work/bin/agentsbx" <<WRAPPER
#!/bin/sh
exec '$root/target/debug/agentsbx' --root '$state' --store '$work/store' "\$@"
WRAPPER
chmod 755 "$work/bin/agentsbx"
PATH=$work/bin:$PATH

cleanup() {
    agentsbx delete --force demo >/dev/null 2>&1 || true
    rm -rf --one-file-system "$work" "$state"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

if [ -t 1 ]; then
    bold=$(printf '\033[1m') dim=$(printf '\033[2m') off=$(printf '\033[0m')
else
    bold="" dim="" off=""
fi

say() {
    printf '\n%s# %s%s\n' "$dim" "$*" "$off"
}

# typed TEXT: a line as one would type it.
typed() {
    printf '%s$ %s%s\n' "$bold" "$*" "$off"
}

# shown COMMAND…: the command, its words quoted where they must be.
shown() {
    line=""
    for word in "$@"; do
        case $word in
        *[!a-zA-Z0-9_./=@:,-]* | "") line="$line '$word'" ;;
        *) line="$line $word" ;;
        esac
    done
    typed "${line# }"
}

# exec_that_is DISPOSITION: the first exec of the demonstration with that disposition.
exec_that_is() {
    agentsbx log demo --json | tr -d '\n' | grep -o "\"exec\": *\"[0-9A-Z]*\"[^}]*\"disposition\": *\"$1\"" |
        head -n 1 | cut -d'"' -f4
}

# run COMMAND…: shows it, then runs it. A command that should fail has its code printed.
run() {
    shown "$@"
    code=0
    "$@" || code=$?
    [ $code = 0 ] || echo "(exit code $code)"
}

say "A bundle: a root filesystem with one static busybox, and a config.json."
tar -C "$work/bundle/rootfs" -xf "$root/target/images/busybox.tar"
cd "$work/bundle"
run agentsbx spec
sed -i 's/"terminal": true/"terminal": false/; s/"readonly": true/"readonly": false/; s/^\([[:space:]]*\)"sh"$/\1"sleep", "100000"/' \
    config.json

say "A directory of the host, for the container copy-on-write: at /work."
mkdir "$work/project"
echo 'print(1)' >"$work/main.py"
run cp "$work/main.py" "$work/project"
mount="{\"destination\": \"/work\", \"type\": \"bind\", \"source\": \"$work/project\", \"options\": [\"rbind\"]}"
note='"annotations": {"dev.agentsbx.mounts": "{\\"/work\\": \\"cow\\"}"},'
sed -i "s|^\([[:space:]]*\)\"mounts\": \[\$|\1\"mounts\": [$mount,|" config.json
awk -v note="$note" '{ print } NR == 1 { print note }' config.json >with-note.json
mv with-note.json config.json

say "A container, whose first process only waits."
run agentsbx run --detach demo </dev/null
run agentsbx list

say "An exec has a writable layer of its own; when it ends, the layer is committed as generation 1."
run agentsbx exec demo sh -c 'echo hello >/root/note; rm -r /home; chmod 600 /etc/group'
run agentsbx diff demo
say "What it changed, how it ended, what it cost."
run agentsbx show demo
say "The next exec sees it."
run agentsbx exec demo cat /root/note

say "discard: the command runs as ever, and leaves nothing."
run agentsbx exec --layer discard demo sh -c 'rm -rf /bin /etc; echo "all gone, or so it seems"'
run agentsbx exec demo ls /bin/sh

say "hold: nobody sees it until it is committed."
run agentsbx exec --layer hold demo sh -c 'echo draft >/root/draft'
run agentsbx exec demo ls /root/draft
held=$(exec_that_is held)
run agentsbx commit demo "$held"
run agentsbx exec demo cat /root/draft

say "Twenty at a time, each its own file: nothing is lost."
typed "for n in \$(seq 20); do agentsbx exec demo sh -c \"echo \$n >/root/file\$n\" & done; wait"
pids=""
for n in $(seq 20); do
    agentsbx exec demo sh -c "echo $n >/root/file$n" &
    pids="$pids $!"
done
for pid in $pids; do wait "$pid"; done
run agentsbx exec demo sh -c 'ls /root | grep -c file'

say "Two that write the same file: one commits, the other would lose an update and is held as a conflict."
# shellcheck disable=SC2016 # expanded inside the container
together='touch /dev/shm/$$; while [ $(ls /dev/shm | wc -l) -lt 2 ]; do sleep 0.02; done'
typed "agentsbx exec demo sh -c '…wait for the other…; echo one >/root/note' &"
typed "agentsbx exec demo sh -c '…wait for the other…; echo two >/root/note' &"
agentsbx exec demo sh -c "$together; echo one >/root/note" &
one=$!
agentsbx exec demo sh -c "$together; echo two >/root/note" &
two=$!
wait "$one"
wait "$two"
run agentsbx exec demo cat /root/note
run agentsbx show demo "$(exec_that_is conflict)"

say "Strict by default: no mounts, no namespaces, no look into other processes; limits where nobody set any."
run agentsbx exec demo mount -t tmpfs none /mnt
run agentsbx exec demo unshare -U true
run agentsbx exec demo cat /proc/1/environ
typed "agentsbx show demo --policy | head -n 7"
agentsbx show demo --policy | head -n 7

say "The host's directory is as it was, until somebody who has looked at the changes applies them."
run agentsbx exec demo sh -c 'echo "print(2)" >/work/main.py; echo new >/work/notes'
run cat "$work/project/main.py"
run agentsbx apply demo /work --dry-run
run agentsbx apply demo /work
run cat "$work/project/main.py"

say "The history."
run agentsbx log demo

say "Back to the clean image, in milliseconds; and forward again."
run agentsbx rollback demo 0
run agentsbx exec demo sh -c 'ls /root; ls -d /home'
run agentsbx rollback demo 1
run agentsbx exec demo cat /root/note

say "The end: the container goes, and its layers with it."
run agentsbx delete --force demo
run agentsbx list
