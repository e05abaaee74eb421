"""What the cases are written with: commands and their results, what is left behind, containers from bundles."""

import json
import os
import re
import shutil
import subprocess
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = "/usr/local/bin/agentsbx"
SHIM = "/usr/local/bin/containerd-shim-agentsbx-v1"
WORK = "/var/tmp/smoke"
IMAGE = "localhost/agentsbx-test/busybox"
CGROUPS = "/sys/fs/cgroup"
CONFIG = "/etc/agentsbx/config.toml"
FIRST = "agentsbx-first"
# The root disk's major number: each kernel gives the driver another.
DISK = os.major(os.stat("/dev/vda").st_rdev)
# Everything takes long in an emulated machine.
PATIENCE = 120


class Skipped(Exception):
    """The case is about what this kernel lacks."""


class Result:
    def __init__(self, args, code, out, err):
        self.args, self.code, self.out, self.err = args, code, out, err

    def __str__(self):
        return f"{self.args}: code {self.code}\n  stdout: {self.out[-1500:]}\n  stderr: {self.err[-1500:]}"


def call(*args, code=0, limit=PATIENCE, env=None, stdin=None):
    """Runs a command; code None takes any."""
    try:
        done = subprocess.run(
            [str(a) for a in args],
            stdin=subprocess.DEVNULL if stdin is None else None,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=limit,
            env={**os.environ, **(env or {})},
        )
    except subprocess.TimeoutExpired as late:
        raise AssertionError(f"{args}: not done in {limit} s: {late.stdout} {late.stderr}") from late
    result = Result(args, done.returncode, done.stdout, done.stderr)
    assert code is None or result.code == code, f"wanted code {code}: {result}"
    return result


def same(got, want, what=""):
    assert got == want, f"{what}: got {got!r}, want {want!r}"


def until(what, true, limit=30):
    end = time.monotonic() + limit
    while not true():
        assert time.monotonic() < end, f"not within {limit} s: {what}"
        time.sleep(0.2)


def read(*path):
    with open(os.path.join(*path)) as file:
        return file.read().strip()


def programs():
    """Puts the runtime and the shim under test where engines look for them."""
    for program in (BIN, SHIM):
        shutil.copy(f"{HERE}/{os.path.basename(program)}", f"{program}.new")
        os.rename(f"{program}.new", program)


CASES = []


def case(function):
    CASES.append((function.__name__, function))
    return function


def both(function):
    """A case with each of the two drivers."""
    for systemd in (False, True):
        name = f"{function.__name__}_{'systemd' if systemd else 'cgroupfs'}"
        CASES.append((name, lambda systemd=systemd: function(systemd)))
    return function


def spare(pids):
    """Has the kernel choose others where memory is short: it may take several before that of the first is free."""
    for pid in pids:
        with open(f"/proc/{pid}/oom_score_adj", "w") as score:
            score.write("-1000")


# ---- what is left behind ---------------------------------------------------------------------------------------------


def traces():
    """Cgroups, units, mounts and processes that are the runtime's."""
    found = []
    for base, dirs, _ in os.walk(CGROUPS):
        for name in dirs:
            if re.match(r"docker-[0-9a-f]{64}|libpod-[0-9a-f]{64}|agentsbx|smoke|[0-9A-Z]{26}$|exec-", name) or (
                base == CGROUPS and name == "docker"
            ):
                found.append(f"cgroup {base}/{name}")
    units = call("systemctl", "list-units", "--all", "--no-legend", "--plain", "docker-*.scope", "*agentsbx*", "smoke*", "libpod-*")
    found += [f"unit {line}" for line in units.out.splitlines() if line.strip() and "not-found" not in line]
    with open("/proc/self/mounts") as file:
        found += [f"mount {line.strip()}" for line in file if "agentsbx" in line or "overlay2" in line or WORK in line]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            exe = os.readlink(f"/proc/{pid}/exe")
        except OSError:
            continue
        if "agentsbx" in exe or "busybox" in exe:
            found.append(f"process {pid} {exe} {read('/proc', pid, 'cmdline')}")
    return found


def clean():
    # The parents that the cgroupfs driver makes for all containers are kept, as runc keeps them.
    kept = {f"cgroup {CGROUPS}/docker", f"cgroup {CGROUPS}/smoke", f"cgroup {CGROUPS}/agentsbx"}
    left = []

    def none():
        left[:] = [trace for trace in traces() if trace not in kept]
        return not left

    try:
        until("nothing left", none, 20)
    except AssertionError:
        raise AssertionError("left behind: " + "; ".join(left)) from None


# ---- bundles ---------------------------------------------------------------------------------------------------------

CAPS = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_MKNOD", "CAP_SETGID", "CAP_SETUID", "CAP_NET_BIND_SERVICE"]
DENY_ALL = [{"allow": False, "access": "rwm"}]


class Bundle:
    """A container of its own, with the systemd or the cgroupfs driver."""

    count = 0

    def __init__(self, systemd, args=("sleep", "100000"), change=None, config=None):
        Bundle.count += 1
        self.systemd = systemd
        self.env = {}
        self.id = f"c{Bundle.count}"
        self.dir = f"{WORK}/{self.id}"
        os.makedirs(f"{self.dir}/rootfs")
        call("tar", "-C", f"{self.dir}/rootfs", "-xf", f"{HERE}/busybox.tar")
        namespaces = ["pid", "ipc", "uts", "mount", "network", "cgroup"]
        self.config = {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": list(args),
                "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
                "cwd": "/",
                "capabilities": {kind: CAPS for kind in ("bounding", "effective", "permitted")},
                "noNewPrivileges": True,
            },
            "root": {"path": "rootfs"},
            "hostname": "c",
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
                {"destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": ["nosuid", "newinstance", "ptmxmode=0666", "mode=0620"]},
                {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "nodev"]},
                {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
                {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["nosuid", "noexec", "nodev", "relatime", "ro"]},
            ],
            "linux": {
                "namespaces": [{"type": kind} for kind in namespaces],
                "cgroupsPath": f"system.slice:smoke:{self.id}" if systemd else f"/smoke/{self.id}",
                "resources": {"devices": DENY_ALL, "memory": {"limit": 128 << 20}, "pids": {"limit": 100}, "cpu": {"shares": 512, "quota": 150000, "period": 100000}},
                "seccomp": {
                    "defaultAction": "SCMP_ACT_ALLOW",
                    "architectures": ["SCMP_ARCH_X86_64"],
                    "syscalls": [{"names": ["chmod"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1,
                                  "args": [{"index": 1, "value": 0o701, "op": "SCMP_CMP_EQ"}]}],
                },
            },
        }
        if change:
            change(self.config)
        with open(f"{self.dir}/config.json", "w") as file:
            json.dump(self.config, file)
        if config is not None:
            with open(f"{self.dir}/config.toml", "w") as file:
                file.write(config)
            self.env["AGENTSBX_CONFIG"] = f"{self.dir}/config.toml"

    def __enter__(self):
        with open(f"{self.dir}/out", "w") as out:
            done = subprocess.run(self.command("create", "--bundle", self.dir, self.id), stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=PATIENCE, env={**os.environ, **self.env})
        assert done.returncode == 0, f"create: {read(self.dir, 'out')}"
        self.run("start", self.id)
        return self

    def __exit__(self, kind, *_):
        self.run("delete", "--force", self.id, code=None if kind else 0)

    def command(self, *args):
        return [BIN, *(["--systemd-cgroup"] if self.systemd else []), *args]

    def run(self, *args, **more):
        return call(*self.command(*args), env=self.env, **more)

    def start(self, script, *flags):
        """An exec that runs meanwhile."""
        return subprocess.Popen(self.command("exec", *flags, self.id, "sh", "-c", script), stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, **self.env})

    def exec(self, script, *flags, code=0, **more):
        return self.run("exec", *flags, self.id, "sh", "-c", script, code=code, **more)

    def show(self):
        return json.loads(self.run("show", self.id, "--json").out)

    def head(self):
        return json.loads(self.run("state", self.id).out)["annotations"]["dev.agentsbx.generation"]

    def cgroup(self):
        name = f"system.slice/smoke-{self.id}.scope" if self.systemd else f"smoke/{self.id}"
        return f"{CGROUPS}/{name}"
