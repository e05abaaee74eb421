#!/bin/sh
# Runs the runtime on what Debian 12 is: kernel 6.1, systemd as the first process, cgroup v2, Docker with the systemd
# cgroup driver. The machine is emulated in software, so it runs anywhere, and slowly.
#
#   hack/vm.sh [test [NAME...]]   build the image (once), build the binary, boot, run hack/vm/smoke.py (or those of its
#                                 cases whose name has NAME in it), tell how many passed
#   hack/vm.sh integration [ARG]  the same for the integration tests, ARG... as for their binary
#   hack/vm.sh shell              boot, and give a root shell on this terminal; the payload is at /payload
#   hack/vm.sh image              only build the image
#
# AGENTSBX_BIN      a static binary to test instead of a fresh build; the shim is beside it
# VM_KERNEL         a Debian release whose kernel the machine gets instead of Debian 12's, such as sid or trixie-backports;
#                   all else stays Debian 12's. Auditing is on in it, for the cases that need a kernel of 6.15
# VM_TIMEOUT        seconds after which a boot is given up (default 2400)
#
# target/vm/base.ext4, vmlinuz, initrd.img   the image; it is built anew when the packages change
# target/vm/console.log, report.log          what the machine said in the last run
# target/vm/KERNEL/…                         the same with VM_KERNEL=KERNEL; `kernel` in it is the version. A kernel is kept
#                                            until its directory is removed, also when the release has a newer one
set -eu

here=$(cd "$(dirname "$0")" && pwd)
repository=$(dirname "$here")
kernel=${VM_KERNEL:-}
case $kernel in
*[!a-z0-9-]*)
    echo "hack/vm.sh: VM_KERNEL=$kernel is no Debian release: name one such as sid" >&2
    exit 2
    ;;
esac
base=$repository/target/vm
out=$base${kernel:+/$kernel}
suite=bookworm
packages=apparmor,busybox-static,ca-certificates,conmon,containerd,crun,dbus,docker.io,e2fsprogs,git,initramfs-tools,iproute2,iptables
packages=$packages,kmod,linux-image-cloud-amd64,netavark,podman,procps,python3,runc,systemd,systemd-sysv,udev,uidmap,util-linux,xfsprogs

mkdir -p "$out"
# One at a time: the images and the logs have fixed names.
exec 9>"$out/.lock"
flock 9

need() {
    missing=""
    for pair in qemu-system-x86_64:qemu-system-x86 debootstrap:debootstrap mke2fs:e2fsprogs; do
        command -v "${pair%%:*}" >/dev/null || missing="$missing ${pair#*:}"
    done
    [ -n "$missing" ] || return 0
    [ "$(id -u)" = 0 ] || {
        echo "missing Debian packages, install them as root:$missing" >&2
        exit 1
    }
    echo "installing:$missing" >&2
    apt-get update -qq
    # shellcheck disable=SC2086 # a list of words
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

# made DIRECTORY PACKAGES: whether the image is there. One with other packages is not this one.
made() {
    [ -e "$1/base.ext4" ] && [ "$(cat "$1/packages" 2>/dev/null)" = "$2" ]
}

image() {
    made "$base" "$suite $packages" && return
    # shellcheck source=hack/proxy.sh
    . "$here/proxy.sh"
    root=$out/root.build
    rm -rf --one-file-system "$root"
    echo "hack/vm.sh: building the machine's image, a few minutes" >&2
    if ! debootstrap --variant=minbase --include="$packages" "$suite" "$root" \
        "$(python3 "$here/mirror.py")" >"$out/debootstrap.log" 2>&1; then
        tail -20 "$out/debootstrap.log" >&2
        exit 1
    fi
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    echo agentsbx-vm >"$root/etc/hostname"
    echo '/dev/vda / ext4 defaults 0 1' >"$root/etc/fstab"
    # Whoever has the machine's console is root on it.
    chroot "$root" passwd -d root >/dev/null
    mkdir -p "$root/payload"
    # What the disk of the payload says is what the machine does; then it is switched off.
    cat >"$root/etc/systemd/system/payload.service" <<'UNIT'
[Unit]
Description=What the machine was booted for
After=docker.service containerd.service multi-user.target
ConditionKernelCommandLine=!payload.shell

[Service]
Type=oneshot
Delegate=yes
ExecStart=/bin/sh /payload/main
StandardOutput=file:/dev/ttyS1
StandardError=inherit
ExecStopPost=/bin/systemctl --no-block poweroff

[Install]
WantedBy=default.target
UNIT
    cat >"$root/etc/systemd/system/payload.mount" <<'UNIT'
[Mount]
What=/dev/vdb
Where=/payload
Type=ext4

[Install]
WantedBy=local-fs.target
UNIT
    mkdir -p "$root/etc/systemd/system/serial-getty@ttyS0.service.d"
    # shellcheck disable=SC2016 # the unit expands it
    printf '[Service]\nExecStart=\nExecStart=-/sbin/agetty -a root --keep-baud 115200 %%I $TERM\n' \
        >"$root/etc/systemd/system/serial-getty@ttyS0.service.d/autologin.conf"
    for unit in payload.service payload.mount; do
        chroot "$root" systemctl --quiet enable "$unit"
    done
    # Timers that would run in the middle of it, and units that wait for what is not there.
    for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer man-db.timer \
        systemd-networkd-wait-online.service podman-auto-update.timer podman-restart.service; do
        ln -sf /dev/null "$root/etc/systemd/system/$unit"
    done
    cp -L "$root"/boot/vmlinuz-* "$out/vmlinuz"
    cp -L "$root"/boot/initrd.img-* "$out/initrd.img"
    rm -f "$out/base.ext4.new"
    mke2fs -q -t ext4 -L root -d "$root" "$out/base.ext4.new" 6G
    rm -rf --one-file-system "$root"
    mv "$out/base.ext4.new" "$out/base.ext4"
    echo "$suite $packages" >"$out/packages"
}

# other_kernel: makes the image with Debian 12's kernel into one that has another release's. Its packages would draw in
# others of that release, so they are unpacked, and what they would do when installed is done here.
other_kernel() {
    made "$out" "$suite $packages $kernel" && return
    made "$base" "$suite $packages" || VM_KERNEL="" "$0" image
    # shellcheck source=hack/suite.sh
    . "$here/suite.sh"
    echo "hack/vm.sh: getting the kernel of Debian's $kernel" >&2
    apt=$out/apt.build root=$out/root.build
    ! mountpoint -q "$root" || umount "$root"
    rm -rf --one-file-system "$apt" "$root"
    mkdir -p "$apt" "$root"
    if ! get_kernel >"$out/kernel.log" 2>&1; then
        tail -20 "$out/kernel.log" >&2
        exit 1
    fi
    suite_unpack "$apt" "$apt/root"
    rm -f "$out/base.ext4"
    cp --sparse=always "$base/base.ext4" "$out/base.ext4.new"
    mount -o loop "$out/base.ext4.new" "$root"
    trap 'umount "$root"' EXIT
    # In kernels of 2025 and before they are in /lib and /boot.
    for modules in "$apt/root/lib/modules"/* "$apt/root/usr/lib/modules"/*; do
        [ -d "$modules" ] || continue
        version=${modules##*/}
        cp -a "$modules" "$root/usr/lib/modules/"
    done
    for part in vmlinuz config; do
        for file in "$apt/root/boot/$part-$version" "$apt/root/usr/lib/modules/$version/$part"; do
            [ ! -e "$file" ] || cp "$file" "$root/boot/$part-$version"
        done
    done
    # Debian 12's journald turns auditing off when it starts, whatever the kernel's command line says.
    mkdir -p "$root/etc/systemd/journald.conf.d"
    printf '[Journal]\nAudit=yes\n' >"$root/etc/systemd/journald.conf.d/audit.conf"
    chroot "$root" depmod "$version"
    if ! chroot "$root" update-initramfs -c -k "$version" >>"$out/kernel.log" 2>&1; then
        tail -20 "$out/kernel.log" >&2
        exit 1
    fi
    cp "$root/boot/vmlinuz-$version" "$out/vmlinuz"
    cp "$root/boot/initrd.img-$version" "$out/initrd.img"
    trap - EXIT
    umount "$root"
    rm -rf --one-file-system "$apt" "$root"
    mv "$out/base.ext4.new" "$out/base.ext4"
    echo "$version" >"$out/kernel"
    echo "$suite $packages $kernel" >"$out/packages"
}

# Releases differ in how many packages a kernel is.
get_kernel() {
    suite_lists "$apt" "$kernel" || return
    parts=$(suite_apt "$apt" apt-cache depends --recurse --important linux-image-cloud-amd64 |
        grep -E '^linux-(image|base|binary|modules)-[0-9].*-cloud-amd64$')
    [ -n "$parts" ] || return
    # shellcheck disable=SC2086 # a list of words
    suite_get "$apt" $parts
}

binary() {
    [ -n "${AGENTSBX_BIN:-}" ] || AGENTSBX_BIN=$("$here/build-static.sh")
    echo "$AGENTSBX_BIN"
}

# payload DIRECTORY SIZE: makes the second disk of it.
payload() {
    rm -f "$out/payload.ext4"
    mke2fs -q -t ext4 -L payload -d "$1" "$out/payload.ext4" "$2"
}

# boot CMDLINE [QEMU-ARGUMENT...]: until it switches itself off. The disks stay as they are.
boot() {
    line=$1
    shift
    # shellcheck disable=SC2086 # KVM is an option or nothing
    timeout --foreground "${VM_TIMEOUT:-2400}" qemu-system-x86_64 \
        -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 3072 -nodefaults -no-reboot -display none \
        -kernel "$out/vmlinuz" -initrd "$out/initrd.img" \
        -append "root=/dev/vda rw console=ttyS0 quiet panic=-1 ${kernel:+audit=1 }$line" \
        -drive "file=$out/base.ext4,format=raw,if=virtio,snapshot=on,cache=unsafe" \
        -drive "file=$out/payload.ext4,format=raw,if=virtio,snapshot=on,cache=unsafe" \
        -device virtio-rng-pci "$@"
}

run() {
    : >"$out/report.log"
    rc=0
    boot "" -serial "file:$out/console.log" -serial "file:$out/report.log" </dev/null || rc=$?
    tr -d '\r' <"$out/report.log"
    if [ "$rc" != 0 ]; then
        echo "hack/vm.sh: the machine did not come to its end (code $rc); see $out/console.log" >&2
        exit 1
    fi
    # The last line is the count; without it the run was cut off.
    tr -d '\r' <"$out/report.log" | tail -n 1 | grep -qE '^[0-9]+ passed, 0 failed(, [0-9]+ skipped)?$'
}

need
if [ -n "$kernel" ]; then other_kernel; else image; fi
stage=$(mktemp -d "$out/.stage.XXXXXX")
trap 'rm -rf --one-file-system "$stage"' EXIT
verb=${1:-test}
[ $# -eq 0 ] || shift
case $verb in
image) ;;
test | shell)
    program=$(binary)
    install -m 755 "$program" "$stage/agentsbx"
    install -m 755 "$(dirname "$program")/containerd-shim-agentsbx-v1" "$stage"
    "$here/images.sh" busybox pause
    for image in busybox.tar busybox.image.tar pause.image.tar; do
        cp "$repository/target/images/$image" "$stage"
    done
    cp "$here"/vm/*.py "$here/register.py" "$here/install.sh" "$stage"
    # The kernel that was meant, for the tests to compare.
    if [ -n "$kernel" ]; then cp "$out/kernel" "$stage/kernel"; else echo 6.1. >"$stage/kernel"; fi
    printf '#!/bin/sh\nexec python3 /payload/smoke.py %s\n' "$*" >"$stage/main"
    payload "$stage" 128M
    if [ "$verb" = test ]; then
        run
    else
        boot payload.shell -serial mon:stdio
    fi
    ;;
integration)
    "$here/images.sh"
    "$here/containerds.sh" "$repository/target/containerd"
    # Static, since the machine's C library need not be this one's.
    host=$(rustc -vV | sed -n 's/^host: //p')
    LIBSECCOMP_LIB_PATH=$(pkg-config --variable=libdir libseccomp)
    export LIBSECCOMP_LIB_PATH LIBSECCOMP_LINK_TYPE=static
    tests=$(cd "$repository" && RUSTFLAGS="-C target-feature=+crt-static" cargo test --quiet --target "$host" \
        --test integration --no-run --message-format=json | python3 -c '
import json, sys
found = [m["executable"] for m in map(json.loads, sys.stdin) if m.get("profile", {}).get("test") and m.get("executable")]
print(found[-1])')
    program=$(binary)
    install -m 755 "$program" "$stage/agentsbx"
    install -m 755 "$(dirname "$program")/containerd-shim-agentsbx-v1" "$stage"
    install -m 755 "$tests" "$stage/integration"
    strip --strip-debug "$stage/integration"
    # The tests know the repository by the path that they were built at.
    mkdir -p "$stage/repository/target/images"
    (cd "$repository" && git ls-files -z hack src runtime-spec integration docs Cargo.toml README.md |
        tar --null -T - -cf -) | tar -C "$stage/repository" -xf -
    cp "$repository"/target/images/*.* "$stage/repository/target/images"
    cp -a "$repository/target/containerd" "$stage/repository/target"
    cat >"$stage/main" <<MAIN
#!/bin/sh
systemctl stop docker.socket docker.service containerd.service
mkdir -p '$repository/target'
cd /payload/repository
for part in *; do
    [ "\$part" = target ] || cp -a "\$part" '$repository'
done
# Half of the disk: where it is, it can be read and written.
ln -s /payload/repository/target/* '$repository/target'
install -m 755 /payload/agentsbx /payload/containerd-shim-agentsbx-v1 /usr/local/bin
cd '$repository'
AGENTSBX_BIN=/usr/local/bin/agentsbx /payload/integration --test-threads 2 $* 2>&1 | tee /run/report
sed -n 's/^test result: .* \([0-9]* passed\); \([0-9]* failed\);.*/\1, \2/p' /run/report
MAIN
    payload "$stage" 1500M
    run
    ;;
*)
    sed -n '2,21s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
