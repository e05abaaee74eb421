"""The runtime by itself, with systemd's cgroups and with cgroupfs: a case is a container of its own."""

import ctypes
import errno
import json
import os
import subprocess

from machine import BIN, CGROUPS, DENY_ALL, DISK, FIRST, HERE, PATIENCE, WORK, Bundle, both, call, case, clean, read, same, spare, until


@case
def host_is_what_is_meant():
    same(read("/proc/1/comm"), "systemd", "first process")
    same(call("stat", "-fc", "%T", CGROUPS).out.strip(), "cgroup2fs", "cgroups")
    wanted = read(HERE, "kernel")
    assert os.uname().release.startswith(wanted), (os.uname().release, wanted)


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
        # Shares are made the same weight when a container is made and when it is updated.
        same(read(c.cgroup(), "cpu.weight"), "59")
        for shares, weight in ((1024, "100"), (512, "59")):
            c.run("update", "--cpu-share", shares, c.id)
            same(read(c.cgroup(), "cpu.weight"), weight)
        c.exec("true")


@both
def devices_are_denied(systemd):
    with Bundle(systemd) as c:
        # The machine's own root disk.
        c.exec(f"mknod /tmp/disk b {DISK} 0 && head -c 1 /tmp/disk", code=1)
        c.exec("head -c 1 /dev/zero >/dev/null && echo x >/dev/null && head -c 1 /dev/urandom >/dev/null")
        call("systemctl", "daemon-reload")
        c.exec(f"mknod /tmp/disk2 b {DISK} 0; head -c 1 /tmp/disk2", code=1)

    def allow(config):
        config["linux"]["resources"]["devices"] = [*DENY_ALL, {"allow": True, "type": "b", "major": DISK, "minor": 0, "access": "rm"}]

    with Bundle(systemd, change=allow) as c:
        c.exec(f"mknod /tmp/disk b {DISK} 0 && head -c 1 /tmp/disk >/dev/null")
        c.exec(f"mknod /tmp/disk b {DISK} 0; echo x >/tmp/disk", code=1)
        c.exec(f"mknod /tmp/other b {DISK} 16; head -c 1 /tmp/other", code=1)


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
        jobs = [c.start("sleep 20; kill -KILL $$", "--result", f"{c.dir}/killed")]
        pids = lambda: json.loads(c.run("ps", "--format", "json", c.id).out)  # noqa: E731
        until("the first exec runs", lambda: len(pids()) == 3)
        spare(pids())
        jobs.append(c.start("x=$(head -c 200m /dev/zero | tr '\\0' x)", "--result", f"{c.dir}/bomb"))
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
