"""containerd's shim, by containerd's own client: this containerd (1.6) with its systemd unit, on cgroup v2."""

import json
import os
import re
import signal
import subprocess
import time

from machine import BIN, CGROUPS, FIRST, HERE, PATIENCE, SHIM, WORK, both, call, clean, read, same, spare, until


def ctr(*args, **more):
    return call("ctr", "--namespace", "smoke", *args, **more)


def ctr_image():
    found = ctr("images", "list", "--quiet").out.split()
    if not found:
        ctr("images", "import", f"{HERE}/busybox.image.tar", limit=300)
        found = ctr("images", "list", "--quiet").out.split()
    return found[0]


def shims():
    """The pids of all that run."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found += [int(pid)] if os.readlink(f"/proc/{pid}/exe") == SHIM else []
        except OSError:  # a thread of the kernel's, or one that has ended
            continue
    return found


class Task:
    """A container of containerd's, with this shim. A cgroup path of systemd's form is what asks for systemd's cgroups."""

    count = 0

    def __init__(self, systemd, *flags, args=("sleep", "100000"), code=0):
        Task.count += 1
        self.id = f"t{Task.count}"
        path = f"system.slice:smoke:{self.id}" if systemd else f"/smoke/{self.id}"
        self.cgroup = f"{CGROUPS}/system.slice/smoke-{self.id}.scope" if systemd else f"{CGROUPS}/smoke/{self.id}"
        self.ran = ctr("run", "--runtime", "io.containerd.agentsbx.v1", "--cgroup", path, *flags, ctr_image(), self.id, *args, code=code)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        ctr("tasks", "kill", "--signal", "KILL", self.id, code=None)
        until("the task has ended", lambda: self.status() != "RUNNING", PATIENCE)
        ctr("tasks", "delete", self.id, code=None)
        ctr("containers", "delete", self.id, code=None if kind else 0)

    def exec(self, name, script, **more):
        return ctr("tasks", "exec", "--exec-id", name, self.id, "sh", "-c", script, **more)

    def show(self, name):
        return json.loads(call(BIN, "show", self.id, name, "--json").out)

    def listed(self):
        lines = [line.split() for line in ctr("tasks", "list").out.splitlines()]
        return next((line for line in lines if line[0] == self.id), [self.id, None, None])

    def pid(self):
        return self.listed()[1]

    def status(self):
        return self.listed()[2]

    def traces(self):
        with open("/proc/self/mounts") as file:
            left = [line for line in file if f"/smoke/{self.id}/" in line]
        for path in (self.cgroup, f"/run/containerd/io.containerd.runtime.v2.task/smoke/{self.id}"):
            left += [path] if os.path.exists(path) else []
        return left


@both
def shim_run_exec_and_exit_codes(systemd):
    done = Task(systemd, "--rm", args=("sh", "-c", "echo out; echo err >&2; exit 7"), code=7)
    same((done.ran.out, done.ran.err), ("out\n", "err\n"))
    until("nothing is left", lambda: not done.traces(), 20)
    with Task(systemd, "--detach") as t:
        same(len(shims()), 1, "shims")
        assert t.pid() in read(t.cgroup, FIRST, "cgroup.procs").split(), "first process in its cgroup"
        same(t.exec("e1", "echo x >/root/f; exit 3", code=3).code, 3)
        result = t.show("e1")
        same((result["disposition"], result["end"]["code"], result["engineExec"]), ("committed", 3, "e1"))
        same(t.exec("e2", "cat /root/f").out, "x\n")
        t.exec("e3", "kill -TERM $$", code=143)
        t.exec("e4", "sleep 3000 & touch /f")
        same(t.show("e4")["survivorsKilled"], 1)
        call(BIN, "rollback", t.id, "0")
        t.exec("e5", "test ! -e /root/f")
        same([d for d in os.listdir(t.cgroup) if os.path.isdir(f"{t.cgroup}/{d}")], [FIRST], "groups of ended execs")
        ctr("tasks", "pause", t.id)
        same(t.status(), "PAUSED")
        ctr("tasks", "resume", t.id)
        same(t.status(), "RUNNING")
        done = call("script", "-qec", f"ctr --namespace smoke tasks exec --tty --exec-id e6 {t.id} sh -c 'tty; exit 6'", "/dev/null", code=6)
        assert "/dev/pts/" in done.out, done


@both
def shim_metrics(systemd):
    with Task(systemd, "--detach", "--memory-limit", 64 << 20) as t:
        job = subprocess.Popen(["ctr", "--namespace", "smoke", "tasks", "exec", "--exec-id", "e", t.id, "sh", "-c", "exec sleep 1000"],
                               stdin=subprocess.DEVNULL)

        def metrics():
            return json.loads(ctr("tasks", "metrics", "--format", "json", t.id).out)

        # Execs count: what is looked at is the container's group.
        until("all processes are counted", lambda: metrics()["pids"]["current"] == 2)
        found = metrics()
        same(int(found["memory"]["usage_limit"]), 64 << 20)
        assert 0 < int(found["memory"]["usage"]) < 64 << 20, found["memory"]
        assert int(found["cpu"]["usage_usec"]) > 0, found["cpu"]
        print("     metrics:", found["pids"], found["cpu"])
        table = ctr("tasks", "metrics", t.id).out
        assert re.search(r"pids\.current +2 ", table), table
        ctr("tasks", "kill", "--exec-id", "e", "--signal", "KILL", t.id)
        same(job.wait(timeout=PATIENCE), 137)
        until("only the first is counted", lambda: metrics()["pids"]["current"] == 1)


class Events:
    """What `ctr events` prints, from now on: (topic, fields)."""

    def __init__(self):
        self.path = f"{WORK}/events"
        with open(self.path, "w") as out:
            self.process = subprocess.Popen(["ctr", "--namespace", "smoke", "events"], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL)

        # It does not say when it has begun to listen, so something is made to happen.
        def heard():
            ctr("namespaces", "label", "smoke", f"heard={time.monotonic_ns()}")
            return bool(read(self.path))

        until("events are heard", heard)

    def of(self, task):
        found = []
        for line in read(self.path).splitlines():
            topic, fields = re.search(r" (/\S+) (\{.*\})$", line).groups()
            fields = json.loads(fields)
            if fields.get("container_id") == task.id:
                found.append((topic, fields))
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


@both
def shim_tells_out_of_memory_before_the_exit(systemd):
    bomb = "x=$(head -c 200m /dev/zero | tr '\\0' x)"
    with Events() as events:
        with Task(systemd, "--detach", "--memory-limit", 32 << 20, args=("sh", "-c", f"sleep 1; {bomb}; exit 3")) as t:
            until("it has ended", lambda: t.status() == "STOPPED", PATIENCE)
        until("told", lambda: "/tasks/delete" in [topic for topic, _ in events.of(t)])
        topics = [topic for topic, _ in events.of(t)]
        order = ["/tasks/create", "/tasks/start", "/tasks/oom", "/tasks/exit", "/tasks/delete"]
        same(sorted((topics.index(topic) for topic in order if topic in topics)), [topics.index(topic) for topic in order if topic in topics], f"order {topics}")
        same([topic for topic in order if topic not in topics], [], f"missing in {topics}")
        code = next(fields["exit_status"] for topic, fields in events.of(t) if topic == "/tasks/exit")
        assert code in (3, 137), code
        # Of an exec too: its own exit, with the container running on.
        with Task(systemd, "--detach", "--memory-limit", 32 << 20) as t:
            spare([t.pid()])
            t.exec("bomb", bomb, code=137)
            same(t.show("bomb")["end"]["kind"], "oom")
            same(t.status(), "RUNNING")
            until("told", lambda: "/tasks/exit" in [topic for topic, _ in events.of(t)])
            topics = [topic for topic, _ in events.of(t)]
            assert "/tasks/oom" in topics and topics.index("/tasks/oom") < topics.index("/tasks/exit"), topics
            same(next(fields["id"] for topic, fields in events.of(t) if topic == "/tasks/exit"), "bomb")


@both
def shim_delete_leaves_nothing(systemd):
    with Task(systemd, "--detach") as t:
        assert os.path.isdir(t.cgroup), t.cgroup
        t.exec("e", "touch /x")
        os.makedirs(f"{t.cgroup}/a/b")
    until("nothing is left", lambda: not t.traces(), 20)
    # A shim that was killed: containerd has its container deleted.
    with Task(systemd, "--detach") as t:
        [shim] = shims()
        os.kill(shim, signal.SIGKILL)
        until("containerd has seen it", lambda: t.status() != "RUNNING", PATIENCE)
    until("nothing is left", lambda: not t.traces(), 20)
    clean()
