#!/usr/bin/env python3
"""What hack/vm.sh runs in the machine: the runtime on kernel 6.1 with systemd, cgroup v2 and the real dockerd.

    smoke.py [NAME...]      all cases, or those whose name has a NAME in it

Prints a line for each case and at the end `N passed, N failed`. A case is a function; what it leaves behind is the
next one's problem, so the last of each group looks for it.
"""

import ctypes
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = "/usr/local/bin/agentsbx"
WORK = "/var/tmp/smoke"
IMAGE = "localhost/agentsbx-test/busybox"
CGROUPS = "/sys/fs/cgroup"
CONFIG = "/etc/agentsbx/config.toml"
FIRST = "agentsbx-first"
# Everything takes long in an emulated machine.
PATIENCE = 120


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


@case
def host_is_what_is_meant():
    same(read("/proc/1/comm"), "systemd", "first process")
    same(call("stat", "-fc", "%T", CGROUPS).out.strip(), "cgroup2fs", "cgroups")
    assert os.uname().release.startswith("6.1."), os.uname().release


@case
def check_says_ready():
    report = json.loads(call(BIN, "check", "--json", code=None).out)
    assert report["ready"], report["reason"]
    absent = [f for f in report["features"] if f["state"] == "absent" and f["needed"]]
    assert not absent, absent
    print("     fallback:", "; ".join(f"{f['name']}: {f['detail']}" for f in report["features"] if f["state"] != "enforced"))


@both
def life_of_a_container(systemd):
    with Bundle(systemd) as c:
        state = json.loads(c.run("state", c.id).out)
        same(state["status"], "running")
        assert f"{state['pid']}" in read(c.cgroup(), FIRST, "cgroup.procs").split(), "first process in its cgroup"
        same(read(c.cgroup(), "cgroup.procs"), "", "processes beside the groups")
        same(read(c.cgroup(), "memory.max"), str(128 << 20))
        same(read(c.cgroup(), "pids.max"), "100")
        same(read(c.cgroup(), "cpu.max"), "150000 100000")
        same(c.exec("cat /proc/self/cgroup").out.startswith("0::/"), True, "cgroup namespace")
        c.exec("ls /sys/fs/cgroup/cgroup.procs")
        c.exec("mkdir /sys/fs/cgroup/x", code=1)
        same(c.exec("exit 7", code=7).code, 7)
        same(json.loads(c.run("ps", "--format", "json", c.id).out), [state["pid"]])
        stats = json.loads(c.run("events", "--stats", c.id).out)["data"]
        assert stats["memory"]["usage"]["usage"] > 0 and stats["pids"]["current"] >= 1, stats
        if systemd:
            unit = call("systemctl", "show", f"smoke-{c.id}.scope", "-p", "ActiveState,MemoryMax,TasksMax,Delegate,Slice").out
            for line in ["ActiveState=active", f"MemoryMax={128 << 20}", "TasksMax=100", "Delegate=yes", "Slice=system.slice"]:
                assert line in unit.splitlines(), unit
    assert not os.path.exists(c.cgroup())


@both
def limits_survive_a_daemon_reload(systemd):
    with Bundle(systemd) as c:
        c.run("update", "--memory", 200 << 20, "--pids-limit", "50", "--cpu-quota", "70000", c.id)
        for again in (False, True):
            same(read(c.cgroup(), "memory.max"), str(200 << 20), f"reloaded {again}")
            same(read(c.cgroup(), "pids.max"), "50", f"reloaded {again}")
            same(read(c.cgroup(), "cpu.max"), "70000 100000", f"reloaded {again}")
            call("systemctl", "daemon-reload")
        c.exec("true")


@both
def devices_are_denied(systemd):
    with Bundle(systemd) as c:
        # The machine's own root disk.
        c.exec("mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk", code=1)
        c.exec("head -c 1 /dev/zero >/dev/null && echo x >/dev/null && head -c 1 /dev/urandom >/dev/null")
        call("systemctl", "daemon-reload")
        c.exec("mknod /tmp/disk2 b 254 0; head -c 1 /tmp/disk2", code=1)

    def allow(config):
        config["linux"]["resources"]["devices"] = [*DENY_ALL, {"allow": True, "type": "b", "major": 254, "minor": 0, "access": "rm"}]

    with Bundle(systemd, change=allow) as c:
        c.exec("mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk >/dev/null")
        c.exec("mknod /tmp/disk b 254 0; echo x >/tmp/disk", code=1)
        c.exec("mknod /tmp/other b 254 16; head -c 1 /tmp/other", code=1)


@both
def layers_commit_diff_rollback(systemd):
    with Bundle(systemd) as c:
        c.exec("echo one >/root/f; rm /etc/group; mkdir /d; echo x >/d/y")
        result = c.show()
        same(result["disposition"], "committed")
        same({(x["kind"], x["path"]) for x in result["changes"]},
             {("added", "/root/f"), ("deleted", "/etc/group"), ("added", "/d"), ("added", "/d/y")})
        c.exec("cat /root/f && test ! -e /etc/group && echo two >>/root/f && rm -r /d && mkdir /d && test -z \"$(ls /d)\"")
        same(c.exec("cat /root/f; ls /d").out, "one\ntwo\n")
        assert "two" in c.run("diff", c.id, "--patch").out
        c.run("rollback", c.id, "1")
        same(c.exec("cat /root/f; cat /d/y").out, "one\nx\n")
        c.run("rollback", c.id, "0")
        c.exec("test ! -e /root/f && test -e /etc/group")
        same(c.show()["disposition"], "empty")
        c.exec("touch /z", "--layer", "discard")
        c.exec("test ! -e /z")


@both
def execs_in_parallel(systemd):
    with Bundle(systemd) as c:
        jobs = [subprocess.Popen(c.command("exec", c.id, "sh", "-c", f"echo {n} >/root/p{n}; sleep 1; exit {n}"),
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for n in range(8)]
        for n, job in enumerate(jobs):
            err = job.communicate(timeout=PATIENCE)[1]
            same(job.returncode, n, f"exec {n}: {err}")
        same(c.exec("cat /root/p*").out.split(), [str(n) for n in range(8)])


@both
def ends_are_told_apart(systemd):
    def small(config):
        config["linux"]["resources"]["memory"] = {"limit": 32 << 20, "swap": 32 << 20}

    with Bundle(systemd, change=small) as c:
        c.exec("sleep 100", "--timeout", "2", code=124)
        same(c.show()["end"]["kind"], "timeout")
        c.exec("kill -TERM $$", code=143)
        same((c.show()["end"]["kind"], c.show()["end"]["signal"]), ("signaled", 15))
        c.exec("kill -KILL $$", code=137)
        same(c.show()["end"]["kind"], "signaled")
        c.exec("x=$(head -c 200m /dev/zero | tr '\\0' x)", code=137)
        same(c.show()["end"]["kind"], "oom")
        # One kill for memory is not the next command's.
        c.exec("kill -KILL $$", code=137)
        same(c.show()["end"]["kind"], "signaled")
        assert json.loads(c.run("state", c.id).out)["status"] == "running"


@both
def survivors_are_killed(systemd):
    with Bundle(systemd) as c:
        c.exec("sleep 3000 & (setsid sleep 3001 &) ; touch /f")
        same(c.show()["survivorsKilled"], 2)
        same(len(json.loads(c.run("ps", "--format", "json", c.id).out)), 1)
        same([d for d in os.listdir(c.cgroup()) if os.path.isdir(os.path.join(c.cgroup(), d))], [FIRST], "groups of ended execs")


@both
def confined(systemd):
    with Bundle(systemd) as c:
        same(c.exec("grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status").out.split(), ["NoNewPrivs:", "1", "Seccomp:", "2"])
        c.exec("chmod 701 /root", code=1)
        c.exec("chmod 755 /root")


@both
def usage_is_measured(systemd):
    with Bundle(systemd) as c:
        c.exec("head -c 50m /dev/urandom >/root/f; for i in 1 2 3; do sleep 1 & done; wait")
        usage = c.show()["usage"]
        print("     usage:", usage)
        for field in ("wallNs", "userNs", "systemNs", "peakMemoryBytes"):
            assert usage[field], f"{field}: {usage}"
        assert 50 << 20 <= usage["writtenBytes"] <= 52 << 20, usage
        # Kernels of Linux 6.1 and later count it.
        peaks = os.path.exists(f"{c.cgroup()}/pids.peak")
        assert usage["maxPids"] == (4 if peaks else None), usage
        c.exec("x=$(head -c 30m /dev/zero | tr '\\0' x); true")
        peak = c.show()["usage"]["peakMemoryBytes"]
        assert 30 << 20 <= peak <= 128 << 20, peak
        c.exec("true")
        assert c.show()["usage"]["peakMemoryBytes"] < 20 << 20, c.show()["usage"]


@both
def processes_see_their_limits(systemd):
    """A JVM or a Go program reads them in the group that /proc/self/cgroup names."""
    own = "g=$(cut -d: -f3 /proc/self/cgroup); cd /sys/fs/cgroup$g; cat memory.max cpu.max pids.max"
    with Bundle(systemd, args=("sh", "-c", f"sleep 1; {own} >/dev/shm/first; exec sleep 100000")) as c:
        limits = f"{128 << 20}\n150000 100000\n100\n"
        same(c.exec(own).out, limits)
        until("the first process", lambda: c.exec("cat /dev/shm/first", code=None).out == limits)
        same(c.exec("cat /sys/fs/cgroup/memory.max").out, f"{128 << 20}\n", "the root of the namespace")
        job = c.start("sleep 1000")
        until("the exec runs", lambda: len(os.listdir(c.cgroup())) and len(json.loads(c.run("ps", "--format", "json", c.id).out)) == 2)
        c.run("update", "--memory", 200 << 20, "--pids-limit", "50", "--cpu-quota", "70000", c.id)
        for group in [d for d in os.listdir(c.cgroup()) if d.startswith("agentsbx-")]:
            found = [read(c.cgroup(), group, name) for name in ("memory.max", "cpu.max", "pids.max")]
            same(found, [str(200 << 20), "70000 100000", "50"], group)
        same(c.exec(own).out, f"{200 << 20}\n70000 100000\n50\n")
        job.kill()
        job.wait()


@both
def of_parallel_ends_only_one_is_out_of_memory(systemd):
    def small(config):
        config["linux"]["resources"]["memory"] = {"limit": 48 << 20, "swap": 48 << 20}

    with Bundle(systemd, change=small) as c:
        jobs = [c.start(script, "--result", f"{c.dir}/{name}") for name, script in [
            ("killed", "sleep 20; kill -KILL $$"), ("bomb", "sleep 3; x=$(head -c 200m /dev/zero | tr '\\0' x)")]]
        for job in jobs:
            same(job.wait(timeout=PATIENCE), 137)
        kinds = [json.loads(read(c.dir, name))["end"]["kind"] for name in ("killed", "bomb")]
        same(kinds, ["signaled", "oom"])


@both
def swap_is_included(systemd):
    def both_same(config):
        config["linux"]["resources"]["memory"] = {"limit": 64 << 20, "swap": 64 << 20}

    with Bundle(systemd, change=both_same) as c:
        same(read(c.cgroup(), "memory.swap.max"), "0")


@both
def limits_of_the_profile(systemd):
    def bare(config):
        config["linux"]["resources"] = {}

    with Bundle(systemd, change=bare, config="profile = 'strict'\n") as c:
        found = [read(c.cgroup(), name) for name in ("memory.max", "memory.swap.max", "cpu.max", "pids.max")]
        same(found, [str(2 << 30), "0", "200000 100000", "256"])
        job = c.start("b() { b | b & }; b; sleep 100", "--timeout", "20")
        until("the bomb is full", lambda: int(read(c.cgroup(), "pids.current")) > 250, 60)
        call("true")
        same(job.wait(timeout=PATIENCE), 124)
        c.exec("true")


@both
def a_container_that_manages_its_groups(systemd):
    def writable(config):
        config["mounts"][-1]["options"] = ["nosuid", "noexec", "nodev", "relatime"]

    with Bundle(systemd, change=writable) as c:
        pid = json.loads(c.run("state", c.id).out)["pid"]
        assert f"{pid}" in read(c.cgroup(), "cgroup.procs").split(), "it stays in the container's group"
        # A process that moves itself out of its exec's group ends with the exec all the same.
        c.exec("sleep 4000 & echo $! >/sys/fs/cgroup/cgroup.procs; sleep 4001 & touch /f")
        same(c.show()["survivorsKilled"], 2)
        same(json.loads(c.run("ps", "--format", "json", c.id).out), [pid])
        # What a nested engine does: its own processes one down, controllers for what is below.
        c.exec("mkdir /sys/fs/cgroup/init && echo 1 >/sys/fs/cgroup/init/cgroup.procs && exec sh -c 'sleep 0'", "--layer", "discard")
        same(read(c.cgroup(), "cgroup.procs"), "")
        with open(f"{c.cgroup()}/cgroup.subtree_control", "w") as control:
            control.write("+memory +pids")
        c.exec("true")
        assert c.show()["usage"]["peakMemoryBytes"], c.show()
        c.run("pause", c.id)
        c.run("resume", c.id)
        c.run("kill", "--all", c.id, "KILL")
        until("it has ended", lambda: json.loads(c.run("state", c.id).out)["status"] == "stopped")


def projects(point):
    """The projects that a filesystem knows: number, inodes, whether it has a limit (quotactl_fd(2), Q_GETNEXTQUOTA)."""
    libc, found, number = ctypes.CDLL(None, use_errno=True), [], 1
    directory = os.open(point, os.O_RDONLY | os.O_DIRECTORY)
    try:
        while True:
            block = (ctypes.c_uint64 * 9)()
            if libc.syscall(443, directory, 0x800009 << 8 | 2, number, block) != 0:
                assert ctypes.get_errno() == errno.ENOENT, os.strerror(ctypes.get_errno())
                return found
            number = block[8] >> 32
            found.append((number, block[5], bool(block[0] or block[3])))
            number += 1
    finally:
        os.close(directory)


@case
def project_quotas():
    """The store on a filesystem that refuses what is too much, as the kernel does it."""
    for kind, make, words in [
        ("ext4", ["mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota"], "Disk quota exceeded"),
        ("xfs", ["mkfs.xfs", "-q"], "No space left on device"),
    ]:
        image, point = f"{WORK}/{kind}.img", f"{WORK}/{kind}"
        call("truncate", "-s", "400M", image)
        call(*make, image)
        os.mkdir(point)
        call("mount", "-t", kind, "-o", "loop,prjquota", image, point)
        os.mkdir(f"{point}/store", 0o700)
        config = f"profile = 'strict'\nstore = '{point}/store'\n[limits]\nlayer = '16MiB'\n"
        with Bundle(False, config=config) as c:
            c.exec("head -c 4194304 /dev/zero >/four")
            # A file that was copied up, too: it is made in the overlay's work directory and moved.
            done = c.exec("chmod 600 /four; dd if=/dev/zero of=/big bs=1M count=64; df -k / | tail -n 1")
            assert words in done.err, f"{kind}: {done}"
            result = c.show()
            same((result["end"]["kind"], result["disposition"]), ("exited", "committed"), kind)
            big = next(change["size"] for change in result["changes"] if change["path"] == "/big")
            assert 8 << 20 <= big <= 16 << 20, (kind, big)
            # Each exec has its own limit, and of files there is one too.
            c.exec("head -c 8388608 /dev/zero >/eight")
            done = c.exec("mkdir /d; n=0; while : >/d/$n; do n=$((n+1)); done", "--layer", "discard", "--timeout", "0", code=None, limit=600)
            assert words in done.err, f"{kind}: {done}"
            same(c.show()["end"]["kind"], "exited", kind)
            files = c.show()["summary"]["added"]
            assert 3000 <= files <= 3300, (kind, files)
            # Unlinked files have no name to be found by; the kernel counts them.
            done = c.exec("exec 3>/x; rm /x; dd if=/dev/zero bs=1M count=64 >&3", code=None)
            assert words in done.err, f"{kind}: {done}"
            same(c.show()["disposition"], "empty", kind)
            held = projects(point)
            assert held and all(inodes for _, inodes, _ in held), (kind, "numbers of the layers that are kept", held)
            assert not any(limited for _, _, limited in held), (kind, "limits of layers that have ended", held)
        c.run("gc")
        until("no number is taken any more", lambda: not [p for p in projects(point) if p[1] or p[2]], 60)
        call("umount", point)


@case
def seventy_commits():
    with Bundle(systemd=True) as c:
        for n in range(70):
            c.exec(f"echo {n} >/root/g{n}; echo {n} >/root/last")
        same(c.exec("ls /root | wc -l; cat /root/last").out.split(), ["71", "69"])
        c.run("rollback", c.id, "35")
        same(c.exec("ls /root | wc -l; cat /root/last").out.split(), ["36", "34"])
        c.run("rollback", c.id, "70")
        same(c.exec("cat /root/g0 /root/g69").out.split(), ["0", "69"])


@both
def read_only_root(systemd):
    def read_only(config):
        config["root"]["readonly"] = True

    with Bundle(systemd, change=read_only) as c:
        c.exec("touch /x", code=1)
        c.exec("touch /dev/shm/x")


@both
def user_namespace(systemd):
    def own_users(config):
        config["linux"]["namespaces"].append({"type": "user"})
        for kind in ("uidMappings", "gidMappings"):
            config["linux"][kind] = [{"containerID": 0, "hostID": 100000, "size": 65536}]
        config["linux"]["resources"].pop("devices")

    c = Bundle(systemd, change=own_users)
    call("chown", "-R", "100000:100000", f"{c.dir}/rootfs")
    for path in (WORK, c.dir):
        os.chmod(path, 0o755)
    with c:
        same(c.exec("id -u; cat /proc/self/uid_map").out.split(), ["0", "0", "100000", "65536"])
        c.exec("echo x >/root/f")
        same(c.show()["disposition"], "committed")
        same(c.exec("stat -c %u /root/f").out.strip(), "0")
        assert os.path.isdir(c.cgroup()), c.cgroup()


@both
def pause_and_resume(systemd):
    with Bundle(systemd, args=("sh", "-c", "while :; do date +%s >/dev/shm/now; sleep 1; done")) as c:
        c.run("pause", c.id)
        same(json.loads(c.run("state", c.id).out)["status"], "paused")
        same("cannot exec in a paused container" in c.exec("true", code=255).err, True)
        c.run("resume", c.id)
        same(json.loads(c.run("state", c.id).out)["status"], "running")
        c.exec("true")
        c.run("pause", c.id)
        # A paused one is deleted all the same.


@both
def nested_cgroups_and_a_killed_supervisor(systemd):
    with Bundle(systemd) as c:
        child = subprocess.Popen(c.command("exec", c.id, "sleep", "500"), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until("the exec runs", lambda: len(json.loads(c.run("ps", "--format", "json", c.id).out)) == 2)
        child.kill()
        child.wait()
        c.run("recover")
        until("the command is gone", lambda: len(json.loads(c.run("ps", "--format", "json", c.id).out)) == 1)
        same(c.show()["disposition"], "aborted")
        os.makedirs(f"{c.cgroup()}/a/b")
    assert not os.path.exists(c.cgroup())


@both
def oom_of_the_first_process_leaves_no_unit(systemd):
    def small(config):
        config["linux"]["resources"]["memory"] = {"limit": 16 << 20, "swap": 16 << 20}

    with Bundle(systemd, args=("sh", "-c", "sleep 1; x=$(head -c 200m /dev/zero | tr '\\0' x); exit 3"), change=small) as c:
        until("the container has ended", lambda: json.loads(c.run("state", c.id).out)["status"] == "stopped", 60)


@both
def a_failed_create_leaves_nothing(systemd):
    c = Bundle(systemd, args=("/no/such/program",))
    failed = c.run("create", "--bundle", c.dir, c.id, code=1)
    assert "no such file" in failed.err, failed
    same(c.run("state", c.id, code=1).err.count("does not exist"), 1)


@both
def run_in_the_foreground(systemd):
    c = Bundle(systemd, args=("sh", "-c", "echo hello; exit 5"))
    done = c.run("run", "--bundle", c.dir, c.id, code=5)
    same(done.out, "hello\n")


@case
def bundles_leave_nothing():
    clean()


# ---- Docker ----------------------------------------------------------------------------------------------------------


def docker(*args, **more):
    return call("docker", *args, **more)


def dockerd(driver):
    call("python3", f"{HERE}/register.py", "add", "/etc/docker/daemon.json", BIN)
    config = json.loads(read("/etc/docker/daemon.json"))
    config.pop("exec-opts", None)
    if driver == "cgroupfs":
        config["exec-opts"] = ["native.cgroupdriver=cgroupfs"]
    with open("/etc/docker/daemon.json", "w") as file:
        json.dump(config, file)
    call("systemctl", "reset-failed", "docker.service", code=None)
    call("systemctl", "restart", "docker.service", limit=300)
    # The default: nobody has asked for it.
    same(docker("info", "--format", "{{.CgroupDriver}} {{.CgroupVersion}}").out.strip(), f"{driver} 2")
    if IMAGE not in docker("images").out:
        docker("load", "-i", f"{HERE}/busybox.image.tar")


class Docker:
    """A container of Docker's, with this runtime."""

    count = 0

    def __init__(self, *flags, args=("sleep", "100000")):
        Docker.count += 1
        self.name = f"d{Docker.count}-{os.getpid()}"
        self.id = docker("run", "--detach", "--runtime", "agentsbx", "--name", self.name, *flags, IMAGE, *args).out.strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        docker("rm", "--force", self.name, code=None)

    def exec(self, script, *flags, **more):
        return docker("exec", *flags, self.name, "sh", "-c", script, **more)

    def show(self):
        return json.loads(call(BIN, "show", self.id, "--json").out)


def docker_case(function):
    for driver in ("systemd", "cgroupfs"):
        CASES.append((f"docker_{driver}_{function.__name__}", lambda driver=driver: function(driver)))
    return function


@docker_case
def run_and_exec(driver):
    with Docker("--memory", "64m", "--pids-limit", "64") as d:
        pid = docker("inspect", "--format", "{{.State.Pid}}", d.name).out.strip()
        cgroup = read("/proc", pid, "cgroup").split("::")[1]
        own = f"/system.slice/docker-{d.id}.scope" if driver == "systemd" else f"/docker/{d.id}"
        same(cgroup, f"{own}/{FIRST}")
        d.exec("echo x >/root/f; exit 3", code=3)
        result = d.show()
        same((result["disposition"], result["end"]["code"], result["summary"]["added"]), ("committed", 3, 1))
        same(d.exec("cat /root/f").out, "x\n")
        same(d.exec("grep -E '^Seccomp:' /proc/self/status").out.split(), ["Seccomp:", "2"])
        d.exec("mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk", code=1)
        d.exec("x=$(head -c 200m /dev/zero | tr '\\0' x)", code=137)
        same(d.show()["end"]["kind"], "oom")
        d.exec("sleep 3000 & true")
        same(d.show()["survivorsKilled"], 1)
        same("mounted" in d.exec("ping -c 1 -W 1 127.0.0.1 >/dev/null && echo mounted").out, True)


@docker_case
def stop_restart_pause_update_stats_top(driver):
    with Docker("--memory", "64m", "--memory-swap", "64m", "--stop-timeout", "2", args=("sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done")) as d:
        pid = docker("inspect", "--format", "{{.State.Pid}}", d.name).out.strip()
        directory = CGROUPS + os.path.dirname(read("/proc", pid, "cgroup").split("::")[1])
        docker("update", "--memory", "100m", "--memory-swap", "100m", "--pids-limit", "77", "--cpus", "0.5", d.name)
        for _ in range(2):
            same((read(directory, "memory.max"), read(directory, "pids.max")), (str(100 << 20), "77"))
            same(read(directory, "cpu.max"), "50000 100000")
            same((read(directory, FIRST, "memory.max"), read(directory, FIRST, "pids.max")), (str(100 << 20), "77"), "mirrored")
            call("systemctl", "daemon-reload")
        docker("pause", d.name)
        same(docker("inspect", "--format", "{{.State.Status}}", d.name).out.strip(), "paused")
        docker("unpause", d.name)
        job = subprocess.Popen(["docker", "exec", d.name, "sh", "-c", "sleep 1000 & sleep 1000 & wait"])
        until("the exec runs", lambda: sum(line.endswith(" sleep 1000") for line in docker("top", d.name).out.splitlines()) == 2)
        stats = docker("stats", "--no-stream", "--format", "{{.MemUsage}} {{.PIDs}}", d.name).out
        # Execs count: what is looked at is the container's group, not the first process's.
        assert "100MiB" in stats and int(stats.split()[-1]) >= 4, stats
        job.kill()
        job.wait()
        assert "sleep" in docker("top", d.name).out
        docker("stop", d.name)
        same(docker("inspect", "--format", "{{.State.ExitCode}} {{.State.OOMKilled}}", d.name).out.strip(), "0 false")
        docker("start", d.name)
        docker("restart", d.name)
        d.exec("true")
        docker("kill", d.name)
        until("killed", lambda: docker("inspect", "--format", "{{.State.ExitCode}}", d.name).out.strip() == "137")


@docker_case
def terminals(driver):
    script = "docker run --rm -it --runtime agentsbx IMAGE sh -c 'tty; stty size; exit 4'".replace("IMAGE", IMAGE)
    done = call("script", "-qec", script, "/dev/null", code=4)
    assert "/dev/pts/0" in done.out, done
    with Docker() as d:
        done = call("script", "-qec", f"docker exec -it {d.name} sh -c 'tty; exit 6'", "/dev/null", code=6)
        assert "/dev/pts/" in done.out, done


@docker_case
def out_of_memory_is_told(driver):
    with Docker("--memory", "16m", "--memory-swap", "16m", args=("sh", "-c", "x=$(head -c 200m /dev/zero | tr '\\0' x); exit 3")) as d:
        same(docker("wait", d.name).out.strip() in ("3", "137"), True)
        until("told", lambda: docker("inspect", "--format", "{{.State.OOMKilled}}", d.name).out.strip() == "true", 10)


@docker_case
def read_only_and_tmpfs(driver):
    with Docker("--read-only", "--tmpfs", "/tmp", "--shm-size", "1m", "--ulimit", "nofile=100") as d:
        d.exec("touch /x", code=1)
        d.exec("touch /tmp/x")
        same(d.exec("ulimit -n").out.strip(), "100")


@docker_case
def a_daemon_restart_keeps_containers_killable(driver):
    with Docker() as d:
        call("systemctl", "kill", "--signal", "KILL", "docker.service")
        call("systemctl", "reset-failed", "docker.service", code=None)
        call("systemctl", "restart", "docker.service", limit=300)
        docker("rm", "--force", d.name)


@docker_case
def leaves_nothing(driver):
    clean()


# ---- podman ----------------------------------------------------------------------------------------------------------


@case
def podman_with_systemd():
    podman = ["podman", "--runtime", BIN, "--cgroup-manager", "systemd"]
    if "agentsbx-test" not in call("podman", "images").out:
        call("podman", "load", "-i", f"{HERE}/busybox.image.tar", limit=300)
    call(*podman, "run", "--detach", "--name", "p1", "--network", "none", "--memory", "64m", IMAGE, "sleep", "100000")
    try:
        call(*podman, "exec", "p1", "sh", "-c", "echo x >/root/f; exit 3", code=3)
        same(call(*podman, "exec", "p1", "cat", "/root/f").out, "x\n")
        call(*podman, "stop", "--time", "1", "p1")
        call(*podman, "start", "p1")
        call(*podman, "exec", "p1", "true")
    finally:
        call(*podman, "rm", "--force", "--time", "0", "p1", code=None)
    clean()


# ---- main ------------------------------------------------------------------------------------------------------------


def main(names):
    shutil.rmtree(WORK, ignore_errors=True)
    os.makedirs(WORK)
    # The engines' own configurations, as they are; cases of the strict profile say so.
    os.makedirs(os.path.dirname(CONFIG), exist_ok=True)
    with open(CONFIG, "w") as file:
        file.write("profile = 'oci'\n")
    if os.path.exists(f"{HERE}/agentsbx"):
        shutil.copy(f"{HERE}/agentsbx", f"{BIN}.new")
        os.rename(f"{BIN}.new", BIN)
    wanted = [(name, function) for name, function in CASES if not names or any(n in name for n in names)]
    # All of one driver's together: the daemon is restarted between.
    order = {"docker_systemd": 1, "docker_cgroupfs": 2, "podman": 3}
    wanted.sort(key=lambda c: next((n for prefix, n in order.items() if c[0].startswith(prefix)), 0))
    daemon, passed, failed = None, 0, []
    for name, function in wanted:
        begun = time.monotonic()
        try:
            if name.startswith("docker_") and name.split("_")[1] != daemon:
                daemon = name.split("_")[1]
                dockerd(daemon)
            function()
        except Exception as err:  # noqa: BLE001 - one case's failure is not the next one's
            failed.append(name)
            where = traceback.extract_tb(err.__traceback__)
            line = next((f.lineno for f in where if f.name not in ("main", "<lambda>", "call", "same")), 0)
            text = str(err) if isinstance(err, AssertionError) else f"{type(err).__name__}: {err}"
            print(f"FAIL {name} ({time.monotonic() - begun:.1f} s) line {line}: {text}", flush=True)
        else:
            passed += 1
            print(f"ok   {name} ({time.monotonic() - begun:.1f} s)", flush=True)
    print(f"{passed} passed, {len(failed)} failed", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
